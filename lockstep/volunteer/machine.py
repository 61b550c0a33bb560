"""Facts of a volunteer's machine: its battery, and the bytes of this day."""

import logging
from pathlib import Path

import msgspec

from node.system.files import replacing_file
from protocol.codec.decoding import UNREADABLE
from protocol.errors import ShortageError, StorageError

log = logging.getLogger("lockstep.join")

POWER_SUPPLIES = Path("/sys/class/power_supply")

USAGE_NAME = "usage.json"
"""Name of the file, in the owner's directory, with the traffic of the newest day."""


def on_battery(supplies: Path = POWER_SUPPLIES) -> bool:
    """Whether the machine runs from its battery; False where that cannot be told."""
    kinds = {path: _word(path / "type") for path in sorted(supplies.glob("*"))}
    mains = [path for path, kind in kinds.items() if kind == "Mains"]
    batteries = [
        path
        for path, kind in kinds.items()
        if kind == "Battery" and _word(path / "scope") != "Device"  # that of a mouse
    ]
    if not batteries:
        return False
    if mains:
        return all(_word(path / "online") == "0" for path in mains)
    return any(_word(path / "status") == "Discharging" for path in batteries)


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class _Day(msgspec.Struct):
    day: str = ""
    moved_bytes: int = 0


class DailyUsage:
    """Bytes moved today, over restarts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / USAGE_NAME
        self._seen = 0
        try:
            self._now = msgspec.json.decode(self._path.read_bytes(), type=_Day)
        except (OSError, *UNREADABLE):
            self._now = _Day()

    def add(self, day: str, process_bytes: int) -> int:
        """Takes the bytes that this process has moved in its life; returns those of the day."""
        if day != self._now.day:
            self._now = _Day(day)
        self._now.moved_bytes += max(0, process_bytes - self._seen)
        self._seen = process_bytes
        return self._now.moved_bytes

    def save(self) -> None:
        """Keeps the count over a restart, if the disk takes it: it must not hide how the node
        ended.
        """
        try:
            with replacing_file(self._path) as temporary:
                temporary.write_bytes(msgspec.json.encode(self._now))
        except (ShortageError, StorageError) as error:
            log.warning("the bytes of this day are not kept", extra={"reason": str(error)})
