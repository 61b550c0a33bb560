"""Judges are judged: each planted bug must be found by one of the first seeds, with the words that name it."""

from collections.abc import Callable

import pytest

from coordinator import rounds
from coordinator.events import Announced
from coordinator.inflight import InFlight
from coordinator.membership import Membership
from coordinator.rounds import Rounds
from protocol.ids import sha256
from tests.simulation.checkers import Violation
from tests.simulation.scenario import Scenario

SEEDS = range(100)

Plant = Callable[[pytest.MonkeyPatch], None]


def copies_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InFlight, "available", lambda flight, copies_min, live: flight.payloads())


def the_dead_hold_on(patch: pytest.MonkeyPatch) -> None:
    def forget(flight: InFlight, peer: str) -> int:
        asked = None if peer in flight.announced else flight.assignments.pop(peer, None)
        return sum(share.count for share in asked.shares) if asked else 0

    patch.setattr(InFlight, "forget", forget)


def with_rounds(machine: Rounds, method: Callable[..., object], *arguments: object, **fields: int) -> object:
    """Call a method while the run file says something else."""
    spec = machine.spec
    machine.spec = spec.model_copy(update={"rounds": spec.rounds.model_copy(update=fields)})
    try:
        return method(machine, *arguments)
    finally:
        machine.spec = spec


def the_quorum_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = Rounds._decide
    patch.setattr(Rounds, "_decide", lambda machine, flight: with_rounds(machine, right, flight, quorum=0))


def the_late_are_heard(patch: pytest.MonkeyPatch) -> None:
    right = Rounds._announced

    def announced(machine: Rounds, event: Announced) -> object:
        flight = machine.flight(event.round)
        if flight is None:
            return []
        reached, flight.reached = flight.reached, "bell"
        effects = right(machine, event)
        flight.reached = reached
        return effects

    patch.setattr(Rounds, "_announced", announced)


def unused_samples_vanish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "unused_part", lambda shares, samples: [])


def samples_are_trained_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "unused_part", lambda shares, samples: list(shares))


def the_chain_does_not_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "commit_digest", lambda commit: sha256(b"always"))


def shares_are_not_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "samples_per_share", lambda speeds, spec: dict.fromkeys(speeds, 8))


def everyone_may_be_muted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rounds, "_muted", lambda machine, ready: {member.peer: "" for member in ready})


def heartbeats_decide_something(patch: pytest.MonkeyPatch) -> None:
    right = Membership.renew

    def renew(members: Membership, peer: str, now_ms: int) -> None:
        right(members, peer, now_ms)
        members.punctual(peer)

    patch.setattr(Membership, "renew", renew)


def the_newest_is_decided_first(patch: pytest.MonkeyPatch) -> None:
    right = Rounds._advance

    def advance(machine: Rounds, now_ms: int) -> list[object]:
        machine.in_flight.reverse()
        effects = right(machine, now_ms)
        machine.in_flight.sort(key=lambda flight: flight.round)
        return effects

    patch.setattr(Rounds, "_advance", advance)


def a_third_round_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    right = Rounds._may_open
    patch.setattr(Rounds, "_may_open", lambda machine: with_rounds(machine, right, overlap=2))


def a_returning_member_has_offended(patch: pytest.MonkeyPatch) -> None:
    right = InFlight.forget

    def forget(flight: InFlight, peer: str) -> int:
        asked = flight.assignments.get(peer)
        lost = right(flight, peer)
        if asked and peer not in flight.announced:
            flight.assignments[peer] = rounds.Assignment(peer, (), asked.muted, "left")
        return lost

    patch.setattr(InFlight, "forget", forget)


PLANTED: list[tuple[Plant, str]] = [
    (copies_are_not_counted, "is held by"),
    (the_dead_hold_on, "is held by|tells holders"),
    (the_quorum_is_forgotten, "is below the quorum"),
    (the_late_are_heard, "positions|trained and lost|did not announce in time"),
    (unused_samples_vanish, "out of turn|returned positions"),
    (samples_are_trained_twice, "returned positions|out of turn"),
    (the_chain_does_not_move, "does not follow the one before it"),
    (shares_are_not_cut, "leases"),
    (everyone_may_be_muted, "can have 0 contributors"),
    (heartbeats_decide_something, "the journal does not rebuild the state"),
    (the_newest_is_decided_first, "is decided, expected round"),
    (a_third_round_is_in_flight, "in flight"),
    (a_returning_member_has_offended, "an honest node was refused"),
]


def run_seeds() -> None:
    for seed in SEEDS:
        Scenario(seed).run()


@pytest.mark.parametrize(("plant", "words"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(plant: Plant, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match=words):
        run_seeds()


def test_a_violation_names_its_seed_and_shows_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    copies_are_not_counted(monkeypatch)
    with pytest.raises(Violation, match=r"(?s)^seed \d+: round .*event Announced") as caught:
        run_seeds()
    assert "-> CommitRound" in str(caught.value)
