from pathlib import Path

import pytest

from tests.conftest import recorded
from tests.support.draw import Draw, drawn
from tests.support.rooms import ROOMS, is_touched, rooms_of
from tests.support.sources import ROOT

TIMES = {f"tests/processes/test_{number}.py::test": 10.0 + number for number in range(40)}
ALL_S = sum(TIMES.values())


def test_a_word_draws_the_same_tests_again_and_another_word_draws_others() -> None:
    first, again, other = (drawn(Draw(word), TIMES, (), ALL_S / 3) for word in ("a", "a", "b"))
    assert first == again
    assert first.tests != other.tests


def test_a_draw_keeps_to_its_budget_and_uses_most_of_it() -> None:
    for word in "abcdef":
        found = drawn(Draw(word), TIMES, (), ALL_S / 3)
        assert found.seconds == sum(TIMES[name] for name in found.tests)
        assert ALL_S / 3 - max(TIMES.values()) < found.seconds <= ALL_S / 3


def test_tests_of_touched_rooms_come_first_and_leave_room_for_others() -> None:
    times = {f"tests/node/links/test_{name}.py::test": 10.0 for name in "abcdefgh"} | {
        f"tests/node/data/test_{name}.py::test": 10.0 for name in "abcdefgh"
    }
    found = drawn(Draw("a"), times, ["node/links/mesh.py"], 90.0)
    assert found.touched == {name for name in times if "links" in name}
    assert len(found.tests & found.touched) >= 6
    assert len(found.tests - found.touched) >= 1 or len(found.tests) == 9
    small = drawn(Draw("a"), times, ["node/links/mesh.py"], 120.0)
    assert small.tests >= small.touched


def test_six_landings_play_nearly_every_long_test() -> None:
    times = recorded()["slow"]
    budget_s = landing_seconds()
    played = [drawn(Draw(str(word)), times, (), budget_s).tests for word in range(60)]
    for first in range(0, 60, 6):
        seen = frozenset().union(*played[first : first + 6])
        assert len(seen) >= 0.9 * len(times), set(times) - seen


def landing_seconds() -> float:
    """The budget that the Makefile gives a landing."""
    (line,) = [
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if line.startswith("LANDING_S")
    ]
    return float(line.partition("?=")[2])


def test_seeds_are_unlike_in_range_and_another_purposes_are_others() -> None:
    seeds = Draw("a").seeds("faults", 40, 500)
    assert len(set(seeds)) == 40
    assert set(seeds) <= set(range(500))
    assert seeds != Draw("a").seeds("casts", 40, 500)


def test_a_long_test_is_touched_by_its_own_file_and_by_its_rooms() -> None:
    name = "tests/processes/test_nat.py::test_anything[one]"
    assert is_touched(name, ["tests/processes/test_nat.py"])
    assert is_touched(name, ["node/transports/grpc_transport.py"])
    assert not is_touched(name, ["lockstep/page/document.py", "tests/processes/test_s3.py"])
    assert is_touched("tests/node/links/test_mesh.py::test", ["node/links/link.py"])


def test_the_rooms_of_long_tests_exist() -> None:
    for start, rooms in ROOMS.items():
        assert [path for path in ROOT.glob(f"{start}*") if path.exists()], start
        for room in rooms:
            assert (ROOT / room).exists(), f"{start}: {room}"


def test_every_long_test_has_a_room() -> None:
    for name in recorded()["slow"]:
        assert [room for room in rooms_of(name) if (ROOT / room).exists()], name


def test_every_test_file_has_a_time_and_none_that_is_gone_has() -> None:
    files = {str(path.relative_to(ROOT)) for path in Path(ROOT / "tests").rglob("test_*.py")}
    times = recorded()
    long = {name.partition("::")[0] for name in times["slow"]}
    if missing := files - times["files"].keys() - long:
        pytest.fail(
            f"expected a time for each test file, none for {sorted(missing)}: make durations"
        )
    assert not (times["files"].keys() | long) - files
