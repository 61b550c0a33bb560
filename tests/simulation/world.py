"""A world in one thread: a clock that jumps from action to action, and processes that are killed
between two of them.

`World` is an asyncio event loop. The product's own coroutines run on it unchanged, but nothing ever
waits: when no action is due, the clock jumps to the next timer. Everything random is drawn from one
`random.Random(seed)`, actions of one instant run in the order in which they were planned, tasks
have an order of their own (asyncio keeps them in sets): a seed is a history.

    Process     everything that was started in its context: tasks, timers, work in threads. `kill`
                stops all of it between two actions, for ever, without a `finally`, as SIGKILL
                does. `stop` and `resume` are SIGSTOP and SIGCONT.
    a thread    (`asyncio.to_thread`) runs in one action, some moments after it was asked for; its
                end is told when the time that it claims to have taken (`Process.busy`) is over.
    Killed      raised by a disk in the middle of a write: the process dies there.
"""

import asyncio
import hashlib
import heapq
import random
import re
from ast import literal_eval
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any

MICRO = 1_000_000

ACTIONS_PER_INSTANT_MAX = 50_000
"""More than this at one instant is a loop in which time stands still."""

CANCELS_MAX = 10
"""Times that a task is cancelled when the world ends."""

THREAD_MS = (0, 0, 0, 1, 1, 2, 5)
"""Times to hand work to a thread, and to hear of its end: one of them is drawn."""


class Killed(BaseException):
    """The running process died in this instruction."""


class Process:
    """One life of one program: everything that runs in `context`."""

    def __init__(
        self, name: str, clock_offset_us: int = 0, drift_ppm: int = 0, wall_offset_us: int = 0
    ) -> None:
        self.name = name
        self.state = "runs"
        self.steps_left: int | None = None
        self.on_death: Callable[[], None] = lambda: None
        self.clock_offset_us, self.drift_ppm, self.wall_offset_us = (
            clock_offset_us,
            drift_ppm,
            wall_offset_us,
        )
        self.parked: list[Handle] = []
        self._busy_us = 0
        self.context = Context()
        self.context.run(PROCESS.set, self)

    @property
    def runs(self) -> bool:
        """Neither killed nor stopped."""
        return self.state == "runs"

    def busy(self, milliseconds: float) -> None:
        """The work in a thread takes this time, for which the process's clock goes on."""
        self._busy_us += int(milliseconds * 1000)

    def rested_us(self) -> int:
        """Return the time for which the thread was busy, and forget it."""
        busy_us, self._busy_us = self._busy_us, 0
        return busy_us

    def monotonic_us(self, world_us: int) -> int:
        """The monotonic clock of this process's machine."""
        return self.clock_offset_us + (world_us + self._busy_us) * (MICRO + self.drift_ppm) // MICRO

    def kill(self) -> None:
        """SIGKILL."""
        if self.state != "dead":
            self.state = "dead"
            self.on_death()

    def stop(self) -> None:
        """SIGSTOP."""
        if self.state == "runs":
            self.state = "stopped"

    def resume(self, world: "World") -> None:
        """SIGCONT: actions that were due meanwhile happen now, in their order."""
        if self.state == "stopped":
            self.state = "runs"
            world.queue(self.parked)
            self.parked = []

    def bury(self, world: "World") -> None:
        """The world is over: let the remaining actions happen."""
        self.state, self.steps_left, self.on_death = "runs", None, lambda: None
        world.queue(self.parked)
        self.parked = []


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that the running code belongs to; None: the world itself."""


_NOBODY = Context()


class Handle:
    """A planned action, as asyncio knows it."""

    __slots__ = ("_when", "args", "callback", "context", "process", "stopped")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.callback, self.args = callback, args
        self.context = copy_context() if context is None else context
        self.process = self.context.get(PROCESS)
        self.stopped = False
        self._when = 0.0

    def plan(self, when: float) -> None:
        """Set the time that it is planned for."""
        self._when = when

    def cancel(self) -> None:
        self.stopped = True

    def cancelled(self) -> bool:
        return self.stopped

    def when(self) -> float:
        """The time that it is planned for, in seconds of the loop's clock."""
        return self._when


class Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address in memory."""

    _serials = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.serial = next(self._serials)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.serial

    def __eq__(self, other: object) -> bool:
        return self is other


_LONG = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b|(b'(?:[^'\\]|\\.)*'|b\"(?:[^\"\\]|\\.)*\")")


def _shortened(line: str) -> str:
    """Ids and digests by their first eight characters."""
    return _LONG.sub(lambda found: found[1] or literal_eval(found[2]).hex()[:8], line)


class World(asyncio.AbstractEventLoop):
    """The loop, the only source of randomness, and the history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_us = 1_000 * MICRO
        self.over = False
        self.processes: list[Process] = []
        self.actions = 0
        self._tasks: set[Task] = set()
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._sequence = count()
        self._log: list[tuple[int, str, tuple[Any, ...]]] = []

    # ---- history

    @property
    def now_ms(self) -> int:
        """The true time, which no process sees."""
        return self.now_us // 1000

    def say(self, text: str, *arguments: Any) -> None:
        """Write a line of history; `%s` in the text stand for the arguments, which must be
        frozen.
        """
        self._log.append((self.now_us, text, arguments))

    def history(self, last: int = 0) -> list[str]:
        """The newest lines, all by default: milliseconds since the beginning, and the event."""
        return [
            f"{at // 1000 - 1_000_000:>8} {_shortened(text % arguments)}"
            for at, text, arguments in self._log[-last:]
        ]

    def fingerprint(self) -> str:
        """A hash of the whole history, which depends on the seed alone."""
        hasher = hashlib.sha256()
        for at_us, text, arguments in self._log:
            hasher.update(f"{at_us} {text % arguments}\n".encode())
        return hasher.hexdigest()[:16]

    # ---- running

    def run_until(self, done: Callable[[], bool], limit_ms: int) -> bool:
        """Let actions happen until `done()`, which is asked each time before time passes, or until
        the clock would pass `limit_ms`.

        Returns whether it is done.
        """
        asyncio._set_running_loop(self)
        try:
            at_once = 0
            while True:
                while self._ready:
                    self._act(self._ready.popleft())
                    at_once += 1
                    if at_once > ACTIONS_PER_INSTANT_MAX:
                        raise RuntimeError(
                            f"time stands still: {at_once} actions at {self.now_ms} ms"
                        )
                if done():
                    return True
                if not self._timers or self._timers[0][0] > 1000 * limit_ms:
                    return False
                at_us, _, handle = heapq.heappop(self._timers)
                at_once = 0 if at_us > self.now_us else at_once
                self.now_us = max(self.now_us, at_us)
                self._ready.append(handle)
        finally:
            asyncio._set_running_loop(None)

    def _act(self, handle: Handle) -> None:
        process = handle.process
        if handle.stopped:
            return
        if process is not None:
            if process.state != "runs":
                process.parked.append(handle)
                return
            if process.steps_left is not None:
                process.steps_left -= 1
                if process.steps_left < 0:
                    process.parked.append(handle)
                    process.kill()
                    return
        self.actions += 1
        try:
            handle.context.run(handle.callback, *handle.args)
        except Killed:
            assert process is not None, "only a process can be killed"
            process.kill()
        except Exception:
            if not self.over:
                raise

    def end(self) -> None:
        """Cancel all tasks and let them end, so that none is left to the garbage collector."""
        self.over = True
        for _ in range(CANCELS_MAX):  # one that waits for another to end swallows the first
            for task in sorted(self._tasks, key=lambda task: task.serial):
                task.cancel()
            for process in self.processes:
                process.bury(self)
            if self.run_until(lambda: not self._tasks, self.now_ms + 60_000):
                return

    def queue(self, handles: list[Handle]) -> None:
        """Let these actions happen now."""
        self._ready.extend(handles)

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self.now_us / MICRO

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._plan(
            self.now_us + max(0, round(delay * MICRO)), Handle(callback, args, context)
        )

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self._plan(round(when * MICRO), Handle(callback, args, context))

    def _plan(self, at_us: int, handle: Handle) -> Handle:
        handle.plan(at_us / MICRO)
        heapq.heappush(self._timers, (at_us, next(self._sequence), handle))
        return handle

    def after(self, milliseconds: float, action: Callable[[], Any]) -> None:
        """Plan an action of the world itself."""
        self.at(self.now_us + int(1000 * milliseconds), action)

    def at(self, instant_us: int, action: Callable[[], Any]) -> None:
        """The same for an instant; of one instant, those that were planned first come first."""
        self._plan(instant_us, Handle(action, (), _NOBODY))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> Any:
        task = Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=_NOBODY)
        return task

    def start(self, process: Process, main: Coroutine[Any, Any, Any]) -> Task:
        """Run a program's main coroutine as a process of this world."""
        self.processes.append(process)
        task: Task = self.create_task(main, context=process.context)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future, process = self.create_future(), PROCESS.get()

        def begin() -> None:
            try:
                outcome = func(*args), None
            except Exception as error:
                outcome = None, error
            took_us = process.rested_us() if process else 0
            self.call_later(
                (took_us + 1000 * self.random.choice(THREAD_MS)) / MICRO, deliver, *outcome
            )

        def deliver(result: Any, error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        self.call_later(self.random.choice(THREAD_MS) / 1000, begin)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore an error that no task took: its process is gone by then, or the world is over."""
