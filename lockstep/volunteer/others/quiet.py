"""Whether a machine is quiet enough to work on: its owner is away, and other programs leave it
alone. Pure: time is an argument.

    a person at it     works --input within `when_idle`--> rests --none for that long--> works
    other programs     works --mean of BUSY_S above the limit--> rests
                       rests --mean of CALM_S below CALM_PART of the limit--> works

A load that wavers about the limit does not send a node away and back: a return costs a catch-up.
What can no longer be read counts as in use: a limit protects the owner.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Annotated

from protocol.option import USE, Option, check_bounds

BUSY_S = 30.0
"""Time over which other programs must load the machine before the node leaves."""

CALM_S = 120.0
"""Time over which they must leave it alone before the node comes back."""

CALM_PART = 0.75
"""Part of the limit below which their load must fall."""

COVERED_PART = 0.8
"""Part of a window that samples must cover before it is judged."""

UNREAD_S = 60.0
"""Time without a reading after which a load counts as unknown."""


@dataclass(frozen=True, slots=True)
class QuietLimits:
    """The owner's wishes about the others."""

    when_idle: Annotated[int, Option("MINUTES", USE, least=0, most=24 * 60)] = 0
    """Minutes without keyboard or mouse before the node works; 0: it works beside a person."""

    other_load: Annotated[int, Option("PERCENT", USE, least=0, most=100)] = 0
    """Load of other programs, on all cores or on a GPU, above which the node rests; 0: it never
    rests for that."""

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def unlimited(self) -> bool:
        """Whether nothing has to be read."""
        return not (self.when_idle or self.other_load)


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the machine, at a monotonic time in seconds. None: it could not be read."""

    now_s: float
    idle_s: float | None = None
    """Seconds since the last input of a person."""
    cpu_percent: float | None = None
    """Part of all cores that other programs have used since the look before."""
    gpu_percent: float | None = None
    """The same of the GPU that they use most; None where nothing tells it."""


class Quiet:
    """Judges one look after the other."""

    def __init__(self, limits: QuietLimits) -> None:
        self.limits = limits
        self._idle_s: float | None = None
        self._cpu, self._gpu = _Load("the CPU"), _Load("a GPU")
        self._began_s: float | None = None
        self._unread_s = 0.0

    def look(self, seen: Seen) -> None:
        """Takes what was seen now."""
        self._idle_s = seen.idle_s
        if self._began_s is None:
            self._began_s = seen.now_s
        elif self.limits.other_load:
            limit = self.limits.other_load
            self._cpu.look(seen.now_s, seen.cpu_percent, limit)
            self._gpu.look(seen.now_s, seen.gpu_percent, limit)
        newest_s = self._began_s if self._cpu.newest_s is None else self._cpu.newest_s
        self._unread_s = seen.now_s - newest_s

    def reason(self) -> str:
        """Why the machine must rest now, in words; empty when it is quiet."""
        if self._began_s is None:
            return ""
        minutes, limit = self.limits.when_idle, self.limits.other_load
        if minutes and self._idle_s is None:
            return "cannot tell any more whether you use this machine; goes on when it can"
        if minutes and self._idle_s is not None and self._idle_s < 60 * minutes:
            return _in_use(minutes, self._idle_s)
        if limit and self._unread_s > UNREAD_S:
            return "cannot tell any more how busy other programs are; goes on when it can"
        loads = (self._cpu.reason(limit), self._gpu.reason(limit)) if limit else ()
        return next(filter(None, loads), "")


def _in_use(minutes: int, idle_s: float) -> str:
    left = math.ceil(minutes - idle_s / 60)
    unit = "minute" if minutes == 1 else "minutes"
    more = f" ({left} more)" if left < minutes else ""
    return f"you are using this machine; goes on after {minutes} quiet {unit}{more}"


class _Load:
    """The load of other programs on one kind of processor."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._samples: deque[tuple[float, float, float]] = deque()  # (from, to, percent) in CALM_S
        self._busy = False
        self.newest_s: float | None = None
        """Time of the newest reading; None before the first one."""

    def look(self, now_s: float, percent: float | None, limit: int) -> None:
        """Takes the load since the look before; judges it against the limit in percent."""
        if percent is None:
            return
        before_s = self.newest_s
        self.newest_s = now_s
        if before_s is None or now_s - before_s > UNREAD_S:
            self._samples.clear()  # the machine slept, or could not be read
            before_s = now_s
        self._samples.append((before_s, now_s, percent))
        while self._samples[0][1] <= now_s - CALM_S:
            self._samples.popleft()
        window_s = CALM_S if self._busy else BUSY_S
        mean = self._mean(now_s, window_s)
        if mean is not None:
            self._busy = mean > limit * (CALM_PART if self._busy else 1.0)

    def reason(self, limit: int) -> str:
        """Why the load makes the node rest; empty when it does not."""
        if not self._busy or self.newest_s is None:
            return ""
        now = self._mean(self.newest_s, BUSY_S) or 0.0
        return (
            f"other programs use {now:.0f} % of {self._where}, and {limit} % are allowed; goes on "
            f"when they have used less than {CALM_PART * limit:.0f} % for {CALM_S / 60:.0f} minutes"
        )

    def _mean(self, now_s: float, window_s: float) -> float | None:
        """Mean percent over the window; None while samples do not cover it."""
        since_s = now_s - window_s
        parts = [
            (to_s - max(from_s, since_s), percent)
            for from_s, to_s, percent in self._samples
            if to_s > since_s
        ]
        covered_s = sum(length_s for length_s, _ in parts)
        if covered_s < COVERED_PART * window_s:
            return None
        return sum(length_s * percent for length_s, percent in parts) / covered_s
