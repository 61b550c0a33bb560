"""Chooses the device that this machine computes on."""

import os
import platform
from collections import Counter
from pathlib import Path

import torch

from protocol.errors import SettingsError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def choose_devices(wanted: str) -> tuple[torch.device, ...]:
    """The devices of a list with commas, the first for the parameters; "all" takes every CUDA
    device, else the CPU.

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

    Raises `SettingsError` for one that is not there.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SettingsError(
            f"device: expected cpu, cuda, cuda:N or auto, found {wanted!r}"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device: expected cpu, cuda, cuda:N or auto, found {wanted!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(
            f"device: {wanted} asked for, found {torch.cuda.device_count()} CUDA devices"
        )
    return device


def use_threads(threads: int) -> None:
    """Compute with this many CPU threads; 0 leaves the choice to torch."""
    if threads:
        torch.set_num_threads(threads)


def describe(device: torch.device, *others: torch.device) -> str:
    """Devices in words, for tables."""
    if others:
        counts = Counter(describe(each) for each in (device, *others))
        return " + ".join(
            f"{count} x {name}" if count > 1 else name for name, count in counts.items()
        )
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} of {os.cpu_count()} threads"


def free_memory_bytes(device: torch.device) -> int | None:
    """Memory of the device that nobody uses, in bytes; for a CPU, what the machine and the
    container can still give. None where that cannot be told.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [count for count in (_available_bytes(), _container_bytes()) if count is not None]
    return min(found, default=None)


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
