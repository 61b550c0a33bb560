"""One undecided round: its instants, its workers, its payloads, its samples."""

import math
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.events.effects import Assignment
from coordinator.machine.events.inputs import Announced
from coordinator.machine.state.pace import Needs
from coordinator.machine.state.undecided_round import (
    RECEIPTS_PER_AUTHOR,
    UndecidedRound,
    check_announcement,
    entry_of,
    mean_loss,
    unused_part,
)
from protocol.clock import Instants
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.runfile import AlgorithmSpec
from protocol.shuffle import Share
from tests.coordinator.machine.driver import A, B, C, D, payload_digest

shares_lists = st.lists(st.integers(1, 9), max_size=5).map(
    lambda counts: tuple(Share(100 * number, count) for number, count in enumerate(counts))
)


def round_of(*peers: PeerId, copies_min: int = 1) -> UndecidedRound:
    asked = {
        peer: Assignment(peer, (Share(10 * number, 4),), False, "")
        for number, peer in enumerate(peers)
    }
    return UndecidedRound.open(
        0, 0, Instants(0, 1000, 1500, 3000), (0, 0), asked, copies_min=copies_min
    )


def announced(undecided: UndecidedRound, *peers: PeerId) -> None:
    for peer in peers:
        undecided.announce(Announced(peer, 0, payload_digest(peer, 0), 10, 4, 100, 1.0), 500)


def available(undecided: UndecidedRound, *members: PeerId) -> list[PeerId]:
    return [payload.peer for payload in undecided.available(members)]


@pytest.mark.parametrize(
    ("name", "samples", "weight"), [("demo", 7, 1), ("local_steps", 7, 7), ("local_steps", 0, 1)]
)
def test_authors_of_local_steps_weigh_by_their_samples_and_votes_weigh_the_same(
    name: Literal["demo", "local_steps"], samples: int, weight: int
) -> None:
    payload = Announced(A, 0, payload_digest(A, 0), 10, samples, 100, 1.0)
    entry = entry_of(payload, AlgorithmSpec(name=name))
    assert (entry.author, entry.samples, entry.weight) == (A, samples, weight)


@pytest.mark.parametrize(
    ("copies_min", "counted"), [(0, [A, B, C]), (1, [A, B]), (2, [A]), (3, [A])]
)
def test_a_payload_is_available_with_enough_copies_and_never_more_than_there_are_others(
    copies_min: int, counted: list[PeerId]
) -> None:
    undecided = round_of(A, B, C, copies_min=copies_min)
    announced(undecided, A, B, C)
    undecided.receipts.hold(B, (payload_digest(A, 0),), 600)
    undecided.receipts.hold(C, (payload_digest(A, 0),), 600)
    undecided.receipts.hold(A, (payload_digest(B, 0),), 600)
    assert available(undecided, A, B, C) == counted


def test_a_member_that_is_not_in_the_round_is_not_waited_for_but_its_copy_counts() -> None:
    undecided = round_of(A, copies_min=2)
    announced(undecided, A)
    assert available(undecided, A, D) == [A]
    undecided = round_of(A, B)
    announced(undecided, A)
    assert available(undecided, A, B, D) == []
    undecided.receipts.hold(D, (payload_digest(A, 0),), 600)
    assert available(undecided, A, B, D) == [A]


def test_a_member_that_went_holds_nothing_and_is_not_waited_for() -> None:
    undecided = round_of(A, B, C)
    announced(undecided, A)
    undecided.receipts.hold(B, (payload_digest(A, 0),), 600)
    assert [undecided.forget(peer, 700) for peer in (B, B, A)] == [(Share(10, 4),), (), ()]
    assert undecided.receipts.holding(payload_digest(A, 0)) == set()
    assert undecided.awaited([A, B, C].__contains__) == [C]
    assert undecided.leased() == 8, "what A has announced, and all of C"
    assert available(undecided, C) == []


def test_a_member_may_name_two_payloads_of_each_author() -> None:
    undecided = round_of(A, B)
    assert undecided.receipts.named_max == RECEIPTS_PER_AUTHOR * 2


def test_instants_come_in_order_and_move_with_an_outage() -> None:
    undecided = round_of(A)
    undecided.postpone(50)
    seen = []
    while upcoming := undecided.next_instant():
        seen.append(upcoming)
        undecided.reached = upcoming[0]
    assert seen == [("bell", 1050), ("publish_by", 1550), ("commit_by", 3050)]


def test_an_outage_says_nothing_about_the_needs_of_members() -> None:
    undecided = round_of(A, B)
    announced(undecided, A)
    assert undecided.needs([A, B].__contains__, [A, B].__contains__, 1200).publish_ms == (200, 400)
    undecided.postpone(50)
    assert undecided.needs([A, B].__contains__, [A, B].__contains__, 1200) == Needs((), ())


def test_the_work_of_a_member_that_is_sent_back_is_taken_back_once() -> None:
    undecided = round_of(A, B)
    announced(undecided, A)
    assert [undecided.withdraw(peer) for peer in (A, B, B)] == [(), (Share(10, 4),), ()]
    assert undecided.computed([A, B].__contains__)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 5}, "expected at most 4 samples used, got 5"),
        ({"payload_bytes": 0}, "expected a payload of 1..100 bytes, got 0"),
        ({"payload_bytes": 101}, "expected a payload of 1..100 bytes, got 101"),
    ],
)
def test_a_dishonest_announcement_is_named(changes: dict[str, int], words: str) -> None:
    assignment = Assignment(A, (Share(0, 4),), False, "")
    honest = Announced(A, 0, b"d" * 32, 100, 4, 10, 1.0)
    check_announcement(honest, assignment, 100)
    with pytest.raises(RemoteProtocolError, match=words):
        check_announcement(replace(honest, **changes), assignment, 100)
    with pytest.raises(RemoteProtocolError, match="no payload from a muted member in round 0"):
        check_announcement(honest, replace(assignment, muted=True), 100)


def test_the_mean_loss_weighs_samples_and_needs_some() -> None:
    said = [Announced(A, 0, b"", 0, 1, 10, 4.0), Announced(B, 0, b"", 0, 3, 10, 2.0)]
    assert mean_loss(said) == 2.5
    assert math.isnan(mean_loss([]))


@settings(max_examples=100)
@given(shares_lists, st.integers(0, 50))
def test_the_unused_part_is_the_positions_after_the_used_samples(
    shares: tuple[Share, ...], samples: int
) -> None:
    positions = [position for share in shares for position in range(share.first, share.end)]
    unused = [
        position
        for share in unused_part(shares, samples)
        for position in range(share.first, share.end)
    ]
    assert unused == positions[samples:]
