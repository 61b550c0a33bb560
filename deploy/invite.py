"""Makes the tokens that let the other containers in, once the coordinator takes orders.

    /invitation/nodes    vouches for the nodes of the compose file, so that their word counts
    /invitation/relays   only admits: relay and auditor are no members, and are not counted as such

A token is made once: it stands in a volume that the coordinator alone writes, readable to its user
alone. Nodes from elsewhere take tokens of their own (`lockstep run token create`).
"""

import sys
import time
from pathlib import Path

from coordinator.machine.events.acts import TOKEN_USES_MAX
from lockstep.console import error_line
from lockstep.exit_codes import exit_code
from lockstep.service.tokens import made_up, new_token
from node.system.files import replacing_file
from protocol.errors import LockstepError, UnavailableError

STATE = Path("/state")
INVITATION = Path("/invitation")

VOUCHES = {"nodes": True, "relays": False}
"""Whether each token vouches, by the name of its file."""

AGAIN_S = 0.5
"""Time from one look for the coordinator to the next."""

READABLE = 0o400
"""Mode of a token: nodes, relay and auditor run as the coordinator's user."""


def invite(state: Path, invitation: Path) -> None:
    """Makes the tokens that `invitation` lacks; waits for the coordinator of `state`."""
    for name, vouches in VOUCHES.items():
        while not (invitation / name).exists():
            try:
                token = made_up(name)
                secret, _ = new_token(state, token, uses=TOKEN_USES_MAX, vouches=vouches)
            except UnavailableError:
                time.sleep(AGAIN_S)
                continue
            with replacing_file(invitation / name, mode=READABLE) as temporary:
                temporary.write_text(secret)


if __name__ == "__main__":
    try:
        invite(STATE, INVITATION)
    except LockstepError as error:
        error_line(str(error))
        sys.exit(exit_code(error))
