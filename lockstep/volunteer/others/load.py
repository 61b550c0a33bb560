"""The load that other programs put on this machine.

    CPU   busy time of all cores (/proc/stat) less that of this process and its descendants
    GPU   utilisation of each process by NVML, where the package pynvml is installed

What happens between two looks counts. Another node on the machine is another program.
"""

import contextlib
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from lockstep.service.overhead import ProcessTree

PROC = Path("/proc")

UNKNOWN = (
    "other_load: expected a system that tells what other programs use (/proc/stat, as on Linux), "
    "found none; leave --other-load out and name --hours"
)
"""The refusal where nothing tells."""

_NOT_BUSY = (3, 4, 7)
"""Fields of /proc/stat that are no work of this machine: idle, waiting for disks, stolen."""

_FIELDS = 8
"""Fields that add up to all time; those of guests, which follow, are in them already."""


MACHINE_NAMESPACE = "pid:[4026531836]"
"""The namespace of process numbers in which Linux itself counts, the same on every machine."""


def _namespace() -> str:
    """The namespace of this process's numbers; empty where there are none."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def is_known(proc: Path = PROC) -> bool:
    """Whether the system tells what the cores do."""
    return (proc / "stat").is_file()


class CpuLoad:
    """Part of all cores that others use."""

    def __init__(self, tree: ProcessTree, proc: Path = PROC) -> None:
        self._tree, self._proc = tree, proc
        self._before: tuple[int, int, int] | None = None

    def percent(self) -> float | None:
        """Percent of all cores since the last call; None at the first, and where nothing tells."""
        try:
            now = (*self._machine(), self._own())
        except (OSError, ValueError, IndexError):
            self._before = None
            return None
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None
        total, busy, own = (new - old for new, old in zip(now, before, strict=True))
        return min(100.0, max(0.0, 100 * (busy - own) / total))

    def _machine(self) -> tuple[int, int]:
        """Ticks of all cores: in all, and busy ones."""
        words = (self._proc / "stat").read_text(encoding="ascii").partition("\n")[0].split()
        ticks = [int(word) for word in words[1 : _FIELDS + 1]]
        return sum(ticks), sum(n for field, n in enumerate(ticks) if field not in _NOT_BUSY)

    def _own(self) -> int:
        """Ticks of this process and its descendants, those that have ended included."""
        return sum(self._ticks(pid) for pid in self._tree.pids())

    def _ticks(self, pid: int) -> int:
        with contextlib.suppress(OSError):
            words = (self._proc / str(pid) / "stat").read_text(errors="replace")
            return sum(map(int, words.rpartition(")")[2].split()[11:15]))
        return 0  # it has just ended: its parent's figures hold it


class GpuLoad:
    """Part of the GPU that others use most."""

    def __init__(self, nvml: Any, tree: ProcessTree) -> None:
        """`nvml` is the module pynvml; raises its NVMLError where there is no driver."""
        self._nvml, self._tree = nvml, tree
        self._seen_us: dict[int, int] = {}
        nvml.nvmlInit()

    def percent(self) -> float | None:
        """Percent since the last call; None where the driver does not tell."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
            return max((self._used_by_others(index) for index in range(count)), default=None)
        except (self._nvml.NVMLError, OSError):
            return None

    def _used_by_others(self, index: int) -> float:
        nvml, own = self._nvml, self._tree.pids()
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us.get(index, 0))
        except nvml.NVMLError_NotFound:
            return 0.0  # nobody has used it since
        samples = sorted(samples, key=lambda each: int(each.timeStamp))
        if samples:
            self._seen_us[index] = int(samples[-1].timeStamp)
        newest = {int(each.pid): int(each.smUtil) for each in samples}
        return float(min(100, sum(used for pid, used in newest.items() if pid not in own)))


def gpu_load(
    tree: ProcessTree,
    load_module: Callable[[str], Any] = import_module,
    namespace: Callable[[], str] = _namespace,
) -> Callable[[], float | None]:
    """Reads the GPUs, where pynvml is installed and finds a driver whose process numbers are ours;
    else returns None for ever.
    """
    if namespace() not in ("", MACHINE_NAMESPACE):
        return lambda: None  # in a container this node would take itself for another program
    try:
        nvml = load_module("pynvml")
    except ImportError:
        return lambda: None
    try:
        return GpuLoad(nvml, tree).percent
    except nvml.NVMLError:
        return lambda: None
