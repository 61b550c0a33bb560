"""What everybody may read of a run: all that is public is named, and nothing else gets out."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.history import TREND_PARTS, History
from coordinator.machine.events import acts
from coordinator.machine.events.effects import CommitRound, SkipRound
from coordinator.machine.events.inputs import Event, Joined
from coordinator.machine.state.operator import OperatorState
from coordinator.machine.state.votes import DigestTally
from coordinator.public_document import CONTRIBUTORS_MAX, NAME_MAX, Part, View, public
from protocol.codec.commits import Commit, Entry
from protocol.ids import Digest, PeerId, sha256
from tests.coordinator.machine.driver import PHASES, RUN, Driver, driver_in
from tests.coordinator.test_history import take

A, B, C = (PeerId(32 * digit) for digit in "123")

JOIN = "lockstep join 'lockstep://run.example:1'"


def documents(driver: Driver, history: History | None = None) -> dict[Part, Any]:
    if history is None:
        history = History()
        take(history, driver.effects, driver.now_ms)
    view = View(driver.machine, history, driver.now_ms, JOIN)
    parts: tuple[Part, ...] = get_args(Part)
    made = {part: public(part, view) for part in parts}
    decoded: dict[Part, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return decoded


def run_of(driver: Driver, history: History | None = None) -> dict[str, Any]:
    found: dict[str, Any] = documents(driver, history)["run"]
    return found


def words_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, each in value.items():
                yield from (key, *words_in(each))
        case list() | tuple():
            for each in value:
                yield from words_in(each)


def order(driver: Driver, act: acts.Act) -> None:
    operator: OperatorState = driver.machine.state.operator
    driver.tell(acts.ordered(act, 1_700_000_000, operator.head))


def telling(trust: str) -> Driver:
    """A run in which whatever is nobody's business tells of itself."""
    driver = Driver(membership={"start_members": 2, "trust": trust})
    for peer in (A, B):
        event: Event = acts.Vouched(peer)
        driver.tell(event)
    for number, peer in enumerate((A, B, C)):
        host = f"203.0.113.{number}:50701"
        driver.tell(Joined(peer, (host,), f"volunteer {number}", "SECRET card", "SECRET 1.0"))
        driver.ready(peer)
    order(driver, acts.Token("SECRET-name", sha256(b"SECRET"), 3))
    order(driver, acts.Ban("203.0.113.9", "SECRET reason"))
    order(driver, acts.Announce("SECRET notice"))
    order(driver, acts.Allow(C))
    return driver


@pytest.mark.parametrize("trust", ["known", "public"])
def test_hosts_tokens_notes_and_hardware_are_in_no_part(trust: str) -> None:
    driver = telling(trust)
    seen = [documents(driver)]
    order(driver, acts.Evict(C, "SECRET cause", 600))
    driver.exchange(0, A, B)
    order(driver, acts.Pause("SECRET pause"))
    driver.wait(60_000)
    seen.append(documents(driver))
    order(driver, acts.Finish("SECRET end"))
    driver.wait(60_000)
    seen.append(documents(driver))
    texts = list(words_in(seen))
    assert any("volunteer 0" in text for text in texts), "names are for all to see"
    assert not [text for text in texts if "SECRET" in text or "203.0.113" in text]


@pytest.mark.parametrize("phase", PHASES)
def test_the_fields_are_these_and_no_others(phase: str) -> None:
    found = documents(driver_in(phase))
    assert set(found["run"]) == {
        *("run_id", "name", "model_type", "parameters", "phase", "doing", "problems", "round"),
        *("steps", "round_seconds", "seconds_left", "loss", "validation", "members"),
        *("contributors", "samples", "replicas", "join", "admission", "newcomer", "model"),
    }
    assert set(found["curve"]) == {
        *("rounds", "losses", "rounds_a_point", "validation_rounds", "validation_losses"),
    }
    assert set(found["contributors"]) == {
        *("in_all", "samples", "trend_rounds", "newest_rounds", "rows"),
    }
    expected = {"computing": "training", "exchanging": "training"}.get(phase, phase)
    assert found["run"]["phase"] == expected


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=80))
def test_odd_names_stay_one_short_line(name: str) -> None:
    driver = Driver(A, B)
    driver.member(A).name = name
    [shown] = [row[1] for row in documents(driver)["contributors"]["rows"] if row[0] == A[:12]]
    assert len(shown) <= NAME_MAX
    assert shown.isprintable()


def test_the_order_is_by_samples_with_members_that_have_given_nothing_last() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0, samples=2)
    driver.announce(B, 0, samples=8)
    driver.announce(C, 0, samples=0)
    for peer in (A, B, C):
        driver.hold(peer, 0, (A, B, C))
    driver.wait(5000)
    found = documents(driver)["contributors"]
    assert [row[0] for row in found["rows"]] == [B[:12], A[:12], C[:12]]
    assert found["samples"] == 10
    assert found["rows"][0][7] == [0] * (TREND_PARTS - 1) + [1]
    assert found["newest_rounds"] == driver.machine.state.decided_round + 1


def test_a_fresh_key_is_told_how_many_rounds_it_has_to_work() -> None:
    driver = telling("public")
    driver.machine.members.standing.payloads[C] = 21
    rows = {row[0]: row for row in documents(driver)["contributors"]["rows"]}
    assert rows[C[:12]][4:6] == ["fresh", 29]
    assert rows[A[:12]][4:6] == ["vouched", 0]


def test_a_newcomer_is_told_its_turn_among_fresh_keys() -> None:
    driver = telling("public")
    assert run_of(driver)["newcomer"] == {"work_seconds": None, "counts_seconds": None}
    driver.machine.state.period.milliseconds = 4000
    # One fresh key for two with standing, and another one is here.
    assert run_of(driver)["newcomer"] == {"work_seconds": 8.0, "counts_seconds": 400.0}
    assert run_of(driver)["seconds_left"] == 400


def commit(round: int, *authors: PeerId) -> Commit:
    entries = tuple(Entry(author, Digest(b"d" * 32), 100, 1, 4) for author in authors)
    return Commit(RUN, round, round, entries, 0, 0, Digest(b"p" * 32))


def test_problems_are_said_in_plain_words_and_the_worst_first() -> None:
    driver, history = Driver(A, B), History()
    assert run_of(driver, history)["problems"] == []
    take(history, [SkipRound(round, "SECRET") for round in range(3)])
    [skips] = run_of(driver, history)["problems"]
    assert (skips["kind"], "last 3 rounds" in skips["text"]) == ("bad", True)
    tally: DigestTally = driver.machine.state.verdicts.tally
    driver.make_round(A, B)
    driver.exchange(1, A, B)
    driver.apply(A, 1)
    driver.apply(B, 1, digest=7)
    assert not tally.agreed
    dispute, skips, nobody = run_of(driver, history)["problems"]
    assert "not equal" in dispute["text"]
    assert [each["kind"] for each in (dispute, skips, nobody)] == ["bad", "bad", "wait"]
    order(driver, acts.Pause("SECRET"))
    driver.wait(60_000)
    assert run_of(driver, history)["problems"][-1]["kind"] == "wait"


def test_losses_that_are_no_numbers_leave_a_document_that_json_can_hold() -> None:
    driver, history = Driver(A, B), History()
    driver.machine.state.loss = math.nan
    take(history, [CommitRound(commit(0, A), ((),), math.nan)])
    found = documents(driver, history)
    assert found["run"]["loss"] is None
    assert found["curve"]["losses"] == []


def test_five_thousand_members_and_more_keys_are_a_bounded_document() -> None:
    driver, history = Driver(), History()
    keys = [PeerId(f"{number:032x}") for number in range(1, CONTRIBUTORS_MAX + 1001)]
    take(history, [CommitRound(commit(round, *keys), ((),), 2.0) for round in range(3)])
    found = documents(driver, history)
    rows = found["contributors"]["rows"]
    assert (len(rows), found["contributors"]["in_all"]) == (CONTRIBUTORS_MAX, len(keys))
    assert len(msgspec.json.encode(found)) < 600_000


def test_a_run_without_anybody_has_a_page() -> None:
    found = documents(Driver())
    assert (found["run"]["contributors"], found["contributors"]["rows"]) == (0, [])
    assert found["run"]["doing"] == "Waiting for members: 0 of 2 are ready."
