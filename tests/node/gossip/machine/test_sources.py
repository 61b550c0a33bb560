"""Promises of sources: their rates and pauses, and which one is asked."""

import pytest

from node.gossip.machine.payloads import Payload
from node.gossip.machine.sources import (
    BROKEN_FIRST_MS,
    OFFER_RETRY_MS,
    RATE_ASSUMED,
    Sources,
    rate_of,
)
from protocol.ids import Digest, PeerId
from tests.node.gossip.machine.names import OWN, PEERS, SIZE, A, B, C, X, blob_digest, peer


def known(*rates: tuple[PeerId, int]) -> Sources:
    """All peers, some of them measured."""
    sources = Sources(OWN)
    sources.set_peers(PEERS)
    for measured, rate in rates:
        sources.succeeded(measured, rate)
    return sources


def best(
    sources: Sources,
    payload: Payload,
    busy: frozenset[PeerId] = frozenset(),
    now_ms: int = 0,
    digest: Digest = X,
) -> PeerId | None:
    return sources.best(digest, payload, sources.reachable(now_ms), set(busy), now_ms)


# ---- rates


def test_a_rate_is_a_moving_average_with_a_quarter_of_the_new_one() -> None:
    sources = known((A, 1000))
    assert sources.rate(A) == 1000
    sources.succeeded(A, 2000)
    assert sources.rate(A) == (3 * 1000 + 2000) // 4


def test_a_pull_without_a_byte_to_send_does_not_change_the_rate() -> None:
    sources = known((A, 1000))
    sources.succeeded(A, 0)
    assert sources.rate(A) == 1000


def test_a_capped_rate_only_falls_and_is_set_if_there_was_none() -> None:
    sources = known((A, 1000))
    for ceiling in (500, 800):
        sources.cap_rate(A, ceiling)
    sources.cap_rate(B, 700)
    assert (sources.rate(A), sources.rate(B)) == (500, 700)


def test_the_fastest_is_assumed_until_a_peer_is_measured_and_again_when_it_leaves() -> None:
    sources = known()
    assert sources.fastest == RATE_ASSUMED
    sources.succeeded(A, 3)
    sources.succeeded(B, 2)
    assert sources.fastest == 3
    sources.set_peers([B, C])
    assert sources.fastest == 2
    sources.set_peers([C])
    assert sources.fastest == RATE_ASSUMED


def test_a_peer_that_stays_keeps_its_rate_and_one_that_returns_is_new() -> None:
    sources = known((A, 1000), (B, 1000))
    sources.set_peers([A])
    sources.set_peers(PEERS)
    assert (sources.rate(A), sources.rate(B)) == (1000, 0)


@pytest.mark.parametrize(
    ("size", "elapsed_ms", "rate"), [(0, 10, 1), (500, 0, 500_000), (2000, 1000, 2000)]
)
def test_a_rate_is_at_least_one_byte_per_second(size: int, elapsed_ms: int, rate: int) -> None:
    assert rate_of(size, elapsed_ms) == rate


# ---- pauses and links


def test_a_failed_source_is_reachable_again_after_its_pause_and_at_once_after_a_success() -> None:
    sources = known()
    sources.failed(A, 0, silent=False)
    assert A not in sources.reachable(BROKEN_FIRST_MS - 1)
    assert A in sources.reachable(BROKEN_FIRST_MS)
    sources.succeeded(A, 1)
    assert A in sources.reachable(0)


def test_only_a_source_whose_link_breaks_is_reachable_as_soon_after_each_failure() -> None:
    sources = known()
    for _ in range(8):
        sources.failed(A, 0, silent=False, broke=True)
        sources.failed(B, 0, silent=False)
    assert A in sources.reachable(BROKEN_FIRST_MS)
    assert B not in sources.reachable(4 * BROKEN_FIRST_MS)
    sources.failed(A, 0, silent=False)
    sources.failed(A, 0, silent=False)
    assert A not in sources.reachable(BROKEN_FIRST_MS), "it is gone"


def test_a_peer_that_refused_an_offer_takes_none_for_a_while_and_without_a_link_none() -> None:
    sources = known()
    sources.offer_failed(A, 0)
    assert not sources.takes_offers(A, OFFER_RETRY_MS - 1)
    assert sources.takes_offers(A, OFFER_RETRY_MS)
    sources.set_linked(frozenset([B]))
    assert not sources.takes_offers(A, OFFER_RETRY_MS)
    assert sources.takes_offers(B, 0)
    assert not sources.takes_offers(peer(99), 0)


def test_all_sources_count_as_linked_until_the_links_are_known() -> None:
    sources = known()
    assert set(sources.linked) == set(PEERS)
    sources.set_linked(frozenset([A, peer(99)]))
    assert set(sources.linked) == {A}


def test_news_of_a_peer_that_is_no_source_is_ignored() -> None:
    sources, stranger = known(), peer(99)
    sources.succeeded(stranger, 10**6)
    sources.failed(stranger, 0, silent=False)
    sources.cap_rate(stranger, 1)
    sources.offer_failed(stranger, 0)
    assert stranger not in sources
    assert sources.rate(stranger) == 0
    assert sources.fastest == RATE_ASSUMED


# ---- the best source


def test_a_payload_that_no_commit_names_is_asked_of_linked_holders_alone() -> None:
    sources = known()
    sources.set_linked(frozenset([A]))
    assert best(sources, Payload(SIZE, holders={A, B})) == A
    assert best(sources, Payload(SIZE, holders={B})) is None
    assert best(sources, Payload(SIZE)) is None


def test_a_wanted_payload_is_asked_of_holders_then_linked_peers_then_all() -> None:
    sources = known()
    sources.set_linked(frozenset([B]))
    wanted = Payload(SIZE, wanted=True, holders={A})
    assert best(sources, wanted) == B
    wanted.remove_holder(B, 0)
    assert best(sources, wanted) == A
    wanted.remove_holder(A, 0)
    assert best(sources, wanted) in set(PEERS) - {A, B}


def test_a_busy_holder_is_waited_for() -> None:
    wanted = Payload(SIZE, wanted=True, holders={A})
    assert best(known(), wanted, busy=frozenset([A])) is None


def test_a_source_that_failed_is_asked_last() -> None:
    sources = known((A, 10**6))
    sources.failed(A, 0, silent=False)
    assert best(sources, Payload(SIZE, holders={A, B}), now_ms=BROKEN_FIRST_MS) == B


@pytest.mark.parametrize(("rate", "equal"), [(100_000, True), (25_001, True), (25_000, False)])
def test_rates_within_a_factor_of_four_are_equal(rate: int, equal: bool) -> None:
    sources = known((A, 100_000), (B, rate))
    payload = Payload(SIZE, holders={A, B})
    assert (sources.cost(payload, A) == sources.cost(payload, B)) is equal
    chosen = {best(sources, payload, digest=blob_digest(number)) for number in range(20)}
    assert chosen == ({A, B} if equal else {A})


def test_an_unmeasured_source_counts_as_fast_unless_a_ceiling_bounds_it() -> None:
    sources, payload = known((A, 100_000)), Payload(SIZE)
    assert sources.cost(payload, B) == sources.cost(payload, A)
    assert sources.cost(payload, B, ceiling=1000) > sources.cost(payload, A)
    assert sources.cost(payload, A, ceiling=10**9) == sources.cost(payload, A)


def test_a_peer_that_did_not_give_the_payload_is_a_worse_source_of_it() -> None:
    sources, payload = known(), Payload(SIZE, holders={A, B})
    payload.remove_holder(A, 0)
    payload.holders.add(A)
    assert sources.cost(payload, B) < sources.cost(payload, A)


def test_an_idle_holder_goes_before_equal_sources() -> None:
    for holder in (A, B, C):
        payload = Payload(SIZE, holders={A, B, C}, idle_holder=holder)
        assert best(known(), payload) == holder
