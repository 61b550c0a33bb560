"""Reaching the coordinator before there is a session: how long to wait for one that does not
answer.

    an address at which nobody has ever answered this node    it may be wrong: `FIRST_CONTACT_SECONDS`, then an error
    one at which somebody has, now or in an earlier life      it is right, and the rest is the network: for ever

Only `UnavailableError` is waited out. What a coordinator answers (another version, a broken run
file) ends the node, for no waiting mends it. Which address is right is noted in the node's
directory.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from node.control.client import BACKOFF_SECONDS, CALL_SECONDS
from node.system.files import replacing_file, storage_errors
from protocol.errors import UnavailableError

_Answer = TypeVar("_Answer")
log = logging.getLogger("lockstep.node")

FIRST_CONTACT_SECONDS = 30.0
"""How long a node asks at an address that was never right: a coordinator started in the same minute
is up by then."""

NOTE_NAME = "coordinator"
"""The file that holds the address at which a coordinator has answered."""


async def reach(
    call: Callable[[float], Awaitable[_Answer]],
    say: Callable[[str], None],
    seconds: float | None = None,
) -> _Answer:
    """What `call(patience_seconds)` answers, asked again and again, for `seconds` in all or for
    ever.

    `say` is told why it takes so long. Raises the last `UnavailableError` when the time is over,
    and at once whatever else `call` raises.
    """
    pause = BACKOFF_SECONDS[0]
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = CALL_SECONDS if deadline is None else deadline - time.monotonic()
        try:
            return await call(max(left, 0.1))
        except UnavailableError as error:
            if deadline is not None and time.monotonic() + pause >= deadline:
                raise
            log.warning("no answer yet, asks again reason=%s", str(error))
            say(f"{error}; asks again in {pause:.1f} s")
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, BACKOFF_SECONDS[1])


def is_known(directory: Path, address: str) -> bool:
    """Has a coordinator answered at this address before?"""
    path = directory / NOTE_NAME
    with storage_errors(path):
        return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == address


def remember(directory: Path, address: str) -> None:
    """A coordinator has answered at this address."""
    if not is_known(directory, address):
        with replacing_file(directory / NOTE_NAME) as temporary:
            temporary.write_text(address, encoding="utf-8")
