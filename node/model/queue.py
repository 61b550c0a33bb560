"""The passes that a device was given and has not ended yet.

    host      give 1 | give 2 | waits for 1 | gives 3 | waits for 2 | ...
    device           1 ---------------------| 2 ----------------| 3 ------
    thread    fetches batch 2, copies it into pinned memory | batch 3 | ...

A processor makes a pass when it is told to. A card takes its kernels one by one, and waits for the
host's next word whenever it is quicker than that. So it is given a pass while it makes the one in
front, and it never waits. How far it is, it tells by events that it records between kernels; so the
bell is judged by the time at which the next pass would begin.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

BEHIND_MAX = 1
"""Passes that are not ended when the host goes on: with the next one there are two."""


class Event(Protocol):
    """A mark among the kernels that a device was given, as torch's events are."""

    def record(self) -> None:
        """Put it behind what was given so far."""

    def query(self) -> bool:
        """Whether the device is past it."""

    def synchronize(self) -> None:
        """Wait until the device is past it."""

    def elapsed_time(self, end_event: Self, /) -> float:
        """Milliseconds of the device from this one to a later one, both of them past."""


class MadePass(NamedTuple):
    """A pass that has ended."""

    samples: int
    seconds: float


class PassQueue(Protocol):
    """How passes are given to a device."""

    is_behind: bool
    """Whether the host goes on before the device has made a pass."""
    newest: MadePass | None
    """The newest pass that ended, where the device tells its time."""

    def given(self, samples: int) -> contextlib.AbstractContextManager[None]:
        """Give the device a pass of these samples in the block."""

    def ahead_s(self) -> float:
        """Seconds until the device has made what it was given."""

    def wait(self) -> None:
        """Wait until the device has made what it was given."""

    def fetched(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, for this device."""


class AtOnce:
    """A processor: it has made a pass when it was given one."""

    is_behind = False
    newest: MadePass | None = None

    def given(self, samples: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def ahead_s(self) -> float:
        return 0.0

    def wait(self) -> None:
        """There is nothing to wait for."""

    def fetched(self, batches: Iterable[Any]) -> Iterator[Any]:
        return iter(batches)


class _Given(NamedTuple):
    samples: int
    start: Event
    end: Event


class Behind:
    """A device that makes passes while the host goes on. It makes `event`s; `pinned` copies tokens
    to where it fetches them from by itself.
    """

    is_behind = True

    def __init__(
        self,
        event: Callable[[], Event],
        pinned: Callable[[Tensor], Tensor],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event, self._pinned, self._clock_s = event, pinned, clock_s
        self._given: deque[_Given] = deque()
        self._began_s = 0.0
        """When the oldest of these was begun, as far as the host has seen."""
        self.newest: MadePass | None = None

    @contextlib.contextmanager
    def given(self, samples: int) -> Iterator[None]:
        """Give the device a pass, and wait until it has made all but this one: the first one too,
        as nothing is known of its time.
        """
        start, end = self._event(), self._event()
        start.record()
        yield
        end.record()
        if not self._given:
            self._began_s = self._clock_s()
        self._given.append(_Given(samples, start, end))
        while len(self._given) > (BEHIND_MAX if self.newest else 0):
            self._end_oldest()

    def ahead_s(self) -> float:
        while self._given and self._given[0].end.query():
            self._end_oldest()
        if not self._given or self.newest is None:
            return 0.0
        sample_s = self.newest.seconds / self.newest.samples
        whole_s = sample_s * sum(each.samples for each in self._given)
        return max(0.0, whole_s - (self._clock_s() - self._began_s))

    def wait(self) -> None:
        while self._given:
            self._end_oldest()

    def fetched(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Each batch pinned, and fetched by a thread while the one in front is used."""
        source = iter(batches)

        def fetch() -> Tensor | None:
            batch = next(source, None)
            return None if batch is None else self._pinned(torch.as_tensor(batch))

        thread = ThreadPoolExecutor(1, thread_name_prefix="samples")
        try:
            coming = thread.submit(fetch)
            while (batch := coming.result()) is not None:
                coming = thread.submit(fetch)
                yield batch
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _end_oldest(self) -> None:
        oldest = self._given.popleft()
        oldest.end.synchronize()
        self._began_s = self._clock_s()
        self.newest = MadePass(oldest.samples, oldest.start.elapsed_time(oldest.end) / 1000)


def queue_of(device: torch.device) -> PassQueue:
    """The queue of a device."""
    if device.type != "cuda":
        return AtOnce()
    return Behind(lambda: torch.Event(device, enable_timing=True), Tensor.pin_memory)
