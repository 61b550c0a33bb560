"""How much memory a piece of work takes at its peak."""

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch


def peak_extra_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """Most memory of the device during `work` above what is held before; None if the system does
    not tell.

    On a CPU it is the process's resident memory, which is watched, because kernels may count their
    own high-water mark only loosely. On a GPU it is what torch's allocator handed out.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - allocated
    try:
        before = _resident_bytes()
    except OSError:
        return None
    with peak_of(_resident_bytes) as peak:
        work()
    return peak.bytes - before


@dataclass(slots=True)
class Peak:
    """The most that was seen; whole once the block has ended."""

    bytes: int


@contextlib.contextmanager
def peak_of(read: Callable[[], int]) -> Iterator[Peak]:
    """The most that `read` returns during the block: a thread reads it every millisecond."""
    peak, done = Peak(read()), threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            peak.bytes = max(peak.bytes, read())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak.bytes = max(peak.bytes, read())


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE
