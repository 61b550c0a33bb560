"""A node that does its work and serves nobody: `python -m tests.processes.unwilling_node FILE join
OPTIONS` is `lockstep join OPTIONS`, and while FILE is there it lets everybody wait who asks it for
bytes.
"""

import asyncio
import sys
from pathlib import Path

from lockstep.cli import main
from node.gossip.swarm import Swarm
from node.links.frames import PART_BYTES_MAX
from protocol.ids import Digest

LOOK_S = 0.2


def withhold(while_there: Path) -> None:
    """From now on this process serves nobody at times."""
    read = Swarm.read

    async def withheld(
        swarm: Swarm, digest: Digest, offset: int, count: int = PART_BYTES_MAX
    ) -> tuple[int, bytes] | None:
        while while_there.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(LOOK_S)
        return await read(swarm, digest, offset, count)

    Swarm.read = withheld  # type: ignore[method-assign]


if __name__ == "__main__":
    withhold(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
