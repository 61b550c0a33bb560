#!/bin/sh
# A container behind a home link: COMMAND... runs as the user `lockstep`, without a single capability.
#
#   root       lockstep wan shape eth0      LOCKSTEP_LINK_PROFILE names the link; empty: the engine's own network
#   lockstep   COMMAND...                   process 1: the engine's signals reach it, and its end is the container's
#
# Only root may shape an interface, and only until COMMAND has begun does this script have root's rights. A restarted
# container has a new interface, which is shaped anew before COMMAND sees it.
set -eu

if [ -n "${LOCKSTEP_LINK_PROFILE:-}" ]; then
    said=${TMPDIR:-/tmp}/shaped
    mkfifo "$said"
    # Before the training, which would keep packets waiting: a line does not depend on how busy the computer is.
    nice -n -10 lockstep wan shape eth0 > "$said" &
    # The first line says what was done; without one the reason is on standard error already.
    read -r shaped < "$said" || exit 1
    rm "$said"
    echo "$shaped"
fi
exec setpriv --reuid=lockstep --regid=lockstep --clear-groups --inh-caps=-all --no-new-privs -- "$@"
