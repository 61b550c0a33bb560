"""Each invariant is broken once, and its error names it."""

from collections.abc import Callable

import pytest

from coordinator.machine.state.run_state import RunState
from protocol.errors import LocalProtocolError
from protocol.ids import sha256
from protocol.shuffle import Share
from tests.coordinator.machine.driver import A, B, C, D, Driver

DIGEST = sha256(b"a digest that no member names")


def under_way() -> Driver:
    """A run with commits, a dissenter with a record, a round with announcements and receipts, a
    member that is back in a new session, and one that lapsed.
    """
    driver = Driver(A, B, C, D, rounds={"copies_min": 1})
    driver.lapse(D)
    driver.exchange(0, A, B, C)
    driver.apply(A, 0)
    driver.apply(B, 0)
    driver.apply(C, 0, digest=666)
    driver.announce(A, 1, samples=1)
    driver.hold(B, 1, [A])
    driver.hello(B)
    return driver


BROKEN: list[tuple[Callable[[RunState], object], str]] = [
    (lambda state: state.undecided.clear(), r"undecided: expected \[1\], got \[\]"),
    (lambda state: setattr(state.totals, "skipped", 9), r"skipped: expected 1, got 10"),
    (lambda state: setattr(state, "head_round", 1), "head_round 1 is undecided"),
    (lambda state: setattr(state, "head_round", -1), "a first commit: expected False, got True"),
    (lambda state: setattr(state.end, "finished", True), "finished: expected False, got True"),
    (lambda state: setattr(state.end, "concluded", True), "concluded before it is finished"),
    (lambda state: setattr(state.totals, "samples_lost", 1), "samples trained, lost, returned"),
    (
        lambda state: state.order.returned.insert(0, Share(0, state.order.returned[0].first)),
        "returned shares touch",
    ),
    (
        lambda state: state.order.returned.append(Share(10**6, 1)),
        "position 1000000 returned before it was leased",
    ),
    (lambda state: state.members.lapsed_ms.update({A: 1}), "members that have lapsed"),
    (lambda state: setattr(state.members.roster[A], "peer", B), "a member's id"),
    (lambda state: setattr(state.members.roster[A], "strikes", 9), "9 strikes"),
    (lambda state: setattr(state.members.roster[A], "round", 1), "round 1 is ahead of the log"),
    (lambda state: state.members.roster.pop(A), "named: .* are not among members and auditors"),
    (lambda state: state.members.roster.pop(B), "silent: .* are not among the members"),
    (lambda state: state.undecided[-1].silent.discard(B), "round 1: silent: expected"),
    (lambda state: state.undecided[-1].announced_ms.clear(), "round 1: announced_ms: expected"),
    (lambda state: state.undecided[-1].receipts.authors.clear(), "round 1: authors: expected"),
    (lambda state: state.undecided[-1].receipts.holders.clear(), "round 1: holders: expected"),
    (lambda state: state.undecided[-1].receipts.short.add(A), "round 1: short: expected"),
    (lambda state: state.undecided[-1].receipts.copied_ms.clear(), "round 1: copied: .*copied_ms"),
    (lambda state: state.undecided[-1].receipts.copied_ms.update({B: 1}), "not among the authors"),
    (
        lambda state: state.undecided[-1].receipts.doubted[B].add(DIGEST),
        f"doubted of {B}: .* are not among the named ones",
    ),
    (lambda state: setattr(state.undecided[-1].receipts, "named_max", 0), "names 1 digests of at"),
    (lambda state: state.verdicts.held.update({D: "why"}), "held: .* are not among the members"),
    (lambda state: setattr(state.verdicts, "requests", 0), "request 1 is not made"),
    (lambda state: setattr(state.verdicts.records[C], "differed", 2), "2 differences"),
    (lambda state: setattr(state.verdicts.tally, "newest", 7), "newest: expected"),
    (lambda state: setattr(state.verdicts.tally, "rounds_checked", 0), "is disputed, not checked"),
    (
        lambda state: state.verdicts.tally.by_round[-1].awaited.add(D),
        "awaited: .* are not among voters",
    ),
    (lambda state: setattr(state.verdicts.tally.by_round[0], "verdict", None), "final without"),
    (lambda state: state.verdicts.tally.by_round[0].before.update({A: 1}), "verdict in a replay"),
]


@pytest.mark.parametrize(("damage", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_a_broken_invariant_is_named(damage: Callable[[RunState], object], words: str) -> None:
    machine = under_way().machine
    machine.validate()
    damage(machine.state)
    with pytest.raises(LocalProtocolError, match=f"^broken invariant: .*{words}"):
        machine.validate()
