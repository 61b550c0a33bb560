"""Promises of admission: which offers are taken, late, refused, or a fault."""

import pytest

from node.gossip.machine import events
from node.gossip.machine.admission import admit
from node.gossip.machine.payloads import Payload
from node.gossip.machine.round_state import PeerSet
from node.gossip.machine.rounds import AHEAD_ROUNDS_MAX, Rounds
from node.gossip.machine.sources import Sources
from protocol.ids import Digest, PeerId
from tests.node.gossip.machine.names import OWN, SIZE, A, B, X, Y, Z, blob_digest, peer

SIZE_MAX = 2 * SIZE


class Fixture:
    """Three members, and round 7 is open."""

    def __init__(self) -> None:
        self.rounds, self.sources = Rounds(OWN, 4), Sources(OWN)
        self.rounds.meet(PeerSet(tuple(sorted([OWN, A, B]))))
        self.sources.set_peers([A, B])
        self.rounds.start(events.RoundStarted(7))

    def offer(
        self, digest: Digest, sender: PeerId = A, round: int = 7, size: int = SIZE
    ) -> list[type[events.Effect]]:
        """The kinds of the answers to an offer; none if it was taken or late."""
        offered = events.Offered(sender, round, digest, size)
        answers = admit(offered, self.rounds, self.sources, SIZE_MAX)
        return [type(answer) for answer in answers]

    def payload(self, digest: Digest, round: int = 7) -> Payload | None:
        state = self.rounds.get(round)
        return state and state.payloads.get(digest)


@pytest.fixture
def gate() -> Fixture:
    return Fixture()


def test_an_offer_is_entered_with_its_sender_as_holder_and_caller(gate: Fixture) -> None:
    assert gate.offer(X) == gate.offer(X, B) == []
    payload = gate.payload(X)
    assert payload
    assert (payload.size, payload.holders) == (SIZE, {A, B})
    assert gate.rounds.follow(7).callers == {A, B}


@pytest.mark.parametrize("sender", [OWN, peer(99)])
def test_an_offer_from_a_peer_that_is_no_member_is_a_fault(gate: Fixture, sender: PeerId) -> None:
    assert gate.offer(X, sender) == [events.Blame]
    assert gate.payload(X) is None


@pytest.mark.parametrize(
    ("size", "answers"),
    [(0, [events.Blame]), (1, []), (SIZE_MAX, []), (SIZE_MAX + 1, [events.Blame])],
)
def test_an_offer_of_an_impossible_size_is_a_fault(
    gate: Fixture, size: int, answers: list[type]
) -> None:
    assert gate.offer(X, size=size) == answers


@pytest.mark.parametrize(
    ("ahead", "answers"), [(AHEAD_ROUNDS_MAX, []), (AHEAD_ROUNDS_MAX + 1, [events.Refuse])]
)
def test_an_offer_may_be_a_few_rounds_ahead(gate: Fixture, ahead: int, answers: list[type]) -> None:
    assert gate.offer(X, round=7 + ahead) == answers
    assert (gate.payload(X, 7 + ahead) is None) is bool(answers)


def test_an_offer_of_a_decided_round_is_late_and_not_kept(gate: Fixture) -> None:
    gate.rounds.forget(7)
    assert gate.offer(X) == []
    assert gate.payload(X) is None


def test_an_offer_before_any_round_is_known_is_refused() -> None:
    sources = Sources(OWN)
    sources.set_peers([A])
    (answer,) = admit(events.Offered(A, 0, X, SIZE), Rounds(OWN, 4), sources, SIZE_MAX)
    assert isinstance(answer, events.Refuse)


def test_a_round_has_room_for_a_payload_of_each_member(gate: Fixture) -> None:
    for digest in (X, Y, Z):
        assert gate.offer(digest) == []
    assert gate.offer(blob_digest(3), A) == [events.Blame], "A offered a payload of each already"
    assert gate.offer(blob_digest(3), B) == [events.Refuse]
    assert gate.offer(X, B) == [], "a known payload takes no room"


def test_a_committed_round_takes_no_new_payload(gate: Fixture) -> None:
    gate.rounds.follow(7).committed = True
    assert gate.offer(X) == []
    assert gate.payload(X) is None


def test_another_size_is_refused_until_the_bytes_are_verified_and_a_fault_after(
    gate: Fixture,
) -> None:
    gate.offer(X)
    assert gate.offer(X, B, size=SIZE + 1) == [events.Refuse]
    gate.rounds.hold(X, SIZE)
    assert gate.offer(X, B, size=SIZE + 1) == [events.Blame]
    payload = gate.payload(X)
    assert payload
    assert payload.holders == {A}


def test_the_size_that_an_author_announced_binds_no_holder(gate: Fixture) -> None:
    gate.offer(X)
    payload = gate.payload(X)
    assert payload
    payload.wanted = True
    assert gate.offer(X, B, size=SIZE + 1) == []
    assert payload.holders == {A, B}
