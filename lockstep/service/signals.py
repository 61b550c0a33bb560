"""Runs one asynchronous process to its end: event loop, signals, and a parent to follow.

    first SIGINT or SIGTERM    `leave()` is called: the work finishes its round, then ends as usual
    SIGHUP (terminal closed)   the same; the second of the two that a process may get is no wish
    second signal              everything is cancelled now: `StoppedError`, exit code 130
    parent gone                with `follow_parent`, the end of standard input counts as a signal

With `follow_parent` a cluster on one machine leaves no orphans: when the command that started it
dies, even by SIGKILL, the kernel closes the pipe.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lockstep.exit_codes import StoppedError
from lockstep.streams import unneeded_output

_Result = TypeVar("_Result")
log = logging.getLogger(__name__)

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

_ENDING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def run_event_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine on uvloop, or on asyncio's own loop where there is no uvloop (Windows). What
    it shows meanwhile is no result: it works on where that cannot be written.
    """
    with unneeded_output():
        try:
            import uvloop
        except ModuleNotFoundError:
            return asyncio.run(main)
        return uvloop.run(main)


async def until_stopped(
    work: Awaitable[_Result], leave: Callable[[], None], *, follow_parent: bool = False
) -> _Result:
    """Awaits `work` and returns its result; the first signal calls `leave`.

    Raises `StoppedError` when the work was cancelled on request: by a second signal, or by `leave`
    itself.
    """
    task = asyncio.ensure_future(work)
    stopping = _Stopping(task, leave)
    loop = asyncio.get_running_loop()
    handled = [number for number in SIGNALS if not _left_to_nohup(number)]
    before = {number: signal.getsignal(number) for number in handled}
    for number in handled:
        loop.add_signal_handler(number, stopping.signalled, number)
    if follow_parent:
        loop.add_reader(sys.stdin.fileno(), stopping.standard_input_readable)
    try:
        return await task
    except asyncio.CancelledError:
        if not stopping.asked:
            raise
        raise StoppedError("stopped before the work was done") from None
    finally:
        if follow_parent:
            loop.remove_reader(sys.stdin.fileno())
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


class _Stopping:
    """Counts requests to stop: the first calls `leave`, the second cancels."""

    def __init__(self, task: "asyncio.Future[Any]", leave: Callable[[], None]) -> None:
        self.asked = False
        self._task = task
        self._leave = leave

    def signalled(self, number: signal.Signals) -> None:
        if number.name == "SIGHUP" and self.asked:  # the shell and the kernel both send one
            return
        if self.asked:
            self._task.cancel()
            return
        self._ask(number.name, "the same signal once more stops at once")

    def standard_input_readable(self) -> None:
        if os.read(sys.stdin.fileno(), 4096):
            return
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if not self.asked:
            self._ask("end of standard input", "the command that started this process is gone")

    def _ask(self, cause: str, note: str) -> None:
        self.asked = True
        log.info("finishing", extra={"cause": cause, "note": note})
        self._leave()


def _left_to_nohup(number: signal.Signals) -> bool:
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, and SIGHUP when a terminal closes, end the block as Ctrl-C does: in order, once.

    For commands without an event loop. Further such signals are ignored while the block ends; one
    that this process ignores already (SIGHUP under `nohup`) stays ignored.
    """

    def interrupt(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {
        number: handler
        for number in _ENDING_SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
