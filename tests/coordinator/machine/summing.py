"""Drives rounds with summers by hand: every member announces a root, and says which parts it holds
and what it has found.
"""

from collections.abc import Collection, Iterable
from typing import Any

from coordinator.machine.events.effects import Effect, SummerAdded, SumsAsked
from coordinator.machine.events.inputs import HeldParts, OfferEnded, PartsHeld, Summed, SumsOffered
from coordinator.machine.state.sums.round_sums import RoundSums
from protocol.ids import Digest, PeerId, sha256
from protocol.sums.asked import Question
from protocol.sums.receipts import receipt_name
from tests.coordinator.machine.driver import Driver, of_kind, payload_digest

RESULT_BYTES = 50


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(1, count + 1)]


def result(round: int, number: int, word: str = "right") -> Digest:
    """The digest of what the parts of a range make."""
    return sha256(f"{word} {number} in {round}".encode())


def held_parts(author: PeerId, round: int, ranges: int = 2**64 - 1) -> HeldParts:
    """A receipt for an author's payload of a round."""
    return HeldParts(receipt_name(author, payload_digest(author, round)), ranges)


class SummingDriver(Driver):
    """A run of local steps whose rounds have summers from `sums` authors on."""

    def __init__(self, *members: PeerId, sums: int = 3, **sections: dict[str, Any]) -> None:
        sections["algorithm"] = {"name": "local_steps"} | sections.get("algorithm", {})
        sections["rounds"] = {"sums": sums} | sections.get("rounds", {})
        super().__init__(*members, **sections)

    def sums(self, round: int) -> RoundSums:
        """The state of a round's summers."""
        undecided = self.machine.undecided(round)
        assert undecided is not None
        assert undecided.sums is not None, "the round has no summers"
        return undecided.sums

    def parts(
        self, peer: PeerId, round: int, authors: Iterable[PeerId], ranges: int = 2**64 - 1
    ) -> list[Effect]:
        """A summer holds its parts of these authors' payloads, or some of them."""
        held = (held_parts(author, round, ranges) for author in authors)
        return self.tell(PartsHeld(peer, round, tuple(held)))

    def spread(
        self, round: int, authors: Collection[PeerId], silent: Collection[PeerId] = ()
    ) -> list[Effect]:
        """Every summer that is a member and is not silent holds its parts of these authors'."""
        effects = list[Effect]()
        summers = {who for row in self.sums(round).plan() for who in row}
        for who in sorted(summers - set(silent)):
            if self.machine.undecided(round) is not None:
                effects += self.parts(who, round, [each for each in authors if each != who])
        return effects

    def sign(self, peer: PeerId, question: Question, word: str = "right") -> list[Effect]:
        """A summer has signed what it found, or another digest."""
        digest, rate = result(question.round, question.number, word), question.learning_rate_bits
        place = peer, question.round, question.number
        return self.tell(Summed(*place, digest, RESULT_BYTES, rate, b"key", b"signature"))

    def asks(self, effects: Iterable[object]) -> list[tuple[PeerId, Question]]:
        """What summers were asked."""
        asked = of_kind(SumsAsked, effects)
        return [(each.peer, question) for each in asked for question in each.questions]

    def add(self, effects: Iterable[object], silent: Collection[PeerId] = ()) -> list[Effect]:
        """The summers that are asked answer; returns what followed."""
        followed = list[Effect]()
        for who, question in self.asks(effects):
            if who not in silent and self.machine.is_here(who):
                followed += self.sign(who, question)
        return followed

    def offer(self, relay: PeerId, instance: int = 1) -> list[Effect]:
        """A relay offers to add."""
        return self.tell(SumsOffered(relay, "relay", instance))

    def go(self, relay: PeerId) -> list[Effect]:
        """The session of a relay has ended."""
        return self.tell(OfferEnded(relay))

    def make_sums(self, *members: PeerId) -> list[Effect]:
        """The oldest undecided round, from the announcements to the reports of all."""
        round = self.machine.state.undecided[0].round
        for each in members:
            self.announce(each, round)
        effects = self.add(self.spread(round, members))
        for each in members:
            effects += self.apply(each, round)
        return effects


def added(effects: Iterable[object]) -> list[tuple[PeerId, int]]:
    """The summers that everybody is told of, and their ranges."""
    return [(each.peer, each.number) for each in of_kind(SummerAdded, effects)]
