"""Keeps the part of the time in which a node computes. `DutyCycle` is pure; `DutyKeeper` measures
work, and sleeps.

    work        from began to ended: the node may compute again (ended - began) / share after began,
                or that long after work that was to be paid first
    rest        until then, at most until the bell
    the bell    where what is left after a rest is less than a pass has taken, none is begun

Time in which the node waits for others is rest too, and rest is not saved up. So a node trains
fewer samples in a round, and announces them by the bell; where not even one pass can be paid it
announces a round without samples, and the coordinator gives its samples to others.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


def _clock_ms() -> float:
    return time.monotonic() * 1000


class DutyCycle:
    """The time that work has to be paid with. `percent`: part of the time with work, 1 to 100."""

    def __init__(self, percent: int = 100) -> None:
        self.percent = percent
        self._free_ms = 0.0

    def worked(self, began_ms: float, ended_ms: float) -> None:
        """The node has computed from one time until another."""
        if self.percent < 100:
            paid_ms = (ended_ms - began_ms) * 100 / self.percent
            self._free_ms = max(self._free_ms, began_ms) + paid_ms

    def rest_ms(self, now_ms: float) -> float:
        """Time that the node has to rest from now on."""
        return max(0.0, self._free_ms - now_ms) if self.percent < 100 else 0.0


class DutyKeeper:
    """Makes a node keep to a part of the time. `clock_ms` is monotonic."""

    def __init__(self, percent: int = 100, clock_ms: Callable[[], float] = _clock_ms) -> None:
        self._duty, self._clock_ms = DutyCycle(percent), clock_ms
        self._pass_ms = 0.0

    @property
    def pass_s(self) -> float:
        """Time of the newest pass, in seconds."""
        return self._pass_ms / 1000

    @property
    def percent(self) -> int:
        """Part of the time with work, in percent."""
        return self._duty.percent

    def limit(self, percent: int) -> None:
        """Keep to another part from now on; what is to be paid stays."""
        self._duty.percent = percent

    async def compute(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """The result of a call, made in a thread, whose time counts as work."""
        with self.counted():
            return await asyncio.to_thread(call, *args, **kwargs)

    async def make_pass(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """The same for one pass over samples, whose time tells how long the next one takes."""
        began_ms = self._clock_ms()
        result = await self.compute(call, *args, **kwargs)
        self._pass_ms = self._clock_ms() - began_ms
        return result

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The time in here counts as work."""
        began_ms = self._clock_ms()
        try:
            yield
        finally:
            self._duty.worked(began_ms, self._clock_ms())

    async def rest(self, left_ms: float) -> bool:
        """Rest as long as the work so far asks for, but no longer than is left until the bell;
        returns whether another pass may begin.
        """
        rest_ms = self._duty.rest_ms(self._clock_ms())
        if rest_ms <= 0:
            return True
        if rest_ms + self._pass_ms <= left_ms:
            await asyncio.sleep(rest_ms / 1000)
            return True
        await asyncio.sleep(max(0.0, min(rest_ms, left_ms)) / 1000)
        return False
