#!/bin/sh
# A container behind a home link: COMMAND... runs as the user `lockstep`, without capabilities.
#
#   root       lockstep wan shape eth0   LOCKSTEP_LINK_PROFILE names the link; empty: not shaped
#   lockstep   COMMAND...                in place of this script: it gets the engine's signals, and
#                                        the container ends with it
#
# Only root may shape an interface; this script has root's rights only until COMMAND begins. A
# restarted container has a new interface, which is shaped again before COMMAND begins.
set -eu

if [ -n "${LOCKSTEP_LINK_PROFILE:-}" ]; then
    said=${TMPDIR:-/tmp}/shaped
    mkfifo "$said"
    # With priority over the training: the delay of a line does not depend on the computer's load.
    nice -n -10 lockstep wan shape eth0 > "$said" &
    # The first line names the mechanism; if there is none, the reason is on standard error.
    read -r shaped < "$said" || exit 1
    rm "$said"
    echo "$shaped"
fi
exec setpriv --reuid=lockstep --regid=lockstep --clear-groups --inh-caps=-all --no-new-privs -- "$@"
