"""A machine tells whether it runs from its battery, and what it moved today."""

from pathlib import Path

import pytest

from lockstep.volunteer.machine import DailyUsage, on_battery


def supplies(place: Path, **of: dict[str, str]) -> Path:
    for name, files in of.items():
        (place / name).mkdir(parents=True)
        for file, text in files.items():
            (place / name / file).write_text(text + "\n")
    return place


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({}, False),
        ({"AC": {"type": "Mains", "online": "0"}}, False),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery"}}, True),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, False),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, False),
        ({"odd": {}}, False),
    ],
)
def test_a_laptop_without_mains_is_on_battery(
    tmp_path: Path, of: dict[str, dict[str, str]], expected: bool
) -> None:
    assert on_battery(supplies(tmp_path, **of)) is expected


def test_a_disk_that_takes_no_count_does_not_hide_how_the_node_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    DailyUsage(tmp_path / "file").save()
    assert "are not kept" in caplog.text


def test_a_day_s_bytes_survive_a_restart_and_end_at_midnight(tmp_path: Path) -> None:
    usage = DailyUsage(tmp_path)
    assert usage.add("2026-11-25", 100) == 100
    assert usage.add("2026-11-25", 150) == 150
    usage.save()
    again = DailyUsage(tmp_path)
    assert again.add("2026-11-25", 10) == 160
    assert again.add("2026-11-26", 25) == 15
    (tmp_path / "usage.json").write_text("{")
    assert DailyUsage(tmp_path).add("2026-11-26", 1) == 1
