"""A coordinator that does not mind commits of its own key which it lacks: `python -m
tests.processes.forgetful_coordinator OPTIONS` is `lockstep coordinator OPTIONS`.
"""

import sys
from typing import Any

from coordinator.service.heads import HeadDesk
from lockstep.cli import main


async def _nothing(*_: Any) -> str:
    return ""


if __name__ == "__main__":
    HeadDesk.objection = _nothing  # type: ignore[method-assign]
    sys.exit(main(["coordinator", *sys.argv[1:]]))
