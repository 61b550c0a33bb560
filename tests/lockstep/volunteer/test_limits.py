"""When a volunteer's machine may work."""

from datetime import datetime

import pytest

from lockstep.volunteer.limits import (
    Limits,
    changed,
    hold,
    limits_text,
    parse_duration,
    parse_hours,
)
from lockstep.volunteer.others.quiet import QuietLimits
from protocol.errors import SettingsError

MONDAY = datetime(2026, 11, 23)


def at(weekday: int, clock: str) -> datetime:
    hour, minute = map(int, clock.split(":"))
    return MONDAY.replace(day=MONDAY.day + weekday, hour=hour, minute=minute)


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("08:00-18:00", [(0, "08:00"), (6, "17:59")], [(0, "07:59"), (0, "18:00")]),
        ("22:00-06:00", [(0, "23:00"), (1, "05:59"), (0, "00:00")], [(0, "06:00"), (3, "21:59")]),
        ("fri 22:00-06:00", [(4, "22:00"), (5, "05:00")], [(4, "05:00"), (5, "22:00")]),
        ("sat-sun 00:00-24:00", [(5, "00:00"), (6, "23:59")], [(0, "00:00"), (4, "23:59")]),
        ("sun-mon 12:00-13:00", [(6, "12:30"), (0, "12:30")], [(1, "12:30")]),
        ("mon 1:00-2:00, tue 3:00-4:00", [(0, "01:30"), (1, "03:30")], [(1, "01:30")]),
    ],
)
def test_a_machine_works_in_its_hours_only(
    hours: str, inside: list[tuple[int, str]], outside: list[tuple[int, str]]
) -> None:
    limits = Limits(parse_hours(hours))
    assert not any(hold(limits, at(*when), 0, on_battery=False) for when in inside)
    for when in outside:
        assert hold(limits, at(*when), 0, on_battery=False).startswith("outside its hours")


def test_the_reason_names_the_time_at_which_it_goes_on() -> None:
    limits = Limits(parse_hours("fri 22:00-06:00"))
    assert hold(limits, at(0, "12:00"), 0, on_battery=False) == (
        "outside its hours; goes on fri 22:00"
    )


@pytest.mark.parametrize(
    "text", ["18-20", "08:00", "25:00-26:00", "08:61-09:00", "abc 08:00-09:00", "08:00-08:00", ","]
)
def test_hours_that_are_none_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match="hours: expected windows such as 'mon-fri"):
        parse_hours(text)


def test_no_hours_are_all_hours() -> None:
    assert parse_hours(" ") == ()


def test_on_battery_a_machine_rests_unless_told_otherwise() -> None:
    noon = at(0, "12:00")
    assert "on battery" in hold(Limits(), noon, 0, on_battery=True)
    assert hold(Limits(on_battery=True), noon, 0, on_battery=True) == ""


def test_the_bytes_of_a_day_are_limited() -> None:
    limits, noon = Limits(daily_transfer=1000), at(0, "12:00")
    assert hold(limits, noon, 999, on_battery=False) == ""
    assert hold(limits, noon, 1000, on_battery=False) == (
        "the 1 kB of this day are used; goes on after midnight"
    )


def test_durations_have_a_unit() -> None:
    assert [parse_duration(text) for text in ("90s", "30m", "2H", "1d")] == [90, 1800, 7200, 86400]
    for text in ("90", "m", "0s", "-1h", "1w"):
        with pytest.raises(SettingsError, match="expected 90s, 30m, 2h or 1d"):
            parse_duration(text)


@pytest.mark.parametrize("text", ["36501d", "999999999999d", "9" * 5000 + "s"])
def test_a_duration_has_an_end_that_calendars_know(text: str) -> None:
    assert parse_duration("36500d") == 100 * 365 * 86400
    with pytest.raises(SettingsError, match=r"expected at most 36500d|expected 90s"):
        parse_duration(text)


def test_limits_are_changed_by_name_and_said_in_words() -> None:
    limits = changed(
        Limits(),
        {
            "hours": "08:00-18:00",
            "daily_transfer": 2 * 10**9,
            "on_battery": True,
            "when_idle": 5,
            "other_load": 25,
            "duty_cycle": 50,
            "gpu_memory": 40,
            "upload_limit": 50_000,
            "download_limit": 10**6,
        },
    )
    assert limits == Limits(
        parse_hours("08:00-18:00"), 2 * 10**9, True, QuietLimits(5, 25), 50, 40, 50_000, 10**6
    )
    assert limits_text(limits) == (
        "own hours · 2 GB a day · up 50 kB/s · down 1 MB/s · works after 5 quiet min · "
        "other programs up to 25 % · duty cycle 50 % · GPU memory 40 % · works on battery"
    )
    assert limits_text(Limits()) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duty_cycle": 0}, "duty_cycle: expected 1 to 100, found 0"),
        ({"gpu_memory": 101}, "gpu_memory: expected 1 to 100, found 101"),
        ({"other_load": -1}, "other_load: expected 0 to 100, found -1"),
        ({"when_idle": 10**6}, "when_idle: expected 0 to 1440, found 1000000"),
        ({"when_idle": True}, "expected a limit and its value, found when_idle True"),
        ({"daily_transfer": "much"}, "expected a limit and its value, found daily_transfer 'much'"),
        ({"upload_limit": 5}, "upload_limit: expected 0 or at least 20000 bytes per second, found"),
        ({"download_limit": -1}, "download_limit: expected 0 to 1000000000000, found -1"),
        ({"colour": 3}, "expected a limit and its value, found colour 3"),
    ],
)
def test_a_limit_that_is_none_is_refused(changes: dict[str, int | str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        changed(Limits(), changes)
