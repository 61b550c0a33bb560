"""A node that does its work and serves badly.

`python -m tests.processes.unwilling_node FILE join OPTIONS` is `lockstep join OPTIONS` with the
conduct that FILE names, while it is there:

    withholds   who asks it for bytes waits
    drops       every second question for bytes ends with the link
"""

import asyncio
import contextlib
import itertools
import sys
from pathlib import Path

from lockstep.cli import main
from node.gossip.swarm import Swarm
from node.links.frames import PART_BYTES_MAX
from protocol.errors import UnavailableError
from protocol.ids import Digest

LOOK_S = 0.2


def serve_badly(file: Path) -> None:
    """From now on this process serves badly at times."""
    read, asked = Swarm.read, itertools.count()

    async def unhelpful(
        swarm: Swarm, digest: Digest, offset: int, count: int = PART_BYTES_MAX
    ) -> tuple[int, bytes] | None:
        while conduct(file) == "withholds":  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(LOOK_S)
        if conduct(file) == "drops" and next(asked) % 2:
            raise UnavailableError("this end breaks the link")
        return await read(swarm, digest, offset, count)

    Swarm.read = unhelpful  # type: ignore[method-assign]


def conduct(file: Path) -> str:
    """What another process has written for this one; empty: nothing."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""


if __name__ == "__main__":
    serve_badly(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
