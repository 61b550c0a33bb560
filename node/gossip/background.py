"""Background tasks of one swarm: the first that dies ends every wait, with its exception.

A task that died unseen would leave others waiting for ever.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from protocol.errors import LockstepError

log = logging.getLogger(__name__)


class Background:
    """Tasks that run beside the trainer. All methods belong to one event loop.

    `on_death()` is called when a task has died.
    """

    def __init__(self, on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()
        self._died = asyncio.Event()
        self._failure: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that `stop` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def spawn_write(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that writes to the disk: `stop` lets it end."""
        task = self.spawn(work)
        self._writes.add(task)
        return task

    async def stop(self) -> None:
        """Cancel what may be cancelled, and wait until all tasks have ended."""
        cancelled = self._tasks - self._writes
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, *self._writes, return_exceptions=True)

    def check(self) -> None:
        """Raise the exception of a task that has died, if there is one."""
        if self._failure is not None:
            raise self._failure

    async def failed(self) -> None:
        """Wait until a task dies, and raise its exception."""
        await self._died.wait()
        self.check()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            bug = None if isinstance(error, LockstepError) else error  # a full disk is none
            log.error("a background task died", extra={"error": str(error)}, exc_info=bug)
            self._failure = self._failure or error
            self._died.set()
            self._on_death()
