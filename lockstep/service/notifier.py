"""Tells the operator by a web address or a command of theirs: `--notify URL|COMMAND`.

    http://..., https://...   POST of JSON: run, run_id, kind, text, and text again as `content`,
                              the name that some chats want
    anything else             a command, split as a shell does, with kind and text at its end

One message after the other, each tried `TRIES` times, for `TRY_S` at most; the messages that wait
are bounded. What fails is told once in the log, until a message gets through again. Nothing of this
is in the way of a round.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from coordinator.occasions import Occasion
from protocol.errors import SettingsError

log = logging.getLogger(__name__)

TRY_S = 20.0
"""Longest time of one try."""

TRIES = 3
"""Times that a message is tried."""

PAUSE_S = 10.0
"""Pause before a message is tried again."""

WAITING_MAX = 32
"""Messages that wait; further ones are dropped: they would be old."""

LAST_S = 5.0
"""Time for the messages that wait when the process ends."""


class Notifier:
    """Sends messages to one target. `facts` are sent with each: the run's name and id."""

    def __init__(self, target: str, facts: Mapping[str, str]) -> None:
        self._target, self._facts = target, facts
        self._words = () if _is_url(target) else tuple(_split(target))
        self._waiting: asyncio.Queue[Occasion] = asyncio.Queue(WAITING_MAX)
        self._failed = False

    def tell(self, occasion: Occasion) -> None:
        """Hand over a message; it is dropped where too many wait."""
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(occasion)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Sends what is handed over to the end of the block, and in `LAST_S` what waits then."""
        task = asyncio.create_task(self._send_all())
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._waiting.join()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_all(self) -> None:
        while True:
            occasion = await self._waiting.get()
            await self._send(occasion)
            self._waiting.task_done()

    async def _send(self, occasion: Occasion) -> None:
        failure = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(TRY_S):
                    failure = await self._try(occasion)
            except TimeoutError:
                failure = f"it took longer than {TRY_S:g} s"
            if not failure:
                self._failed = False
                return
        if not self._failed:
            log.warning("notice not sent", extra={"kind": occasion.kind, "reason": failure})
        self._failed = True

    async def _try(self, occasion: Occasion) -> str:
        """Send a message; returns why it failed, empty where it did not."""
        try:
            return await (self._run(occasion) if self._words else self._post(occasion))
        except (OSError, aiohttp.ClientError) as error:
            return f"{type(error).__name__}: {error}"

    async def _post(self, occasion: Occasion) -> str:
        text = f"{self._facts['run']}: {occasion.text}"
        document = {**self._facts, "kind": occasion.kind, "text": text, "content": text}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self._target, json=document, allow_redirects=False) as reply,
        ):
            return "" if reply.ok and reply.status < 300 else f"it answered {reply.status}"

    async def _run(self, occasion: Occasion) -> str:
        text = f"{self._facts['run']}: {occasion.text}"
        nothing = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *self._words,
            occasion.kind,
            text,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
        try:
            code = await process.wait()
        finally:
            _kill(process)
            await process.wait()
        return "" if code == 0 else f"it ended with {code}"


def _kill(process: asyncio.subprocess.Process) -> None:
    """End a command that hangs, and what it has started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _split(target: str) -> list[str]:
    """The words of a command; `SettingsError` for none, and for a program that is not here, because
    an alarm is too late to find that out.
    """
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise SettingsError(f"--notify: expected a URL or a command: {error}") from None
    if not words:
        raise SettingsError("--notify: expected a URL or a command, found nothing")
    if shutil.which(words[0]) is None:
        raise SettingsError(
            f"--notify: expected a URL or a command, found no program {words[0]!r} that may be run"
        )
    return words
