"""Promises of the gossip machine: one by one, and over random histories. As a swarm:
tests/simulation/test_gossip.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.machine.idle_uplink import INVITED, PAUSE_MS
from node.gossip.machine.payloads import ABSENCES, BACKOFF_FIRST_MS, BACKOFF_MAX_MS
from node.gossip.machine.pull_policy import SLOWNESS_MAX, WAIT_MS, PullPolicy
from node.gossip.machine.rounds import AHEAD_ROUNDS_MAX, UNDECIDED_ROUNDS_MAX, Rounds
from node.gossip.machine.sources import BROKEN_FIRST_MS, OFFER_RETRY_MS, RATE_ASSUMED
from protocol.errors import LocalProtocolError
from protocol.ids import Digest, PeerId
from protocol.limits import OFFERS_MAX
from protocol.neighbours import neighbours
from tests.node.gossip.machine.names import (
    LIMITS,
    OWN,
    PATIENT,
    PEERS,
    SIZE,
    A,
    B,
    C,
    X,
    Y,
    Z,
    blob_digest,
    peer,
)


def machine(*history: events.Event, limits: events.SwarmLimits = LIMITS) -> Exchange:
    """A node among five members with round 7 open, after these events at time 0."""
    exchange = Exchange(OWN, limits)
    for event in (
        events.MembersChanged(frozenset([OWN, *PEERS])),
        events.RoundStarted(7),
        *history,
    ):
        exchange.handle(event, 0)
        exchange.validate()
    return exchange


def of(kind: type[events.Effect], effects: list[events.Effect]) -> list[events.Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


# ---- offering


def test_an_own_payload_is_offered_to_every_neighbour_of_the_round_and_not_reported() -> None:
    effects = machine().handle(events.Published(7, X, SIZE), 0)
    expected = neighbours(7, [OWN, *PEERS], OWN, LIMITS.neighbours)
    assert [effect.peer for effect in of(events.Offer, effects)] == expected
    assert {effect.payloads for effect in of(events.Offer, effects)} == {((X, SIZE),)}
    assert not of(events.ReportHolding, effects)


def test_a_payload_that_goes_among_neighbours_is_offered_to_these_alone() -> None:
    exchange = machine(events.RoundStarted(8, frozenset([A, peer(99)])))
    effects = exchange.handle(events.Published(8, X, SIZE), 0)
    assert [effect.peer for effect in of(events.Offer, effects)] == [A], "peer 99 is no member yet"
    assert exchange.fetches_of(8, A)
    assert not exchange.fetches_of(8, B)
    assert exchange.fetches_of(7, B), "the round before it spreads to all"
    effects = exchange.handle(events.Offered(A, 8, Y, SIZE), 0)
    assert [effect.source for effect in of(events.Pull, effects)] == [A]


def test_a_neighbour_without_a_link_is_offered_it_through_relays() -> None:
    relay = peer(50)
    exchange = machine(
        events.MembersChanged(frozenset([OWN, *PEERS]), frozenset([relay])),
        events.Linked(frozenset([B, relay])),
        events.RoundStarted(8, frozenset([A])),
        events.RoundStarted(9, frozenset([B])),
    )
    effects = exchange.handle(events.Published(8, X, SIZE), 0)
    assert [effect.peer for effect in of(events.Offer, effects)] == [relay]
    effects = exchange.handle(events.Published(9, Y, SIZE), 0)
    assert [effect.peer for effect in of(events.Offer, effects)] == [B]


def test_nobody_is_offered_the_payload_of_a_node_without_neighbours() -> None:
    exchange = machine(events.RoundStarted(8, frozenset()))
    assert not of(events.Offer, exchange.handle(events.Published(8, X, SIZE), 0))


def test_a_pulled_payload_is_reported_and_offered_to_all_but_its_holders() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(B, 7, X, SIZE))
    effects = exchange.handle(events.Pulled(X, A, SIZE, 1000), 100)
    assert of(events.ReportHolding, effects) == [events.ReportHolding(7, (X,))]
    assert {effect.peer for effect in of(events.Offer, effects)} == set(PEERS) - {A, B}


def test_an_offer_alone_makes_no_offer() -> None:
    assert not of(events.Offer, machine().handle(events.Offered(A, 7, X, SIZE), 0))


def test_the_own_payload_comes_first_in_an_offer() -> None:
    lonely = Exchange(OWN, LIMITS)
    own, found = max(X, Y), min(X, Y)
    for event in (
        events.MembersChanged(frozenset([OWN])),
        events.RoundStarted(7),
        events.Found(7, found, 5),
        events.Published(7, own, 5),
    ):
        lonely.handle(event, 0)
    offers = of(events.Offer, lonely.handle(events.MembersChanged(frozenset([OWN, A])), 0))
    assert offers == [events.Offer(A, 7, ((own, 5), (found, 5)))]


def test_a_failed_offer_is_made_again_after_a_wait_and_only_to_that_peer() -> None:
    exchange = machine(events.Published(7, X, SIZE))
    assert not of(events.Offer, exchange.handle(events.OfferFailed(A, 7), 0))
    assert not of(events.Offer, exchange.handle(events.Tick(), OFFER_RETRY_MS - 1))
    assert of(events.Offer, exchange.handle(events.Tick(), OFFER_RETRY_MS)) == [
        events.Offer(A, 7, ((X, SIZE),))
    ]


def test_a_peer_that_left_and_came_back_is_offered_everything_again() -> None:
    exchange = machine(events.Published(7, X, SIZE), events.MembersChanged(frozenset([OWN, B])))
    offers = of(events.Offer, exchange.handle(events.MembersChanged(frozenset([OWN, A, B])), 0))
    assert offers == [events.Offer(A, 7, ((X, SIZE),))]


def test_more_payloads_than_a_message_may_hold_are_offered_in_several() -> None:
    found = [events.Found(7, blob_digest(number), 1) for number in range(OFFERS_MAX + 3)]
    exchange = Exchange(OWN, LIMITS)
    for event in (events.MembersChanged(frozenset([OWN])), events.RoundStarted(7), *found):
        exchange.handle(event, 0)
    offers = of(events.Offer, exchange.handle(events.MembersChanged(frozenset([OWN, A])), 0))
    assert [len(offer.payloads) for offer in offers] == [OFFERS_MAX, 3]


def test_a_second_own_payload_in_a_round_is_our_bug() -> None:
    exchange = machine(
        events.Published(7, X, SIZE), events.Published(7, X, SIZE)
    )  # the same once more is harmless
    with pytest.raises(LocalProtocolError, match="got a second"):
        exchange.handle(events.Published(7, Y, SIZE), 0)


def test_a_payload_of_a_round_that_was_never_opened_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match=r"open round \(\[7\]\)"):
        machine().handle(events.Published(8, X, SIZE), 0)


def test_a_payload_published_after_its_round_was_decided_is_left_alone() -> None:
    assert machine(events.Settled(7)).handle(events.Published(7, X, SIZE), 0) == []


# ---- refusing


@pytest.mark.parametrize("size", [0, LIMITS.payload_bytes_max + 1])
def test_an_offer_of_an_impossible_size_is_blamed(size: int) -> None:
    assert of(events.Blame, machine().handle(events.Offered(A, 7, X, size), 0))


def test_an_offer_from_a_peer_that_is_no_member_is_blamed() -> None:
    stranger = peer(99)
    assert machine().handle(events.Offered(stranger, 7, X, SIZE), 0)[0].peer == stranger
    assert isinstance(machine().handle(events.Offered(OWN, 7, X, SIZE), 0)[0], events.Blame)


def test_an_offer_slightly_ahead_is_kept_and_pulled_when_the_round_opens() -> None:
    exchange = machine()
    assert exchange.handle(events.Offered(A, 7 + AHEAD_ROUNDS_MAX, X, SIZE), 0) == []
    assert of(events.Pull, exchange.handle(events.RoundStarted(7 + AHEAD_ROUNDS_MAX), 0)) == [
        events.Pull(A, X, SIZE, 9, exact=True)
    ]


def test_an_offer_far_ahead_is_refused_without_blame_for_this_node_may_be_catching_up() -> None:
    effects = machine().handle(events.Offered(A, 8 + AHEAD_ROUNDS_MAX, X, SIZE), 0)
    assert [type(effect) for effect in effects] == [events.Refuse]


def test_an_offer_for_a_decided_round_is_merely_late() -> None:
    assert machine(events.Settled(7)).handle(events.Offered(A, 7, X, SIZE), 0) == []
    assert machine().handle(events.Offered(A, -3, X, SIZE), 0) == []


def test_an_offer_before_any_round_is_known_is_refused_without_blame() -> None:
    exchange = Exchange(OWN, LIMITS)
    exchange.handle(events.MembersChanged(frozenset([OWN, A])), 0)
    assert [type(effect) for effect in exchange.handle(events.Offered(A, 57, X, SIZE), 0)] == [
        events.Refuse
    ]


def test_a_peer_that_offers_more_payloads_than_there_are_members_is_blamed() -> None:
    flood = [events.Offered(A, 7, blob_digest(number), SIZE) for number in range(5)]
    exchange = machine(*flood)
    assert [
        type(effect) for effect in exchange.handle(events.Offered(A, 7, blob_digest(5), SIZE), 0)
    ] == [events.Blame]
    assert [
        type(effect) for effect in exchange.handle(events.Offered(B, 7, blob_digest(6), SIZE), 0)
    ] == [events.Refuse]


def test_a_flood_gives_its_place_back_as_its_pulls_fail() -> None:
    exchange = machine(*[events.Offered(A, 7, blob_digest(number), SIZE) for number in range(5)])
    exchange.handle(
        events.PullFailed(next(iter(exchange.pulling)), A, events.Failure.ABSENT, ""), 0
    )
    effects = exchange.handle(events.Offered(B, 7, blob_digest(6), SIZE), 0)
    assert effects == [events.Pull(B, blob_digest(6), SIZE, 7, exact=True)]


def test_a_size_that_contradicts_verified_bytes_is_blamed_and_an_unverified_one_refused() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    assert isinstance(exchange.handle(events.Offered(B, 7, X, SIZE + 1), 0)[0], events.Refuse)
    exchange.handle(events.Pulled(X, A, SIZE, 1), 1)
    assert isinstance(exchange.handle(events.Offered(B, 7, X, SIZE + 1), 2)[0], events.Blame)


# ---- pulling


def test_an_offered_payload_is_pulled_once_from_one_of_its_holders() -> None:
    exchange = machine()
    assert exchange.handle(events.Offered(A, 7, X, SIZE), 0) == [
        events.Pull(A, X, SIZE, 7, exact=True)
    ]
    assert exchange.handle(events.Offered(B, 7, X, SIZE), 0) == []


def test_a_held_payload_is_not_pulled() -> None:
    assert machine(events.Published(7, X, SIZE)).handle(events.Offered(A, 7, X, SIZE), 0) == []


def test_pulls_are_bounded_per_peer_and_overall() -> None:
    exchange, live = machine(), Counter[PeerId]()
    for number, holder in enumerate([A, A, A, B, B, B]):
        for pull in of(
            events.Pull,
            exchange.handle(events.Offered(holder, 7, blob_digest(number % 5), SIZE), 0),
        ):
            live[pull.source] += 1
    assert live == {A: LIMITS.pulls_per_peer, B: LIMITS.pulls_max - LIMITS.pulls_per_peer}


def test_the_faster_holder_is_asked_and_an_unknown_one_counts_as_fast() -> None:
    exchange = machine()
    for holder, digest, rate in ((A, X, 1_000), (B, Y, 100_000)):
        exchange.handle(events.Offered(holder, 7, digest, SIZE), 0)
        exchange.handle(events.Pulled(digest, holder, SIZE, rate), 0)
    for holder in (A, B):
        exchange.handle(events.Offered(holder, 8, Z, SIZE), 0)
    assert of(events.Pull, exchange.handle(events.RoundStarted(8), 0))[0].source == B
    for holder in (A, C):
        exchange.handle(events.Offered(holder, 9, blob_digest(9), SIZE), 0)
    assert of(events.Pull, exchange.handle(events.RoundStarted(9), 0))[0].source == C


def test_holders_within_a_factor_of_four_of_the_fastest_share_the_load() -> None:
    asked = set()
    for number in range(20):
        exchange = machine()
        for holder, digest, rate in ((A, X, 26_000), (B, Y, 100_000)):
            exchange.handle(events.Offered(holder, 7, digest, SIZE), 0)
            exchange.handle(events.Pulled(digest, holder, SIZE, rate), 0)
        for holder in (A, B):
            exchange.handle(events.Offered(holder, 8, blob_digest(100 + number), SIZE), 0)
        asked.add(of(events.Pull, exchange.handle(events.RoundStarted(8), 0))[0].source)
    assert asked == {A, B}


def test_nodes_ask_different_holders_for_the_same_payload() -> None:
    members, asked = [peer(number) for number in range(16)], set()
    for own in members[:8]:
        exchange = Exchange(own, LIMITS)
        exchange.handle(events.MembersChanged(frozenset(members)), 0)
        for holder in members[8:]:
            exchange.handle(events.RoundStarted(6), 0)
            exchange.handle(events.Offered(holder, 7, X, SIZE), 0)
        asked |= {
            pull.source for pull in of(events.Pull, exchange.handle(events.RoundStarted(7), 0))
        }
    assert len(asked) >= 4


def test_a_failed_source_is_asked_again_after_its_backoff_and_others_before() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    assert (
        of(events.Pull, exchange.handle(events.PullFailed(X, A, events.Failure.UNAVAILABLE, ""), 0))
        == []
    )
    assert of(events.Pull, exchange.handle(events.Tick(), BROKEN_FIRST_MS - 1)) == []
    assert of(events.Pull, exchange.handle(events.Tick(), BROKEN_FIRST_MS)) == [
        events.Pull(A, X, SIZE, 7, exact=True)
    ]
    exchange.handle(events.Offered(B, 7, X, SIZE), 600)
    retry = exchange.handle(events.PullFailed(X, A, events.Failure.UNAVAILABLE, ""), 600)
    assert of(events.Pull, retry) == [events.Pull(B, X, SIZE, 7, exact=True)]


def test_no_pull_stays_at_a_source_that_let_one_wait_until_it_failed_once_another_offers() -> None:
    for waited_ms, moved in (
        (WAIT_MS - 1, []),
        (WAIT_MS, [events.Pull(B, Y, SIZE, 7, exact=True)]),
    ):
        exchange = machine(events.Offered(A, 7, X, SIZE))
        exchange.handle(events.PullFailed(X, A, events.Failure.UNAVAILABLE, ""), waited_ms)
        exchange.handle(events.Offered(A, 7, Y, SIZE), waited_ms + BACKOFF_MAX_MS)
        effects = exchange.handle(events.Offered(B, 7, Y, SIZE), waited_ms + BACKOFF_MAX_MS + 1)
        assert [each for each in of(events.Pull, effects) if each.digest == Y] == moved


def test_wrong_bytes_are_blamed_and_their_sender_is_no_holder_any_more() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.FAULTY, "wrong digest"), 0)
    assert effects == [events.Blame(A, "wrong digest")]
    assert of(events.Pull, exchange.handle(events.Tick(), 10 * BACKOFF_MAX_MS)) == []


def test_a_worthless_payload_is_not_held_and_blames_everybody_that_offers_it() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.WORTHLESS, "junk"), 0)
    assert effects == [events.Blame(A, "junk")]
    assert exchange.holding(7) == []
    assert not exchange.knows(X)
    offered = exchange.handle(events.Offered(B, 7, X, SIZE), 0)
    assert [(effect.peer, type(effect)) for effect in offered] == [(B, events.Blame)]
    good = exchange.handle(events.Offered(A, 7, Y, SIZE), 0)
    assert of(events.Pull, good) == [events.Pull(A, Y, SIZE, 7, exact=True)], "A is not paused"


def test_a_worthless_payload_that_a_commit_names_is_pulled_again_and_held() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    exchange.handle(events.Wanted(7, (events.Want(X, SIZE, (A, B)),)), 0)
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.WORTHLESS, "junk"), 0)
    assert of(events.Blame, effects) == [events.Blame(A, "junk")]
    [pull] = of(events.Pull, effects)
    assert pull == events.Pull(B, X, SIZE, 7, exact=False)
    assert pull.named


def test_an_overdue_pull_is_dropped_for_another_free_source_and_goes_on_without_one() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    deadline_ms = LIMITS.stall_ms + SLOWNESS_MAX * 1000 * SIZE // RATE_ASSUMED
    assert exchange.handle(events.Tick(), 10 * deadline_ms) == []
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(B, 7, X, SIZE))
    exchange.handle(events.Progressed(X, A, 1), 0)
    assert exchange.handle(events.Tick(), LIMITS.stall_ms - 1) == []
    assert exchange.handle(events.Tick(), LIMITS.stall_ms) == [
        events.Drop(A, X),
        events.Pull(B, X, SIZE, 7, exact=True),
    ]
    assert (
        of(events.Drop, exchange.handle(events.Tick(), 2 * deadline_ms)) == []
    )  # the second attempt has twice the time


def test_a_pull_that_waits_in_a_queue_is_withdrawn_once_for_a_better_holder_and_begins_there() -> (
    None
):
    exchange = machine(events.Offered(A, 7, X, SIZE))
    assert (
        exchange.handle(events.Tick(), WAIT_MS) == []
    )  # nobody else holds it: waiting is no stall
    assert exchange.handle(events.Offered(B, 7, X, SIZE), WAIT_MS) == [events.Withdraw(A, X)]
    assert exchange.handle(events.Tick(), WAIT_MS + 100) == []
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.WITHDRAWN, ""), WAIT_MS + 200)
    assert effects == [events.Pull(B, X, SIZE, 7, exact=True)]


def test_a_waiting_pull_does_not_move_to_a_holder_where_this_node_waits_as_long() -> None:
    """Moving between equal queues helps no node."""
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(B, 7, Y, SIZE))
    assert exchange.handle(events.Offered(B, 7, X, SIZE), WAIT_MS) == []
    assert exchange.handle(events.Tick(), 2 * WAIT_MS) == []
    assert exchange.handle(events.Offered(C, 7, X, SIZE), 3 * WAIT_MS) == [events.Withdraw(A, X)]


def test_a_waiting_pull_goes_to_a_like_holder_that_says_that_it_is_idle_and_begins_there() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(C, 7, X, SIZE))
    assert (
        exchange.handle(events.Idle(C), WAIT_MS - 1) == []
    )  # within a round trip there is no queue to leave
    assert exchange.handle(events.Idle(B), WAIT_MS) == []  # does not hold it
    assert exchange.handle(events.Idle(A), WAIT_MS) == []
    assert exchange.handle(events.Idle(C), WAIT_MS) == [events.Withdraw(A, X, unless_soon=True)]
    assert exchange.handle(events.Idle(C), WAIT_MS) == []
    exchange.handle(events.Offered(B, 7, X, SIZE), WAIT_MS)
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.WITHDRAWN, ""), WAIT_MS + 100)
    assert effects == [events.Pull(C, X, SIZE, 7, exact=True)]


def test_an_idle_holder_gets_one_pull_at_a_time_the_oldest_of_where_this_node_waits_for_most() -> (
    None
):
    exchange = machine(events.Offered(B, 7, Z, SIZE))
    for now_ms, digest in ((1, X), (2, Y)):
        exchange.handle(events.Offered(A, 7, digest, SIZE), now_ms)
    for digest in (X, Y, Z):
        exchange.handle(events.Offered(C, 7, digest, SIZE), 3)
    assert exchange.handle(events.Idle(C), 1000) == [events.Withdraw(A, X, unless_soon=True)]
    assert exchange.handle(events.Idle(C), 1000) == [events.Withdraw(A, Y, unless_soon=True)]
    assert exchange.handle(events.Idle(C), 1000) == [events.Withdraw(B, Z, unless_soon=True)]


def test_a_pull_does_not_go_to_an_idle_holder_that_is_slower_or_once_its_bytes_come() -> None:
    known = (
        events.Offered(A, 7, Y, SIZE),
        events.Pulled(Y, A, SIZE, 100_000),
        events.Offered(C, 7, Z, SIZE),
        events.Pulled(Z, C, SIZE, 1000),
    )
    slower = machine(*known, events.Offered(A, 7, X, SIZE), events.Offered(C, 7, X, SIZE))
    assert slower.handle(events.Idle(C), WAIT_MS) == []
    arriving = machine(
        events.Offered(A, 7, X, SIZE), events.Offered(C, 7, X, SIZE), events.Progressed(X, A, 1)
    )
    assert arriving.handle(events.Idle(C), WAIT_MS) == []


def test_a_source_that_serves_soon_instead_and_then_is_slow_is_left_all_the_same() -> None:
    exchange = machine(
        events.Offered(C, 7, Y, SIZE), events.Pulled(Y, C, SIZE, 1_000_000), limits=PATIENT
    )
    for holder in (A, C):
        exchange.handle(events.Offered(holder, 7, X, 10**6), 0)
    assert exchange.handle(events.Idle(C), WAIT_MS) == [events.Withdraw(A, X, unless_soon=True)]
    assert exchange.handle(events.Progressed(X, A, 1000), 1000) == []
    assert exchange.handle(events.Progressed(X, A, 1000), 2000) == [events.Withdraw(A, X)]


def test_an_idle_stranger_gets_no_pull_and_a_peer_that_left_keeps_none() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(C, 7, X, SIZE))
    exchange.handle(events.Wanted(7, (events.Want(X, SIZE, (peer(99),)),)), 0)
    assert exchange.handle(events.Idle(peer(99)), WAIT_MS) == []
    exchange.handle(events.MembersChanged(frozenset([OWN, B, C])), 1)
    assert exchange.handle(events.Idle(C), 1 + WAIT_MS) == [events.Withdraw(A, X, unless_soon=True)]


def test_a_short_pull_does_not_make_a_slow_source_look_fast() -> None:
    exchange = machine(events.Offered(B, 7, Y, SIZE), limits=PATIENT)
    exchange.handle(events.Pulled(Y, B, SIZE, 1_000_000), 0)
    exchange.handle(events.Offered(A, 7, X, 10**6), 0)
    exchange.handle(events.Progressed(X, A, 1000), 0)
    exchange.handle(events.Offered(B, 7, X, 10**6), 0)
    assert exchange.handle(events.Progressed(X, A, 1000), 100) == [
        events.Withdraw(A, X)
    ]  # 10 kB/s; 1 MB in 0.1 s would be fast
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.WITHDRAWN, ""), 110)
    assert effects == [events.Pull(B, X, 10**6, 7, exact=True)]


def test_a_pull_stays_where_it_is_within_a_round_trip_and_once_its_bytes_come() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    assert exchange.handle(events.Offered(B, 7, X, SIZE), WAIT_MS - 1) == []
    exchange = machine(events.Offered(A, 7, X, SIZE))
    exchange.handle(events.Progressed(X, A, 100), WAIT_MS)
    assert exchange.handle(events.Offered(B, 7, X, SIZE), WAIT_MS) == []


def test_a_withdrawn_source_is_still_a_holder_and_pays_no_backoff() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.WITHDRAWN, ""), 10)
    assert effects == [events.Pull(A, X, SIZE, 7, exact=True)]


def test_an_arriving_pull_moves_only_if_all_arriving_bytes_are_far_slower_than_a_holder() -> None:
    exchange = machine(events.Offered(B, 7, Y, SIZE), limits=PATIENT)
    exchange.handle(events.Pulled(Y, B, SIZE, 100_000), 0)
    exchange.handle(events.Offered(A, 7, X, 10**6), 0)
    exchange.handle(events.Offered(C, 7, Z, 10**6), 0)
    for digest, source in ((X, A), (Z, C)):
        exchange.handle(events.Progressed(digest, source, 1000), 0)
    exchange.handle(events.Offered(B, 7, X, 10**6), 0)
    exchange.handle(
        events.Progressed(Z, C, 100_000), 1000
    )  # 100 kB/s: this node's downlink may be the thin one
    assert exchange.handle(events.Progressed(X, A, 10_000), 1000) == []
    assert of(events.Withdraw, exchange.handle(events.Pulled(Z, C, 10**6, 100_000), 1000)) == [
        events.Withdraw(A, X)
    ]


def test_news_of_a_dropped_pull_changes_nothing_unless_it_brought_the_payload() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(B, 7, X, SIZE))
    exchange.handle(events.Tick(), 60_000)
    assert exchange.handle(events.PullFailed(X, A, events.Failure.FAULTY, "late"), 60_000) == []
    effects = exchange.handle(events.Pulled(X, A, SIZE, 5), 60_000)
    assert effects[:2] == [events.Drop(B, X), events.ReportHolding(7, (X,))]


# ---- links and relays


def test_a_neighbour_without_a_link_is_replaced_by_a_member_with_one() -> None:
    members = [OWN, *(peer(number) for number in range(20, 40))]
    exchange = Exchange(OWN, LIMITS)
    by_hash = neighbours(7, members, OWN, LIMITS.neighbours)
    linked = frozenset(members) - {OWN, by_hash[0]}
    for event in (
        events.MembersChanged(frozenset(members)),
        events.Linked(linked),
        events.RoundStarted(7),
    ):
        exchange.handle(event, 0)
    offered = [
        offer.peer for offer in of(events.Offer, exchange.handle(events.Published(7, X, SIZE), 0))
    ]
    assert offered == neighbours(7, members, OWN, LIMITS.neighbours, linked)
    assert offered[:3] == by_hash[1:]
    assert len(offered) == 4


def test_nothing_is_offered_to_or_pulled_from_a_peer_without_a_link_until_there_is_one() -> None:
    exchange = machine(events.Linked(frozenset([B])), events.Offered(A, 7, X, SIZE))
    assert of(events.Offer, exchange.handle(events.Published(7, Y, SIZE), 0)) == [
        events.Offer(B, 7, ((Y, SIZE),))
    ]
    assert of(events.Pull, exchange.handle(events.Tick(), 0)) == []
    effects = exchange.handle(events.Linked(frozenset([A, B])), 0)
    assert of(events.Offer, effects) == [events.Offer(A, 7, ((Y, SIZE),))]
    assert of(events.Pull, effects) == [events.Pull(A, X, SIZE, 7, exact=True)]


def test_a_link_that_comes_back_is_offered_everything_again() -> None:
    exchange = machine(events.Published(7, X, SIZE), events.Linked(frozenset([B])))
    assert of(events.Offer, exchange.handle(events.Linked(frozenset([A, B])), 0)) == [
        events.Offer(A, 7, ((X, SIZE),))
    ]


def test_an_unlinked_member_is_asked_for_a_wanted_payload_only_after_all_linked_ones() -> None:
    exchange = machine(events.Linked(frozenset([B, C])))
    effects = exchange.handle(events.Wanted(7, (events.Want(X, SIZE, (A,)),)), 0)
    asked = []
    while pulls := of(events.Pull, effects):
        asked.append(pulls[0].source)
        effects = exchange.handle(
            events.PullFailed(X, pulls[0].source, events.Failure.ABSENT, ""), 0
        )
    assert set(asked[:2]) == {B, C}
    assert asked[2] == A
    assert set(asked) == set(PEERS)


def test_a_peer_that_offers_without_being_a_neighbour_is_offered_to() -> None:
    members = [OWN, *(peer(number) for number in range(20, 40))]
    stranger = next(
        m
        for m in sorted(members)
        if m not in (OWN, *neighbours(7, members, OWN, LIMITS.neighbours))
    )
    exchange = Exchange(OWN, LIMITS)
    for event in (
        events.MembersChanged(frozenset(members)),
        events.RoundStarted(7),
        events.Offered(stranger, 7, X, SIZE),
    ):
        exchange.handle(event, 0)
    assert stranger in {
        offer.peer for offer in of(events.Offer, exchange.handle(events.Published(7, Y, SIZE), 0))
    }


def test_a_relay_is_offered_to_and_pulled_from_and_is_no_member() -> None:
    relay = peer(50)
    exchange = machine(
        events.MembersChanged(frozenset([OWN, A]), frozenset([relay])), events.Published(7, X, SIZE)
    )
    assert exchange.handle(events.Offered(relay, 7, Y, SIZE), 0) == [
        events.Pull(relay, Y, SIZE, 7, exact=True)
    ]
    effects = exchange.handle(events.Published(7, X, SIZE), 0)
    assert not of(events.Offer, effects)  # the first time it was offered to both
    fresh = machine(events.MembersChanged(frozenset([OWN, A]), frozenset([relay])))
    assert {
        offer.peer for offer in of(events.Offer, fresh.handle(events.Published(7, X, SIZE), 0))
    } == {A, relay}


def test_a_relay_itself_offers_to_all_members_and_authors_nothing() -> None:
    exchange = Exchange(OWN, LIMITS)
    members = frozenset(peer(number) for number in range(20, 40))
    author = min(members)
    for event in (
        events.MembersChanged(members, frozenset([OWN])),
        events.RoundStarted(7),
        events.Offered(author, 7, X, SIZE),
    ):
        exchange.handle(event, 0)
    offers = of(events.Offer, exchange.handle(events.Pulled(X, author, SIZE, 1000), 0))
    assert {offer.peer for offer in offers} == members - {author}


# ---- an idle uplink


def test_an_idle_node_tells_peers_that_may_wait_for_it_two_at_a_time() -> None:
    exchange = machine(events.Published(7, X, SIZE), events.Served(A, X))
    told, now_ms = list[PeerId](), 0
    for _ in range(3):
        offers = of(events.Offer, exchange.handle(events.Tick(idle=True), now_ms))
        assert all(offer == events.Offer(offer.peer, 7, (), idle=True) for offer in offers)
        assert exchange.handle(events.Tick(idle=True), now_ms + PAUSE_MS - 1) == []
        told, now_ms = [*told, *(offer.peer for offer in offers)], now_ms + PAUSE_MS
    assert len(told) == 3 * INVITED
    assert set(told) == set(PEERS) - {A}


def test_a_node_that_holds_nothing_or_is_not_idle_invites_no_peer() -> None:
    assert machine(events.Offered(A, 7, X, SIZE)).handle(events.Tick(idle=True), 10) == []
    assert machine(events.Published(7, X, SIZE)).handle(events.Tick(), 10) == []
    assert (
        machine(events.Published(7, X, SIZE), events.Settled(7)).handle(events.Tick(idle=True), 10)
        == []
    )


# ---- serving


def test_the_own_payload_is_most_urgent_until_a_peer_holds_it_then_the_rarest() -> None:
    exchange = machine(
        events.Published(7, X, SIZE), events.Offered(A, 7, Y, SIZE), events.Pulled(Y, A, SIZE, 1000)
    )
    assert exchange.urgency(B, X) < exchange.urgency(B, Y) < exchange.urgency(B, Z)
    exchange.handle(events.Served(B, X), 0)
    assert exchange.urgency(C, X) < exchange.urgency(C, Y)  # equally rare: the own one
    exchange.handle(events.Served(C, X), 0)
    assert exchange.urgency(C, Y) < exchange.urgency(C, X)


def test_of_two_rounds_the_older_is_more_urgent_however_rare_the_payload_of_the_younger() -> None:
    exchange = machine(
        events.Offered(A, 7, X, SIZE),
        events.Pulled(X, A, SIZE, 1000),
        events.RoundStarted(8),
        events.Published(8, Y, SIZE),
    )
    assert exchange.urgency(B, X) < exchange.urgency(B, Y) < exchange.urgency(B, Z)


def test_among_equals_the_peer_that_sends_fastest_is_most_urgent() -> None:
    exchange = machine(
        events.Published(7, X, SIZE),
        events.Offered(A, 7, Y, SIZE),
        events.Pulled(Y, A, SIZE, 1_000_000),
    )
    assert exchange.urgency(A, X) < exchange.urgency(B, X)


def test_a_peer_that_was_served_a_payload_is_not_offered_it() -> None:
    exchange = machine(events.Published(7, X, SIZE), events.OfferFailed(A, 7), events.Served(A, X))
    assert not of(events.Offer, exchange.handle(events.Tick(), OFFER_RETRY_MS))


# ---- commits


def test_a_wanted_payload_is_asked_of_other_members_once_no_holder_answers() -> None:
    exchange = machine()
    assert of(events.Pull, exchange.handle(events.Wanted(7, (events.Want(X, SIZE, (A,)),)), 0)) == [
        events.Pull(A, X, SIZE, 7, exact=False)
    ]
    asked = []
    effects = exchange.handle(events.PullFailed(X, A, events.Failure.UNAVAILABLE, ""), 0)
    while pulls := of(events.Pull, effects):
        asked.append(pulls[0].source)
        effects = exchange.handle(
            events.PullFailed(X, pulls[0].source, events.Failure.ABSENT, ""), 1
        )
    assert sorted(asked) == sorted(set(PEERS) - {A})
    assert of(events.Pull, exchange.handle(events.Tick(), BACKOFF_FIRST_MS)) == [
        events.Pull(A, X, SIZE, 7, exact=False)
    ]


def test_a_busy_holder_of_a_wanted_payload_is_waited_for() -> None:
    wants = tuple(events.Want(blob_digest(number), SIZE, (A,)) for number in range(3))
    assert (
        len(of(events.Pull, machine().handle(events.Wanted(7, wants), 0))) == LIMITS.pulls_per_peer
    )


def test_a_commit_drops_the_payloads_that_it_does_not_name() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(B, 7, Y, SIZE))
    assert exchange.handle(events.Wanted(7, (events.Want(Y, SIZE, (B,)),)), 0) == [
        events.Drop(A, X)
    ]
    assert exchange.handle(events.Offered(C, 7, X, SIZE), 0) == []
    assert [lack.digest for lack in exchange.lacking(7)] == [Y]


def test_payloads_that_a_commit_names_are_pulled_first() -> None:
    narrow = events.SwarmLimits(payload_bytes_max=10 * SIZE, neighbours=4, pulls_max=1)
    exchange = machine(events.Offered(A, 7, X, SIZE), events.Offered(B, 7, Y, SIZE), limits=narrow)
    exchange.handle(events.Wanted(12, (events.Want(Z, SIZE, (C,)),)), 0)
    assert of(events.Pull, exchange.handle(events.Pulled(X, A, SIZE, 1), 1)) == [
        events.Pull(C, Z, SIZE, 12, exact=False, replayed=True)
    ]


def test_of_a_commit_of_an_unopened_round_only_payloads_that_the_log_lacks_are_fetched() -> None:
    exchange = machine()
    effects = exchange.handle(
        events.Wanted(3, (events.Want(X, SIZE, (A,)), events.Want(Y, SIZE, (A,), held=True))), 0
    )
    assert effects == [events.Pull(A, X, SIZE, 3, exact=False, replayed=True)]
    assert exchange.holds(3, Y)
    assert not exchange.holds(3, X)
    assert exchange.handle(events.Settled(3), 0) == [events.Drop(A, X)]


def test_a_payload_that_the_log_lost_is_pulled_again() -> None:
    exchange = machine(
        events.Wanted(7, (events.Want(X, SIZE, (A,)),)), events.Pulled(X, A, SIZE, 1)
    )
    assert of(events.Pull, exchange.handle(events.Lost(X), 1)) == [
        events.Pull(A, X, SIZE, 7, exact=False)
    ]


def test_a_settled_round_is_forgotten_and_stays_so_when_it_is_opened_again() -> None:
    exchange = machine(events.Offered(A, 7, X, SIZE))
    assert exchange.handle(events.Settled(7), 0) == [events.Drop(A, X)]
    exchange.handle(events.RoundStarted(7), 0)
    assert exchange.rounds == []
    assert exchange.handle(events.Pulled(X, A, SIZE, 1), 0) == []


def test_undecided_rounds_are_forgotten_beyond_a_bound() -> None:
    exchange = machine(
        *[events.RoundStarted(number) for number in range(8, 8 + 2 * UNDECIDED_ROUNDS_MAX)]
    )
    assert len(exchange.rounds) == UNDECIDED_ROUNDS_MAX


def test_a_found_payload_is_held_reported_and_listed() -> None:
    exchange = machine(events.Published(7, Y, SIZE))
    assert of(events.ReportHolding, exchange.handle(events.Found(7, X, SIZE), 0)) == [
        events.ReportHolding(7, (X,))
    ]
    assert exchange.holding(7) == [X]


# ---- payloads that no member keeps


def given_up(exchange: Exchange, digest: Digest, failures: int, *peers: PeerId) -> bool:
    """Whether the payload is not retained after each of these peers failed so often to give it."""
    effects: list[events.Effect] = []
    failed, now_ms = Counter[PeerId](), 0
    while not all(failed[peer] >= failures for peer in peers):
        now_ms += BACKOFF_MAX_MS
        exchange.handle(events.Tick(), now_ms)
        source = exchange.pulling[digest]
        failed[source] += 1
        absent = events.PullFailed(digest, source, events.Failure.ABSENT, "")
        effects += of(events.NotRetained, exchange.handle(absent, now_ms))
        exchange.validate()
    return events.NotRetained(7, digest) in effects


def test_a_payload_is_not_retained_once_every_member_failed_three_times_to_give_it() -> None:
    wanted = events.Wanted(7, (events.Want(X, SIZE, ()),))
    assert not given_up(machine(wanted), X, ABSENCES - 1, *PEERS)
    assert given_up(machine(wanted), X, ABSENCES, *PEERS)


def test_members_without_a_link_and_relays_do_not_keep_a_payload_from_being_given_up() -> None:
    relay = peer(50)
    exchange = machine(
        events.MembersChanged(frozenset([OWN, *PEERS]), frozenset([relay])),
        events.Linked(frozenset([A, B, relay])),
        events.Wanted(7, (events.Want(X, SIZE, ()),)),
    )
    assert given_up(exchange, X, ABSENCES, A, B)


def test_a_payload_that_is_not_retained_is_asked_for_all_the_same() -> None:
    exchange = machine(events.Wanted(7, (events.Want(X, SIZE, ()),)))
    assert given_up(exchange, X, ABSENCES, *PEERS)
    assert X in exchange.pulling


def test_an_offer_takes_back_the_failures_of_its_sender() -> None:
    exchange = machine(events.Linked(frozenset([A])), events.Wanted(7, (events.Want(X, SIZE, ()),)))
    assert not given_up(exchange, X, ABSENCES - 1, A)
    exchange.handle(events.Offered(A, 7, X, SIZE), 0)
    assert not given_up(exchange, X, ABSENCES - 1, A)


def test_a_payload_that_no_commit_names_is_never_given_up() -> None:
    exchange = machine(events.Linked(frozenset([A])), events.Offered(A, 7, X, SIZE))
    absent = events.PullFailed(X, A, events.Failure.ABSENT, "")
    assert exchange.handle(absent, 0) == []
    assert exchange.rounds == [7]


# ---- invariants


def test_validate_names_a_source_with_too_many_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PullPolicy, "_busy", lambda policy: set())
    with pytest.raises(AssertionError, match=f"3 pulls from {A}"):
        machine(*[events.Offered(A, 7, blob_digest(number), SIZE) for number in range(3)])


def test_validate_names_a_peer_that_was_told_and_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = machine(events.Published(7, X, SIZE))
    monkeypatch.setattr(Rounds, "meet", lambda rounds, peers: None)
    exchange.handle(events.MembersChanged(frozenset([OWN, A])), 0)
    with pytest.raises(AssertionError, match="told an unlinked peer"):
        exchange.validate()


# ---- random histories

_peers = st.sampled_from([OWN, *PEERS, peer(99)])
_digests = st.sampled_from([blob_digest(number) for number in range(7)])
_rounds = st.integers(0, 6)
_sizes = st.sampled_from([SIZE, SIZE, SIZE, 1, 10 * SIZE, 11 * SIZE])
_wants = st.builds(
    events.Want, _digests, st.just(SIZE), st.lists(_peers, max_size=3).map(tuple), st.booleans()
)
_events = st.one_of(
    st.builds(
        events.MembersChanged, st.frozensets(st.sampled_from(PEERS)).map(lambda some: some | {OWN})
    ),
    st.builds(events.Linked, st.frozensets(st.sampled_from(PEERS))),
    st.builds(events.RoundStarted, _rounds),
    st.builds(events.Found, _rounds, _digests, st.just(SIZE)),
    st.builds(events.Offered, _peers, _rounds, _digests, _sizes),
    st.builds(events.Offered, _peers, _rounds, _digests, _sizes),
    st.builds(events.OfferFailed, _peers, _rounds),
    st.builds(events.Idle, _peers),
    st.builds(
        events.Wanted,
        _rounds,
        st.lists(_wants, max_size=3, unique_by=lambda want: want.digest).map(tuple),
    ),
    st.builds(events.Pulled, _digests, _peers, st.just(SIZE), st.integers(0, 10**9)),
    st.builds(
        events.PullFailed, _digests, _peers, st.sampled_from(events.Failure), st.just("reason")
    ),
    st.builds(events.Progressed, _digests, _peers, st.just(SIZE // 4)),
    st.builds(events.Served, _peers, _digests),
    st.builds(events.Lost, _digests),
    st.builds(events.Settled, _rounds),
    st.builds(events.Tick, st.booleans()),
)
_histories = st.lists(st.tuples(_events, st.integers(0, 5000)), max_size=60)


@dataclass
class Checker:
    """The state that an outsider can infer from events and effects alone."""

    live: dict[Digest, PeerId] = field(default_factory=dict)
    verified: set[Digest] = field(default_factory=set)

    def saw_event(self, event: events.Event) -> None:
        match event:
            case events.Found(digest=digest) | events.Pulled(digest=digest):
                self.verified.add(digest)
            case events.Wanted(wants=wants):
                self.verified |= {want.digest for want in wants if want.held}
            case events.Lost(digest=digest):
                self.verified.discard(digest)
            case _:
                pass
        if (
            isinstance(event, events.Pulled | events.PullFailed)
            and self.live.get(event.digest) == event.source
        ):
            del self.live[event.digest]

    def saw_effect(self, effect: events.Effect) -> None:
        match effect:
            case events.Pull():
                assert effect.digest not in self.live, "two live pulls of one digest"
                assert effect.source != OWN
                self.live[effect.digest] = effect.source
                per_source = Counter(self.live.values())
                assert len(self.live) <= LIMITS.pulls_max
                assert per_source[effect.source] <= LIMITS.pulls_per_peer
            case events.Withdraw():
                assert self.live[effect.digest] == effect.source
            case events.Drop():
                assert self.live.pop(effect.digest) == effect.source
            case events.Offer():
                assert {digest for digest, _ in effect.payloads} <= self.verified
                assert effect.peer not in (OWN, peer(99))
            case _:
                pass


@settings(max_examples=250)
@given(_histories)
def test_any_history_keeps_pulls_single_offers_true_and_memory_bounded(
    history: list[tuple[events.Event, int]],
) -> None:
    one, two, checker, now_ms = Exchange(OWN, LIMITS), Exchange(OWN, LIMITS), Checker(), 0
    for event, later_ms in [(events.MembersChanged(frozenset([OWN, *PEERS])), 0), *history]:
        now_ms += later_ms
        checker.saw_event(event)
        effects = one.handle(event, now_ms)
        assert effects == two.handle(event, now_ms)
        for effect in effects:
            checker.saw_effect(effect)
        one.validate()
        assert len(one.rounds) <= UNDECIDED_ROUNDS_MAX + AHEAD_ROUNDS_MAX + 7
