"""Waits that can be given a limit from outside.

A node that takes part waits for others without a limit. One that is to end waits until some moment
only: it loses nothing, because its state is saved with the payloads that are undecided.

Time is that of the running event loop.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_Awaited = TypeVar("_Awaited")


class DeadlinePassedError(Exception):
    """The result did not come in the time that was left."""


class Deadline:
    """Waits, one at a time; a limit holds for the wait that is going on and for all that follow."""

    def __init__(self) -> None:
        self._until_s: float | None = None
        self._waiting: asyncio.Timeout | None = None

    def limit(self, milliseconds: int) -> None:
        """Every wait ends at most this long from now. The newest limit holds, also when it is
        later.
        """
        self._until_s = asyncio.get_running_loop().time() + milliseconds / 1000
        if self._waiting and not self._waiting.expired():
            self._waiting.reschedule(self._until_s)

    async def wait(self, awaited: Awaitable[_Awaited]) -> _Awaited:
        """The awaited result. When the time is up it is cancelled: `DeadlinePassedError`."""
        try:
            async with asyncio.timeout_at(self._until_s) as self._waiting:
                return await awaited
        except TimeoutError:
            if self._waiting and self._waiting.expired():
                raise DeadlinePassedError from None
            raise
        finally:
            self._waiting = None
