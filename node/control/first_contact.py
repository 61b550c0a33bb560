"""Reaching the coordinator before there is a session: how long to wait for one that does not
answer.

    no coordinator ever answered at the address   it may be wrong: an error after `FIRST_CONTACT_S`
    one answered, now or before a restart         it is right, the network is at fault: no limit

Only `UnavailableError` is waited out. An answer that is wrong (another version, a broken run
file) ends the node, because waiting does not mend it. The address that is right is noted in the
node's directory.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from node.control.calls import PAUSE_MS
from node.control.channel import CALL_S
from node.system.backoff import Backoff
from node.system.files import replacing_file, storage_errors
from protocol.errors import UnavailableError

_Answer = TypeVar("_Answer")
log = logging.getLogger("lockstep.node")

FIRST_CONTACT_S = 30.0
"""Longest wait for an answer at an address that was never right: a coordinator that was started in
the same minute is up by then."""

NOTE_NAME = "coordinator"
"""The file that holds the address at which a coordinator has answered."""


async def reach(
    call: Callable[[float], Awaitable[_Answer]],
    say: Callable[[str], None],
    limit_s: float | None = None,
) -> _Answer:
    """The answer of `call(timeout_s)`, which is called again and again for `limit_s` in all, or
    without a limit.

    `say` is told why it takes so long. Raises the last `UnavailableError` when the time is over,
    and at once any other error of `call`.
    """
    pauses = Backoff(*PAUSE_MS)
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    while True:
        left_s = CALL_S if deadline_s is None else deadline_s - time.monotonic()
        pause_s = pauses.next() / 1000
        try:
            return await call(max(left_s, 0.1))
        except UnavailableError as error:
            if deadline_s is not None and time.monotonic() + pause_s >= deadline_s:
                raise
            log.warning("no answer yet", extra={"reason": str(error), "pause_s": pause_s})
            say(f"{error}; asks again in {pause_s:.1f} s")
        await asyncio.sleep(pause_s * random.uniform(0.5, 1))


def is_known(directory: Path, address: str) -> bool:
    """Whether a coordinator has answered at this address before."""
    path = directory / NOTE_NAME
    with storage_errors(path):
        return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == address


def remember(directory: Path, address: str) -> None:
    """Note that a coordinator has answered at this address."""
    if not is_known(directory, address):
        with replacing_file(directory / NOTE_NAME) as temporary:
            temporary.write_text(address, encoding="utf-8")
