"""Promises of the exchange in rounds with a plan: parts go to the summers of their range."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.gossip.machine.rounds import AHEAD_ROUNDS_MAX
from protocol.ids import Digest, PeerId
from protocol.sums.plan import SumPlan
from tests.node.gossip.machine.names import LIMITS, OWN, PEERS, SIZE, A, B, C, X, Y, Z, blob_digest
from tests.node.gossip.machine.names import peer as peer_of

RELAY = peer_of(50)
ROUND = 7
PLAN = SumPlan((frozenset([A, B]), frozenset([B, OWN]), frozenset([C, A])))
"""Three ranges; this node adds the second."""

MEMBERS = events.MembersChanged(frozenset([OWN, *PEERS]), frozenset([RELAY]))


def opened(plan: SumPlan | None = PLAN) -> events.RoundStarted:
    return events.RoundStarted(ROUND, plan=plan)


def machine(*history: events.Event, own: PeerId = OWN) -> Exchange:
    exchange = Exchange(own, LIMITS)
    for event in (MEMBERS, opened(), *history):
        exchange.handle(event, 0)
        exchange.validate()
    return exchange


def told(effects: list[events.Effect]) -> dict[PeerId, list[Digest]]:
    """Who is offered what."""
    offers = [effect for effect in effects if isinstance(effect, events.Offer)]
    return {offer.peer: [digest for digest, _ in offer.payloads] for offer in offers}


def pulls(effects: list[events.Effect]) -> dict[Digest, PeerId]:
    return {each.digest: each.source for each in effects if isinstance(each, events.Pull)}


def part(digest: Digest, *ranges: int, sender: PeerId = A, round: int = ROUND) -> events.Offered:
    return events.Offered(sender, round, digest, SIZE, sum(1 << number for number in ranges))


@pytest.mark.parametrize(
    ("ranges", "takers"), [(0b001, {A, B}), (0b010, {B}), (0b100, {A, C}), (0b110, {A, B, C})]
)
def test_an_own_part_goes_to_the_summers_of_its_ranges_alone(
    ranges: int, takers: set[PeerId]
) -> None:
    offers = told(machine().handle(events.Published(ROUND, X, SIZE, ranges), 0))
    assert offers == {taker: [X] for taker in takers}


def test_a_node_publishes_all_its_parts_and_a_result_that_nobody_is_offered() -> None:
    exchange = machine(*[events.Published(ROUND, blob_digest(n), SIZE, 1 << n) for n in range(3)])
    assert exchange.handle(events.Published(ROUND, blob_digest(9), SIZE), 0) == []
    assert exchange.knows(blob_digest(9))
    assert exchange.holding(ROUND) == []


def test_relays_are_offered_a_part_while_a_summer_of_its_range_has_no_link() -> None:
    exchange = machine(events.Linked(frozenset([A, B, RELAY])))
    assert set(told(exchange.handle(events.Published(ROUND, X, SIZE, 0b001), 0))) == {A, B}
    assert set(told(exchange.handle(events.Published(ROUND, Y, SIZE, 0b100), 0))) == {A, RELAY}
    assert told(exchange.handle(events.Linked(frozenset([A, B, C, RELAY])), 0)) == {C: [Y]}
    exchange.validate()


def test_a_relay_takes_parts_of_all_ranges_and_passes_them_on() -> None:
    exchange = machine(own=RELAY)
    assert exchange.ranges(ROUND) == 0b111
    exchange.handle(part(X, 0), 0)
    assert told(exchange.handle(events.Pulled(X, A, SIZE, 1000), 0)) == {B: [X]}


def test_a_summer_passes_parts_of_its_range_to_the_others_and_reports_none_as_a_payload() -> None:
    exchange = machine()
    assert pulls(exchange.handle(part(X, 1, sender=C), 0)) == {X: C}
    assert told(exchange.handle(events.Pulled(X, C, SIZE, 1000), 0)) == {B: [X]}
    effects = exchange.handle(part(Y, 1, sender=B), 0)
    effects += exchange.handle(events.Pulled(Y, B, SIZE, 1000), 0)
    assert not any(isinstance(effect, events.ReportHolding) for effect in effects)
    assert told(effects) == {}


def test_an_offer_that_failed_is_made_again() -> None:
    exchange = machine(events.Published(ROUND, X, SIZE, 0b010))
    assert told(exchange.handle(events.OfferFailed(B, ROUND), 0)) == {}
    assert told(exchange.handle(events.Tick(), 999)) == {}
    assert told(exchange.handle(events.Tick(), 1000)) == {B: [X]}


def test_a_wrong_size_in_anothers_list_keeps_no_part_out() -> None:
    exchange = machine()
    wrong = events.Offered(C, ROUND, X, SIZE + 1, 0b010)
    assert pulls(exchange.handle(wrong, 0)) == {X: C}
    assert exchange.handle(part(X, 1, sender=B), 0) == []
    failed = events.PullFailed(X, C, events.Failure.FAULTY, "another size")
    effects = exchange.handle(failed, 0)
    [pull] = [effect for effect in effects if isinstance(effect, events.Pull)]
    assert (pull.source, pull.exact, pull.named) == (B, False, False)
    exchange.handle(wrong, 0)
    exchange.handle(events.Pulled(X, B, SIZE, 1000), 0)
    assert isinstance(exchange.handle(wrong, 0)[0], events.Blame)
    assert exchange.handle(part(X, 1, sender=B), 0) == []


def test_one_more_summer_is_offered_what_is_held() -> None:
    exchange = machine(events.Published(ROUND, X, SIZE, 0b010))
    assert told(exchange.handle(events.SummerAdded(ROUND, 1, C), 0)) == {C: [X]}
    assert told(exchange.handle(events.SummerAdded(ROUND, 9, A), 0)) == {}
    assert told(exchange.handle(events.SummerAdded(99, 0, A), 0)) == {}


def test_a_node_that_is_added_takes_parts_of_the_range_from_then_on() -> None:
    exchange = machine()
    assert isinstance(exchange.handle(part(X, 0), 0)[0], events.Refuse)
    exchange.handle(events.SummerAdded(ROUND, 0, OWN), 0)
    assert exchange.ranges(ROUND) == 0b011
    assert pulls(exchange.handle(part(X, 0), 0)) == {X: A}


def test_an_opening_that_is_told_again_takes_no_summer_away() -> None:
    exchange = machine(events.SummerAdded(ROUND, 0, OWN), opened())
    assert exchange.ranges(ROUND) == 0b011
    exchange.handle(events.RoundStarted(ROUND), 0)
    assert exchange.ranges(ROUND) == 0b011


@pytest.mark.parametrize(
    "offer",
    [
        events.Offered(A, ROUND, X, SIZE),
        part(X, 0),
        part(X, 0, 1),
        part(X, 63),
        part(X, 1, round=ROUND + AHEAD_ROUNDS_MAX),
    ],
)
def test_what_is_no_part_for_this_node_is_refused_without_blame(offer: events.Offered) -> None:
    exchange = machine()
    [answer] = exchange.handle(offer, 0)
    assert isinstance(answer, events.Refuse)
    assert not exchange.knows(X)


def test_a_part_is_refused_in_a_round_that_has_none() -> None:
    exchange = Exchange(OWN, LIMITS)
    for event in (MEMBERS, opened(None)):
        exchange.handle(event, 0)
    [answer] = exchange.handle(part(X, 0), 0)
    assert isinstance(answer, events.Refuse)


def test_what_was_offered_whole_before_the_round_was_opened_with_a_plan_is_dropped() -> None:
    exchange = Exchange(OWN, LIMITS)
    for event in (MEMBERS, events.RoundStarted(ROUND - 1)):
        exchange.handle(event, 0)
    assert exchange.handle(events.Offered(A, ROUND, X, SIZE), 0) == []
    assert exchange.knows(X)
    assert exchange.handle(opened(), 0) == []
    assert not exchange.knows(X)
    exchange.validate()


def test_a_round_has_room_for_a_part_of_each_member_in_each_range_of_this_node() -> None:
    own = [events.Published(ROUND, blob_digest(100 + n), SIZE, 1 << n) for n in (0, 2)]
    exchange = machine(*own)
    members = len(MEMBERS.members)
    for number in range(members):
        offered = exchange.handle(part(blob_digest(number), 1, sender=A if number else B), 0)
        assert not any(isinstance(each, events.Refuse | events.Blame) for each in offered)
    answers = exchange.handle(part(blob_digest(members), 1, sender=C), 0)
    assert [type(answer) for answer in answers] == [events.Refuse]


def test_a_part_that_a_sum_needs_is_asked_of_everybody_unchecked_and_passed_on_to_nobody() -> None:
    exchange = machine(events.Linked(frozenset([A, C])))
    want = events.Want(X, SIZE, (A,))
    [pull] = exchange.handle(events.PartsNeeded(ROUND, (want,)), 0)
    assert pull == events.Pull(A, X, SIZE, ROUND, exact=False)
    assert isinstance(pull, events.Pull)
    assert pull.named
    absent = events.PullFailed(X, A, events.Failure.ABSENT, "")
    assert pulls(exchange.handle(absent, 0)) == {X: C}
    assert exchange.handle(events.Pulled(X, C, 10 * SIZE, 1000), 0) == []
    assert exchange.holds(ROUND, X)


def test_a_part_that_counts_for_nothing_is_pulled_again_when_a_sum_needs_it() -> None:
    exchange = machine(part(X, 1))
    exchange.handle(events.PullFailed(X, A, events.Failure.WORTHLESS, "bad"), 0)
    assert isinstance(exchange.handle(part(X, 1), 0)[0], events.Blame)
    assert X in pulls(
        exchange.handle(events.PartsNeeded(ROUND, (events.Want(X, SIZE, (A,)),)), 1000)
    )


def test_a_part_that_was_offered_and_is_then_needed_for_a_sum_is_passed_on_to_nobody() -> None:
    exchange = machine(part(X, 1, sender=C), part(Y, 1, sender=C))
    exchange.handle(events.PartsNeeded(ROUND, (events.Want(X, SIZE, (C,)),)), 0)
    assert told(exchange.handle(events.Pulled(X, C, SIZE, 1000), 0)) == {}
    assert told(exchange.handle(events.Pulled(Y, C, SIZE, 1000), 0)) == {B: [Y]}


def test_a_part_that_the_log_holds_is_not_asked_for() -> None:
    exchange = machine()
    want = events.Want(X, SIZE, (A,), held=True)
    assert exchange.handle(events.PartsNeeded(ROUND, (want,)), 0) == []
    assert exchange.holds(ROUND, X)
    assert exchange.handle(events.PartsNeeded(99, (want,)), 0) == []


def test_a_commit_drops_the_parts_and_spreads_the_results_as_payloads() -> None:
    exchange = machine(
        events.Published(ROUND, X, SIZE, 0b001), events.Published(ROUND, Z, SIZE), part(Y, 1)
    )
    wants = (events.Want(Z, SIZE, (OWN, A)), events.Want(blob_digest(5), SIZE, (B,)))
    effects = exchange.handle(events.Wanted(ROUND, wants), 0)
    assert events.Drop(A, Y) in effects
    assert pulls(effects) == {blob_digest(5): B}
    assert set(told(effects)) == {B, C, RELAY, *PEERS} - {A}
    assert exchange.ranges(ROUND) == 0
    assert exchange.is_over(ROUND)
    exchange.validate()
    # A peer that has a result says so, as with a payload; what it says of others is late.
    assert exchange.handle(events.Offered(C, ROUND, blob_digest(5), SIZE), 0) == []
    assert exchange.handle(events.Offered(C, ROUND, blob_digest(6), SIZE), 0) == []
    assert exchange.handle(part(Y, 1), 0) == []
    assert not exchange.knows(Y)


# ---- random histories

_peers = st.sampled_from([OWN, *PEERS, RELAY, peer_of(99)])
_digests = st.sampled_from([blob_digest(number) for number in range(7)])
_rounds = st.integers(0, 4)
_bits = st.integers(0, 2**4 - 1)
_plans = st.none() | st.lists(st.frozensets(_peers, max_size=3), min_size=1, max_size=3).map(
    lambda rows: SumPlan(tuple(rows))
)
_wants = st.lists(
    st.builds(
        events.Want, _digests, st.just(SIZE), st.lists(_peers, max_size=2).map(tuple), st.booleans()
    ),
    max_size=3,
    unique_by=lambda want: want.digest,
).map(tuple)
_events = st.one_of(
    st.builds(
        events.MembersChanged,
        st.frozensets(st.sampled_from(PEERS)).map(lambda some: some | {OWN}),
        st.frozensets(st.just(RELAY)),
    ),
    st.builds(events.Linked, st.frozensets(st.sampled_from([*PEERS, RELAY]))),
    st.builds(events.RoundStarted, _rounds, st.none(), _plans),
    st.builds(events.SummerAdded, _rounds, st.integers(-1, 4), _peers),
    st.builds(events.Offered, _peers, _rounds, _digests, st.sampled_from([SIZE, 0, 2]), _bits),
    st.builds(events.Offered, _peers, _rounds, _digests, st.just(SIZE), _bits),
    st.builds(events.OfferFailed, _peers, _rounds),
    st.builds(events.Wanted, _rounds, _wants),
    st.builds(events.PartsNeeded, _rounds, _wants),
    st.builds(events.Pulled, _digests, _peers, st.just(SIZE), st.integers(0, 10**9)),
    st.builds(
        events.PullFailed, _digests, _peers, st.sampled_from(events.Failure), st.just("reason")
    ),
    st.builds(events.Served, _peers, _digests),
    st.builds(events.Lost, _digests),
    st.builds(events.Settled, _rounds),
    st.builds(events.Tick, st.booleans()),
)


@settings(max_examples=250)
@given(st.lists(st.tuples(_events, st.integers(0, 3000)), max_size=50))
def test_any_history_keeps_parts_among_those_that_take_them(
    history: list[tuple[events.Event, int]],
) -> None:
    one, two, now_ms = Exchange(OWN, LIMITS), Exchange(OWN, LIMITS), 0
    for event, later_ms in [(MEMBERS, 0), *history]:
        now_ms += later_ms
        effects = one.handle(event, now_ms)
        assert effects == two.handle(event, now_ms)
        one.validate()
        for effect in effects:
            if isinstance(effect, events.Offer) and effect.payloads:
                assert all(one.holds(effect.round, digest) for digest, _ in effect.payloads)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 0b111), max_size=20))
def test_a_taker_is_told_of_each_of_its_parts_once(said: list[int]) -> None:
    exchange, heard = machine(), list[tuple[PeerId, Digest]]()
    expected = set[tuple[PeerId, Digest]]()
    for number, ranges in enumerate(said):
        digest = blob_digest(number)
        for peer, digests in told(
            exchange.handle(events.Published(ROUND, digest, SIZE, ranges), 0)
        ).items():
            heard += [(peer, each) for each in digests]
        for place, summers in enumerate(PLAN.summers):
            if ranges >> place & 1:
                expected |= {(peer, digest) for peer in summers - {OWN}}
    assert len(heard) == len(set(heard))
    assert set(heard) == expected
