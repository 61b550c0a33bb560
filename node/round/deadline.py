"""How long a node waits for others: for ever while it takes part, and only until some moment once
it is to end.

A node that ends early loses nothing: where it stands is saved, and so is what it sent and was not
yet told the fate of.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_Awaited = TypeVar("_Awaited")

FINISHED_S = 60.0
"""At the end of a run every payload may take so long, if rounds may not take longer: who has it may
be gone."""

AWAY_S = 5.0
"""A node that leaves waits so long for a coordinator that is away: its words are in the log another
time."""


class DeadlinePassedError(Exception):
    """What was waited for did not come in the time that was left."""


class Deadline:
    """Waits, one at a time, that can be given a limit from outside, also while one is going on."""

    def __init__(self) -> None:
        self._until_s: float | None = None
        self._waiting: asyncio.Timeout | None = None

    def limit(self, seconds: float) -> None:
        """Every wait, the one going on too, ends so many seconds from now at the latest. The newest
        limit holds.
        """
        self._until_s = asyncio.get_running_loop().time() + seconds
        if self._waiting and not self._waiting.expired():
            self._waiting.reschedule(self._until_s)

    async def wait(self, awaited: Awaitable[_Awaited]) -> _Awaited:
        """What is waited for; it is cancelled, and `DeadlinePassedError` raised, when the time is
        up.
        """
        try:
            async with asyncio.timeout_at(self._until_s) as self._waiting:
                return await awaited
        except TimeoutError:
            if self._waiting and self._waiting.expired():
                raise DeadlinePassedError from None
            raise
        finally:
            self._waiting = None
