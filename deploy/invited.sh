#!/bin/sh
# Becomes COMMAND... with a token of the coordinator of this compose file (deploy/invite.py), which
# makes it at its first start:
#
#   invited.sh nodes|relays COMMAND...
set -eu

token=/invitation/$1
shift
[ -r "$token" ] || echo "waiting for the coordinator to make $token"
until [ -r "$token" ]; do sleep 1; done
LOCKSTEP_TOKEN=$(cat "$token")
export LOCKSTEP_TOKEN
exec "$@"
