"""Time that passes only while every task waits: hours of links in milliseconds, reproducible.

    virtually(main())      run a coroutine to its end in a loop of its own; `loop_ms()` is its clock
    @in_virtual_time       the same for a whole test

For code without threads and sockets: nothing from outside can arrive while time leaps. Code that
has work done by threads may do it at once: `without_threads`.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
T = TypeVar("T")


class _Leaping(selectors.SelectSelector):
    """Returns at once; the time that it was to wait has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout != 0:
            assert timeout is not None, "every task waits for another one, and none for a time"
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time leaps to the next timer."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


def virtually(main: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, run in virtual time that begins at 0; tasks that it leaves are
    cancelled.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine function, as one that runs in virtual time."""

    @functools.wraps(test)
    def run(*arguments: P.args, **fixtures: P.kwargs) -> None:
        virtually(test(*arguments, **fixtures))

    return run


def without_threads(patch: pytest.MonkeyPatch) -> None:
    """Let `asyncio.to_thread` do its work at once."""

    async def at_once(work: Callable[..., T], *arguments: object) -> T:
        return work(*arguments)

    patch.setattr(asyncio, "to_thread", at_once)


def loop_ms() -> int:
    """The time of the running loop, as a link's clock."""
    return int(1000 * asyncio.get_running_loop().time() + 1e-6)
