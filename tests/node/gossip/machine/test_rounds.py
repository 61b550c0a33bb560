"""Promises of the table of rounds: which are followed, and for how long."""

from collections.abc import Sequence

import pytest

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.round_state import PeerSet
from node.gossip.machine.rounds import UNDECIDED_ROUNDS_MAX, Rounds
from protocol.ids import Digest, PeerId
from tests.node.gossip.machine.names import OWN, PEERS, SIZE, A, B, X, Y, Z


def table(*started: int) -> Rounds:
    rounds = Rounds(OWN, 4)
    rounds.meet(PeerSet(tuple(sorted([OWN, *PEERS]))))
    for number in started:
        rounds.start(events.RoundStarted(number))
    return rounds


def put(rounds: Rounds, number: int, digest: Digest, *holders: PeerId) -> Payload:
    payload = Payload(SIZE, holders=set(holders))
    rounds.follow(number).payloads[digest] = payload
    return payload


def numbers(rounds: Rounds) -> list[int]:
    return [number for number, _ in rounds]


# ---- following and forgetting


def test_a_round_is_followed_from_its_first_offer_or_its_start() -> None:
    rounds = table(7)
    assert not rounds.follow(9).open
    assert numbers(rounds) == [7, 9]
    assert rounds.newest == 7
    rounds.start(events.RoundStarted(9))
    assert rounds.follow(9).open
    assert rounds.newest == 9


def test_a_round_that_was_settled_is_not_opened_again() -> None:
    rounds = table(7)
    rounds.forget(7)
    assert rounds.is_over(7)
    assert rounds.start(events.RoundStarted(7)) == []
    assert numbers(rounds) == []
    assert not rounds.is_over(8)


def test_no_round_is_over_before_one_was_seen() -> None:
    assert not Rounds(OWN, 4).is_over(-1)


def test_a_round_decided_elsewhere_makes_older_ones_old() -> None:
    rounds = table()
    rounds.saw(5)
    rounds.saw(3)
    assert rounds.newest == 5
    assert rounds.is_over(4)


def test_the_oldest_undecided_round_is_forgotten_first_and_a_committed_one_stays() -> None:
    rounds = table(*range(UNDECIDED_ROUNDS_MAX))
    put(rounds, 0, X)
    put(rounds, 1, Y)
    rounds.follow(0).committed = True
    assert rounds.start(events.RoundStarted(UNDECIDED_ROUNDS_MAX)) == []
    assert rounds.start(events.RoundStarted(UNDECIDED_ROUNDS_MAX + 1)) == [Y]
    assert numbers(rounds)[:2] == [0, 2]


def test_forgetting_tells_the_payloads_that_no_other_round_needs_sorted() -> None:
    rounds = table(7, 8)
    for digest in (X, Y, Z):
        put(rounds, 7, digest)
    put(rounds, 8, Y)
    assert rounds.forget(7) == sorted([X, Z])
    assert rounds.forget(7) == []


# ---- payloads


def test_a_payload_is_found_in_each_round_that_knows_it_oldest_first() -> None:
    rounds = table(7, 8)
    put(rounds, 8, X)
    put(rounds, 7, X)
    assert [found.round for found in rounds.payloads(X)] == [7, 8]
    assert rounds.knows(X)
    assert not rounds.knows(Y)


def test_lacking_payloads_are_those_of_open_and_committed_rounds() -> None:
    rounds = table(7)
    put(rounds, 7, X)
    put(rounds, 7, Y).held = True
    put(rounds, 8, Z)
    assert [found.digest for found in rounds.lacking()] == [X]
    rounds.follow(8).committed = True
    assert [found.digest for found in rounds.lacking()] == [X, Z]


def test_a_payload_that_becomes_held_is_reported_in_each_round_unless_it_is_own() -> None:
    rounds = table(7, 8, 9)
    for number in (7, 8, 9):
        put(rounds, number, X)
    rounds.follow(9).payloads[X].own = True
    assert rounds.hold(X, 5) == [events.ReportHolding(7, (X,)), events.ReportHolding(8, (X,))]
    assert rounds.hold(X, 5) == []
    assert [found.payload.size for found in rounds.payloads(X)] == [5, 5, 5]
    assert rounds.holding(7) == [X]
    assert rounds.holding(9) == []
    rounds.lose(X)
    assert rounds.holding(7) == []


@pytest.mark.parametrize(
    ("held", "wanted", "holders", "stays"),
    [
        (False, False, [A], False),
        (False, False, [A, B], True),
        (True, False, [A], True),
        (False, True, [A], True),
    ],
)
def test_a_payload_that_no_peer_holds_loses_its_place(
    held: bool, wanted: bool, holders: Sequence[PeerId], stays: bool
) -> None:
    rounds = table(7)
    payload = put(rounds, 7, X, *holders)
    payload.held, payload.wanted = held, wanted
    rounds.remove_holder(X, A, 0)
    assert rounds.knows(X) is stays


def test_a_holder_is_entered_in_each_round_that_knows_the_payload() -> None:
    rounds = table(7, 8)
    for number in (7, 8):
        put(rounds, number, X)
    rounds.add_holder(X, A)
    rounds.add_holder(Y, A)
    assert [found.payload.holders for found in rounds.payloads(X)] == [{A}, {A}]
    assert not rounds.knows(Y)


# ---- peers


def test_the_bound_of_payloads_does_not_shrink_with_the_members() -> None:
    rounds = table(7)
    rounds.meet(PeerSet((OWN, A)))
    assert rounds.follow(7).payloads_max == 5
    assert rounds.follow(8).payloads_max == 2
    assert rounds.follow(7).neighbours == [A]


@pytest.mark.parametrize(
    "peers",
    [PeerSet((OWN, A)), PeerSet(tuple(sorted([OWN, *PEERS])), (), frozenset([A]))],
)
def test_a_peer_that_left_or_lost_its_link_counts_as_not_told(peers: PeerSet) -> None:
    rounds = table(7)
    put(rounds, 7, X).told |= {A, B}
    rounds.meet(peers)
    assert rounds.follow(7).payloads[X].told == {A}
