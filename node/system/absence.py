"""Whether this process was away: stopped, frozen with its container, or asleep with its machine.

While a machine sleeps its monotonic clock stands still: all timers believe that nothing has
happened, and every connection may be dead. The clock that is read here goes on meanwhile (Linux;
elsewhere only a process that was stopped is noticed).
"""

import asyncio
import logging
import time
from collections.abc import Callable

LOOK_S = 1.0
"""Pause between two looks at the clock."""

log = logging.getLogger("lockstep.node")


def clock_s() -> float:
    """Seconds of a clock that goes on while the machine sleeps and is never set."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


async def watch_absence(
    away: Callable[[float], None], least_s: float, clock_s: Callable[[], float] = clock_s
) -> None:
    """Log each absence of at least `least_s` seconds in one line, and call `away` with its seconds;
    until cancelled.
    """
    while True:
        before_s = clock_s()
        await asyncio.sleep(LOOK_S)
        away_s = clock_s() - before_s - LOOK_S
        if away_s >= least_s:
            why = "the process was stopped, or the machine slept"
            log.warning("was away", extra={"seconds": round(away_s, 1), "reason": why})
            away(away_s)
