"""Promises of one round: its neighbours, its offers, and the peers that may wait."""

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.round_state import PeerSet, Round
from node.gossip.machine.sources import OFFER_RETRY_MS, Sources
from protocol.ids import PeerId
from protocol.limits import OFFERS_MAX
from protocol.neighbours import neighbours
from tests.node.gossip.machine.names import OWN, PEERS, SIZE, A, B, C, X, Y, blob_digest, peer

RELAY = peer(50)
MANY = tuple(sorted(peer(number) for number in range(20)))


def sources(*linked: PeerId) -> Sources:
    known = Sources(OWN)
    known.set_peers([*PEERS, RELAY])
    if linked:
        known.set_linked(frozenset(linked))
    return known


def opened(*neighbours: PeerId, **payloads: Payload) -> Round:
    """A round with payloads X and Y, that is open."""
    digests = {"x": X, "y": Y}
    return Round(
        open=True,
        neighbours=list(neighbours),
        payloads={digests[name]: payload for name, payload in payloads.items()},
    )


# ---- neighbours


def test_a_member_has_its_neighbours_by_hash_and_all_relays() -> None:
    peers = PeerSet((*MANY, OWN), (RELAY,))
    by_hash = neighbours(7, (*MANY, OWN), OWN, 4)
    assert peers.neighbours(7, OWN, 4) == [*by_hash, RELAY]


def test_a_relay_offers_to_all_members_and_other_relays_but_not_to_itself() -> None:
    assert set(PeerSet(MANY, (RELAY, A)).neighbours(7, RELAY, 4)) == {*MANY, A}


def test_a_node_that_is_neither_member_nor_relay_has_relays_alone() -> None:
    assert PeerSet(MANY, (RELAY,)).neighbours(7, peer(99), 4) == [RELAY]


def test_members_without_a_link_are_passed_over() -> None:
    linked = frozenset(MANY[:3])
    found = PeerSet((*MANY, OWN), (), linked).neighbours(7, OWN, 4)
    assert set(found) == linked


# ---- offers


def test_the_own_payload_comes_first_in_an_offer_and_others_in_their_order() -> None:
    own, other = max(X, Y), min(X, Y)
    round = Round(open=True, neighbours=[A])
    round.payloads = {
        other: Payload(1, held=True),
        own: Payload(2, held=True, own=True),
    }
    assert round.offers(7, sources(), 0) == [events.Offer(A, 7, ((own, 2), (other, 1)))]


def test_an_offer_is_made_once() -> None:
    round = opened(A, x=Payload(SIZE, held=True))
    assert len(round.offers(7, sources(), 0)) == 1
    assert round.offers(7, sources(), 0) == []


def test_payloads_that_are_not_held_and_known_holders_are_left_out() -> None:
    round = opened(A, B, x=Payload(SIZE, held=True, holders={A}), y=Payload(SIZE))
    assert round.offers(7, sources(), 0) == [events.Offer(B, 7, ((X, SIZE),))]


def test_a_round_that_is_not_open_offers_nothing() -> None:
    round = opened(A, x=Payload(SIZE, held=True))
    round.open = False
    assert round.offers(7, sources(), 0) == []
    assert round.waiting(sources(), 0) == []


def test_a_peer_that_offered_is_offered_to_without_being_a_neighbour() -> None:
    round = opened(A, x=Payload(SIZE, held=True))
    round.callers = {A, C}
    assert [offer.peer for offer in offers_of(round, sources())] == [A, C]


def test_a_peer_without_a_link_or_in_a_pause_is_offered_to_later() -> None:
    round, known = opened(A, B, x=Payload(SIZE, held=True)), sources(A)
    known.offer_failed(A, 0)
    assert offers_of(round, known) == []
    assert [offer.peer for offer in offers_of(round, known, OFFER_RETRY_MS)] == [A]
    known.set_linked(frozenset([A, B]))
    assert [offer.peer for offer in offers_of(round, known)] == [B]


def test_more_payloads_than_a_message_holds_are_offered_in_several() -> None:
    round = Round(open=True, neighbours=[A])
    round.payloads = {blob_digest(n): Payload(1, held=True) for n in range(2 * OFFERS_MAX + 1)}
    found = [len(offer.payloads) for offer in offers_of(round, sources())]
    assert found == [OFFERS_MAX, OFFERS_MAX, 1]


def offers_of(round: Round, known: Sources, now_ms: int = 0) -> list[events.Offer]:
    found = round.offers(7, known, now_ms)
    return [offer for offer in found if isinstance(offer, events.Offer)]


# ---- peers that wait


def test_a_peer_may_wait_for_a_held_payload_that_it_was_offered_and_does_not_hold() -> None:
    told = Payload(SIZE, held=True, told={A, B}, holders={B})
    assert opened(A, B, C, x=told).waiting(sources(), 0) == [A]
    assert opened(A, B, C, x=Payload(SIZE, told={A})).waiting(sources(), 0) == []
    assert opened(A, B, C, x=told).waiting(sources(B, C), 0) == []


def test_a_payload_is_held_only_where_it_is_known() -> None:
    round = opened(A, x=Payload(SIZE, held=True), y=Payload(SIZE))
    assert [round.holds(digest) for digest in (X, Y, blob_digest(9))] == [True, False, False]
