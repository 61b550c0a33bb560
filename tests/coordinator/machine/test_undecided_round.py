"""Receipts and shares of one undecided round."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.events import Announced, Assignment
from coordinator.machine.undecided_round import (
    HOLDERS_TOLD_MAX,
    RECEIPTS_PER_AUTHOR,
    UndecidedRound,
    unused_part,
)
from protocol.clock import Instants
from protocol.ids import Digest, PeerId, sha256
from protocol.shuffle import Share
from tests.coordinator.machine.driver import A, B, C, D, payload_digest

shares_lists = st.lists(st.integers(1, 9), max_size=5).map(
    lambda counts: tuple(Share(100 * number, count) for number, count in enumerate(counts))
)


def flight_of(*peers: PeerId, copies_min: int = 1) -> UndecidedRound:
    asked = {
        peer: Assignment(peer, (Share(10 * number, 4),), False, "")
        for number, peer in enumerate(peers)
    }
    return UndecidedRound(0, 0, Instants(0, 1000, 1500, 3000), 0, 0, asked, copies_min)


def announced(flight: UndecidedRound, *peers: PeerId) -> None:
    for peer in peers:
        flight.announce(Announced(peer, 0, payload_digest(peer, 0), 10, 4, 100, 1.0), 500)


def available(flight: UndecidedRound, *members: PeerId) -> list[PeerId]:
    return [payload.peer for payload in flight.available(members)]


@pytest.mark.parametrize(
    ("copies_min", "counted"), [(0, [A, B, C]), (1, [A, B]), (2, [A]), (3, [A])]
)
def test_a_payload_is_available_with_enough_copies_and_never_more_than_there_are_others(
    copies_min: int, counted: list[PeerId]
) -> None:
    flight = flight_of(A, B, C, copies_min=copies_min)
    announced(flight, A, B, C)
    flight.hold(B, payload_digest(A, 0), 600)
    flight.hold(C, payload_digest(A, 0), 600)
    flight.hold(A, payload_digest(B, 0), 600)
    assert available(flight, A, B, C) == counted


def test_a_member_that_is_not_in_the_round_is_not_waited_for_but_its_copy_counts() -> None:
    flight = flight_of(A, copies_min=2)
    announced(flight, A)
    assert available(flight, A, D) == [A]
    flight = flight_of(A, B)
    announced(flight, A)
    assert available(flight, A, B, D) == []
    flight.hold(D, payload_digest(A, 0), 600)
    assert available(flight, A, B, D) == [A]


def test_who_went_holds_nothing_and_is_waited_for_no_more() -> None:
    flight = flight_of(A, B, C)
    announced(flight, A)
    flight.hold(B, payload_digest(A, 0), 600)
    assert flight.forget(B) == 4
    assert flight.forget(B) == 0
    assert flight.forget(A) == 0
    assert flight.holding(payload_digest(A, 0)) == set()
    assert flight.awaited([A, B, C].__contains__) == [C]
    assert flight.unannounced() == 4
    assert available(flight, C) == []


def test_each_member_has_its_own_room_for_receipts() -> None:
    flight = flight_of(A, B)
    junk = [sha256(bytes([number])) for number in range(50)]
    for digest in junk:
        flight.hold(A, digest, 600)
    assert len(flight.holders) == RECEIPTS_PER_AUTHOR * 2
    flight.hold(B, payload_digest(A, 0), 600)
    assert flight.holding(payload_digest(A, 0)) == {B}


def test_coming_and_going_makes_no_room_beyond_it() -> None:
    flight = flight_of(A, B)
    for life in range(20):
        for number in range(10):
            flight.hold(C, sha256(bytes([life, number])), 600)
        flight.forget(C)
    assert flight.holders == {}


def test_told_holders_are_few_sorted_and_spread() -> None:
    flight = flight_of(A)
    peers = [PeerId(f"{number:032x}") for number in range(30)]
    digests = [Digest(bytes([number]) * 32) for number in range(2)]
    for peer in peers:
        for digest in digests:
            flight.hold(peer, digest, 600)
    told = [flight.told_holders(digest) for digest in digests]
    for holders in told:
        assert len(holders) == HOLDERS_TOLD_MAX
        assert list(holders) == sorted(set(holders))
    assert told[0] != told[1]
    assert flight.told_holders(sha256(b"unknown")) == ()


@settings(deadline=None, max_examples=100)
@given(shares_lists, st.integers(0, 50))
def test_the_unused_part_is_what_is_behind_the_used_samples(
    shares: tuple[Share, ...], samples: int
) -> None:
    positions = [position for share in shares for position in range(share.first, share.end)]
    unused = [
        position
        for share in unused_part(shares, samples)
        for position in range(share.first, share.end)
    ]
    assert unused == positions[samples:]
