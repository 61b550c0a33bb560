"""Chooses the device that this machine computes on, and tells when it fails.

    a CUDA or HIP error, no GPU any more   it failed: lost, reset, too hot
    out of memory                          it failed: other programs took the memory
    an error about what a program asks     a bug, which another start would only repeat
    anything else                          as it is

A model that is too large for a device is told in `node.model.training`, where passes are tried.
"""

import gc
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from border.memory import give_back_freed_memory
from node.system.hardware import MPS_REFUSAL, Facts, gpu_name
from protocol.errors import DeviceError, SettingsError, first_line

NVIDIA = Path("/proc/driver/nvidia/version")
AMD = Path("/dev/kfd")
"""Files that are there while a driver is loaded."""

_shares = dict[int, float]()
"""Parts of the memory of GPUs that this process may take, where they are limited."""

_FAILED = re.compile(
    r"(CUDA|HIP|MPS|cuDNN|Triton)( driver| unknown| backend)? ([Ee]rror|out of memory)"
    r"|miopenStatus|No (CUDA|HIP) GPUs are available|Unexpected error from \w+GetDeviceCount"
)
"""Beginning of the words of torch, or of a library below it, when a device fails."""

_OWN_FAULT = re.compile(
    r"device-side assert|invalid (?!device context|program counter)|image is invalid"
    r"|no kernel image|unsupported toolchain|symbol not found|not supported|too many resources"
    r"|misaligned|NOT_SUPPORTED|INVALID_VALUE|BAD_PARAM|ARCH_MISMATCH",
)
"""Words of a device about what a program asks of it."""

MEMINFO = Path("/proc/meminfo")
STATUS = Path("/proc/self/status")
CGROUP = Path("/sys/fs/cgroup")


def choose_devices(wanted: str) -> tuple[torch.device, ...]:
    """The devices of a list with commas, one for each rank; "all" takes every CUDA device, else the
    CPU.

    Raises `SettingsError` for one that is not there, or a GPU that is named twice.
    """
    if wanted == "all":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return tuple(torch.device("cuda", each) for each in range(count)) or (torch.device("cpu"),)
    found = tuple(choose_device(each) for each in wanted.split(","))
    cards = [device.index or 0 for device in found if device.type == "cuda"]
    if len(cards) > len(set(cards)):
        raise SettingsError(f"device: expected every GPU once, found {wanted!r}")
    return found


def choose_device(wanted: str) -> torch.device:
    """The device of that name; "auto" takes the first CUDA device, else the CPU.

    Raises `SettingsError` for one that is not there, `DeviceError` where torch could use a GPU and
    finds none.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SettingsError(
            f"device: expected cpu, cuda, cuda:N or auto, found {wanted!r}"
        ) from None
    if device.type == "mps":
        raise SettingsError(f"device: {MPS_REFUSAL}; leave --device out, and the CPU trains")
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device: expected cpu, cuda, cuda:N or auto, found {wanted!r}")
    count = torch.cuda.device_count()
    if device.type == "cuda" and not count and (torch.version.cuda or torch.version.hip):
        raise DeviceError(f"the device failed: {wanted} asked for, and torch finds no GPU")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise SettingsError(f"device: {wanted} asked for, found {count} CUDA devices")
    return device


def device_of_rank(wanted: str, local_rank: int) -> torch.device:
    """The device of a rank, by its number among those of this machine: the one at that place in a
    list, or the card of that number.

    Raises `SettingsError` where there is none.
    """
    if wanted in ("auto", "all", "cuda"):
        if wanted != "cuda" and not torch.cuda.is_available():
            return torch.device("cpu")
        return choose_device(f"cuda:{local_rank}")
    names = wanted.split(",")
    if wanted == "cpu":
        return torch.device("cpu")
    if local_rank >= len(names):
        raise SettingsError(
            f"device: expected one for each rank of a machine, found {wanted!r} and a rank "
            f"{local_rank}"
        )
    return choose_device(names[local_rank])


def device_failure(error: BaseException) -> str:
    """The failure of a device behind an error, in torch's words; empty for any other error."""
    if not isinstance(error, RuntimeError):
        return ""
    words = first_line(error)
    if isinstance(error, torch.OutOfMemoryError):
        return words
    if not isinstance(error, torch.AcceleratorError) and not _FAILED.match(words):
        return ""
    return "" if _OWN_FAULT.search(words) else words


@contextmanager
def device_errors() -> Iterator[None]:
    """Raises `DeviceError` for the failure of a device in the block; other errors stay."""
    try:
        yield
    except RuntimeError as error:
        if words := device_failure(error):
            raise DeviceError(f"the device failed: {words}") from error
        raise


def use_threads(threads: int) -> None:
    """Compute with this many CPU threads; 0 leaves the choice to torch."""
    if threads:
        torch.set_num_threads(threads)


@contextmanager
def with_threads(threads: int) -> Iterator[None]:
    """Compute with this many CPU threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit_memory(device: torch.device, percent: int) -> None:
    """Take at most this part of a GPU's memory; a pass that does not fit it is out of memory, and
    made with fewer samples. `SettingsError` for a device that is no GPU.
    """
    if percent < 100 and device.type != "cuda":
        raise SettingsError(
            f"gpu_memory: expected a GPU of CUDA or ROCm, found {device}; leave --gpu-memory out, "
            "or name a GPU with --device"
        )
    if device.type == "cuda" and percent / 100 != memory_share(device):
        torch.cuda.set_per_process_memory_fraction(percent / 100, device)
        _shares[device.index or 0] = percent / 100


def memory_share(device: torch.device) -> float:
    """Part of a GPU's memory that this process may take."""
    return _shares.get(device.index or 0, 1.0)


def crowded(device: torch.device) -> bool:
    """Whether other programs hold more of a GPU's memory than this process, which has no limit of
    its own there.
    """
    if device.type != "cuda" or memory_share(device) < 1.0:
        return False
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    return int(total) - int(free) - own > own


def gpu_memory_bytes(device: torch.device) -> int:
    """Memory of a GPU that this process may take, in bytes."""
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total * memory_share(device))


def facts() -> Facts:
    """The facts that torch and the drivers tell of this machine's GPUs."""
    return Facts(
        cuda=torch.version.cuda or "",
        hip=torch.version.hip or "",
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        mps=torch.backends.mps.is_available(),
        nvidia=NVIDIA.exists(),
        amd=AMD.exists(),
    )


def describe(device: torch.device, *others: torch.device) -> str:
    """Devices in words, for tables."""
    if others:
        return in_sum(describe(each) for each in (device, *others))
    if device.type == "cuda":
        return gpu_name(torch.cuda.get_device_name(device), facts())
    return f"{platform.machine()} CPU, {torch.get_num_threads()} of {os.cpu_count()} threads"


def in_sum(names: Iterable[str]) -> str:
    """Devices that are named one by one, in a few words."""
    counts = Counter(names)
    return " + ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())


def free_memory_bytes(device: torch.device) -> int | None:
    """Memory of the device that nobody uses, in bytes; for a CPU, what the machine and the
    container can still give. None where that cannot be told.
    """
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
        if memory_share(device) == 1.0:
            return free
        own = gpu_memory_bytes(device) - torch.cuda.memory_reserved(device)
        return max(0, min(free, own))
    found = [count for count in (_available_bytes(), _container_bytes()) if count is not None]
    return min(found, default=None)


def held_bytes_max(device: torch.device) -> int:
    """Most memory of a device that this process has held, in bytes; 0 where that cannot be told."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_bytes("VmHWM")


def resident_bytes(field: str) -> int:
    """Memory of this process, VmRSS now or VmHWM at its peak; 0 where that cannot be told."""
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    rows = (line.split() for line in lines if line.startswith(f"{field}:"))
    return next((1024 * int(row[1]) for row in rows), 0)


def give_back_memory() -> None:
    """Return what this process has freed, of its own memory and the GPUs', to the system."""
    gc.collect()
    give_back_freed_memory()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _available_bytes() -> int | None:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines)
    return next((1024 * int(row[1]) for row in fields if row[0] == "MemAvailable:"), None)


def _container_bytes() -> int | None:
    try:
        most, used = (
            (CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current")
        )
    except OSError:
        return None
    return max(0, int(most) - int(used)) if most.isdecimal() else None
