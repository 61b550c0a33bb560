"""When a volunteer's machine may work, and how much: hours, battery, bytes a day, the others on
it, and its share of the machine. Pure: time is an argument.

    HOURS = WINDOW, ...    WINDOW = [DAY[-DAY]] HH:MM-HH:MM    DAY = mon tue wed thu fri sat sun

A window that ends before it begins goes over midnight and belongs to the day on which it begins:
"fri 22:00-06:00" is Friday night.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from lockstep.console import bytes_text
from lockstep.volunteer.others.quiet import QuietLimits
from node.settings import DownloadLimit, DutyCycle, GpuMemory, UploadLimit
from node.system.rate_limit import check_rates
from protocol.errors import SettingsError
from protocol.option import USE, Option, check_bounds, declared

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_WINDOW = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))?\s+)?"
    r"(?P<begin>[0-9]{1,2}:[0-9]{2})-(?P<end>[0-9]{1,2}:[0-9]{2})"
)
_MINUTES_A_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Window:
    """Minutes of a day, on some weekdays (0 is Monday)."""

    days: frozenset[int]
    begin: int
    end: int
    """The first minute that is outside; up to 24:00 of the next day."""

    def holds(self, now: datetime) -> bool:
        """Whether `now` lies in the window."""
        minute = now.hour * 60 + now.minute
        today, yesterday = now.weekday(), (now.weekday() - 1) % 7
        return (today in self.days and self.begin <= minute < self.end) or (
            yesterday in self.days and minute + _MINUTES_A_DAY < self.end
        )


def parse_hours(text: str) -> tuple[Window, ...]:
    """The windows of a text such as "mon-fri 18:00-08:00, sat-sun 00:00-24:00"; `SettingsError` for
    anything else.
    """
    parts = [part.strip().lower() for part in text.split(",")] if text.strip() else []
    return tuple(_window(part, text) for part in parts)


def _window(part: str, text: str) -> Window:
    found = _WINDOW.fullmatch(part)
    if found is None:
        raise _wrong(text, part)
    begin, end = _minute(found["begin"], part, text), _minute(found["end"], part, text)
    if begin in (end, _MINUTES_A_DAY):
        raise _wrong(text, part)
    days = range(7)
    if found["first"]:
        names = found["first"], found["last"] or found["first"]
        if not set(names) <= set(DAYS):
            raise _wrong(text, part)
        first, last = (DAYS.index(name) for name in names)
        days = range(first, last + 1 if last >= first else last + 8)
    ending = end if end > begin else end + _MINUTES_A_DAY
    return Window(frozenset(day % 7 for day in days), begin, ending)


def _minute(clock: str, part: str, text: str) -> int:
    hours, _, minutes = clock.partition(":")
    minute = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or minute > _MINUTES_A_DAY:
        raise _wrong(text, part)
    return minute


def _wrong(text: str, part: str) -> SettingsError:
    return SettingsError(
        "hours: expected windows such as 'mon-fri 18:00-08:00, sat-sun 00:00-24:00', "
        f"found {part[:60]!r} in {text[:200]!r}"
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """The owner's standing wishes."""

    hours: Annotated[
        tuple[Window, ...], Option("WINDOWS", USE, shown="always", reads=parse_hours)
    ] = ()
    """Times of work, such as 'mon-fri 18:00-08:00, sat-sun 00:00-24:00'; '' for always."""

    daily_transfer: Annotated[int, Option("BYTES", USE, least=0, most=10**15)] = 0
    """Limit on the bytes of a day, up and down together, from midnight to midnight; 0: none."""

    on_battery: Annotated[bool, Option("", USE)] = False
    """Work on battery too, in place of resting."""

    others: QuietLimits = field(default_factory=QuietLimits)
    """When the machine counts as free of people and of other programs."""

    duty_cycle: DutyCycle = 100

    gpu_memory: GpuMemory = 100

    upload_limit: UploadLimit = 0

    download_limit: DownloadLimit = 0

    def __post_init__(self) -> None:
        check_bounds(self)
        check_rates(**self.rates)

    @property
    def rates(self) -> dict[str, int]:
        """The limits in bytes per second, as the settings of a node name them."""
        return {"upload_limit": self.upload_limit, "download_limit": self.download_limit}

    @property
    def of_a_node(self) -> dict[str, Any]:
        """The limits that a node keeps by itself, as its settings name them."""
        return {"duty_cycle": self.duty_cycle, "gpu_memory": self.gpu_memory, **self.rates}


def changed(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """The limits with some of them changed, named as the options of `lockstep limit` are.

    Raises `SettingsError` for a name or a value that is none.
    """
    for name, value in changes.items():
        fits = type(value) is {"hours": str, "on_battery": bool}.get(name, int)
        if not fits or name not in {*declared(Limits), *declared(QuietLimits)} - {"others"}:
            raise SettingsError(f"expected a limit and its value, found {name} {value!r:.40}")
        change: dict[str, Any] = {name: parse_hours(value) if name == "hours" else value}
        if name in declared(QuietLimits):
            change = {"others": replace(limits.others, **change)}
        limits = replace(limits, **change)
    return limits


def limits_text(limits: Limits) -> str:
    """The limits that hold, in words; empty where none was chosen."""
    others = limits.others
    words = {
        "own hours": limits.hours,
        f"{bytes_text(limits.daily_transfer)} a day": limits.daily_transfer,
        f"up {bytes_text(limits.upload_limit)}/s": limits.upload_limit,
        f"down {bytes_text(limits.download_limit)}/s": limits.download_limit,
        f"works after {others.when_idle} quiet min": others.when_idle,
        f"other programs up to {others.other_load} %": others.other_load,
        f"duty cycle {limits.duty_cycle} %": limits.duty_cycle < 100,
        f"GPU memory {limits.gpu_memory} %": limits.gpu_memory < 100,
        "works on battery": limits.on_battery,
    }
    return " · ".join(text for text, chosen in words.items() if chosen)


def hold(limits: Limits, now: datetime, moved_bytes: int, on_battery: bool) -> str:
    """The reason why the machine must rest now; empty when it may work. `moved_bytes` is the
    traffic of this day.
    """
    if on_battery and not limits.on_battery:
        return "on battery; goes on with mains power (--on-battery works on)"
    if limits.hours and not any(window.holds(now) for window in limits.hours):
        return f"outside its hours; goes on {_opening(limits.hours, now)}"
    if limits.daily_transfer and moved_bytes >= limits.daily_transfer:
        words = bytes_text(limits.daily_transfer)
        return f"the {words} of this day are used; goes on after midnight"
    return ""


def _opening(hours: tuple[Window, ...], now: datetime) -> str:
    """The next minute at which a window is open, in words."""
    minute = now.replace(second=0, microsecond=0)
    for ahead in range(1, 8 * _MINUTES_A_DAY):
        later = minute + timedelta(minutes=ahead)
        if any(window.holds(later) for window in hours):
            return f"{DAYS[later.weekday()]} {later:%H:%M}"
    return "never"


DURATION_DAYS_MAX = 36_500
"""Longest duration, in days: a hundred years, of which every calendar knows the end."""

_DURATION = re.compile(r"([0-9]{1,12})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Seconds of a text such as 90s, 30m, 2h or 1d; `SettingsError` for anything else."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise SettingsError(f"duration: expected 90s, 30m, 2h or 1d, found {text[:40]!r}")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > DURATION_DAYS_MAX * _SECONDS["d"]:
        raise SettingsError(f"duration: expected at most {DURATION_DAYS_MAX}d, found {text[:40]!r}")
    return float(seconds)
