"""A round with summers ends with a result of every range, whoever lies, dies or is silent."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from coordinator.machine.state.summers import Summers, draw
from coordinator.machine.state.summing import (
    ASKED_MAX,
    Ask,
    Dispute,
    Effect,
    Elapsed,
    Event,
    Fixed,
    Gone,
    Settle,
    Signed,
    Spread,
    Summing,
)
from protocol.ids import Digest, PeerId, sha256
from tests.coordinator.machine.state.test_summers import crowd, peer, seed

PATIENCE_MS = 1000
TICK_MS = 100
END_MS = PATIENCE_MS * (ASKED_MAX + 1)


def right(number: int) -> Digest:
    return sha256(b"right" + bytes([number]))


def wrong(number: int, whose: bytes = b"") -> Digest:
    return sha256(b"wrong" + whose + bytes([number]))


def summers(number: int = 0, members: int = 24, chunks: int = 16) -> Summers:
    found = draw(seed(number), chunks, {}, crowd([9] * members), list(crowd([9] * members)))
    assert found is not None
    return found


@dataclass
class Round:
    """One round in virtual time, and what the machine did."""

    chance: random.Random
    hostile: set[PeerId]
    deaths_ms: dict[PeerId, int]
    summers: Summers
    asked: dict[int, list[PeerId]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, Digest | None] = field(default_factory=dict)
    disputes: list[Dispute] = field(default_factory=list)
    coming: list[tuple[int, Event]] = field(default_factory=list)

    def run(self) -> None:
        """To the last range's end, or to the latest time at which it must have ended."""
        machine = Summing(self.summers, PATIENCE_MS)
        for who, at_ms in self.deaths_ms.items():
            if self.chance.random() < 0.7:  # else nobody hears of it
                self.coming.append((at_ms, Gone(who)))
        self.carry_out(machine.handle(Fixed(), 0), 0)
        for now_ms in range(0, END_MS + 1, TICK_MS):
            due = [each for each in self.coming if each[0] <= now_ms]
            self.coming = [each for each in self.coming if each[0] > now_ms]
            for event in (*self.chance.sample([event for _, event in due], len(due)), Elapsed()):
                self.carry_out(machine.handle(event, now_ms), now_ms)
        assert machine.is_done, "every range ends in time"

    def carry_out(self, effects: list[Effect], now_ms: int) -> None:
        for effect in effects:
            match effect:
                case Ask(who, number):
                    assert who not in self.asked[number], "asked twice"
                    assert number not in self.ended, "asked for a range that has ended"
                    self.asked[number].append(who)
                    self.answer(who, number, now_ms)
                case Settle(number, digest):
                    assert number not in self.ended, "ended twice"
                    self.ended[number] = digest
                case Spread(number):
                    assert number not in self.ended, "ended twice"
                    self.ended[number] = None
                case Dispute():
                    self.disputes.append(effect)

    def answer(self, who: PeerId, number: int, now_ms: int) -> None:
        chance, said = self.chance, [right(number)]
        if who in self.hostile:
            lies = [[wrong(number)], [wrong(number, who.encode())], [], [*said, wrong(number)]]
            said = chance.choice(lies)
        slow = chance.random() < 0.1
        at_ms = now_ms + chance.randrange(PATIENCE_MS * (3 if slow else 1))
        if at_ms < self.deaths_ms.get(who, END_MS + PATIENCE_MS):
            self.coming += [(at_ms, Signed(who, number, digest)) for digest in said]


def played(number: int, share_hostile: float, share_dead: float) -> Round:
    chance = random.Random(number)
    drawn = summers(number, members=chance.choice((2, 5, 24)))
    candidates = [who for who, _ in drawn.authors]
    chance.shuffle(candidates)
    hostile = set(candidates[: int(len(candidates) * share_hostile)])
    dying = chance.sample(candidates, int(len(candidates) * share_dead))
    deaths_ms = {who: chance.randrange(2 * PATIENCE_MS) for who in dying}
    found = Round(chance, hostile, deaths_ms, drawn)
    found.run()
    return found


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_with_honest_summers_that_die_at_any_point_every_result_is_right(first: int) -> None:
    spread = 0
    for number in range(first, first + 100):
        found = played(number, 0, 0.3)
        assert sorted(found.ended) == list(range(len(found.summers.pairs)))
        assert not found.disputes
        for place, digest in found.ended.items():
            assert digest in {right(place), None}
            assert len(found.asked[place]) <= ASKED_MAX
            if digest is None:
                living = [who for who in found.asked[place] if who not in found.deaths_ms]
                assert len(living) < 2 or len(found.summers.authors) < ASKED_MAX
            spread += digest is None and len(found.summers.authors) > ASKED_MAX
    assert spread < 30, "of some 500 ranges with enough candidates"


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_a_hostile_third_settles_no_wrong_sum_but_where_two_of_it_were_asked(first: int) -> None:
    wrongs = settled = 0
    for number in range(first, first + 100):
        found = played(number, 1 / 3, 0.1)
        assert sorted(found.ended) == list(range(len(found.summers.pairs)))
        for place, digest in found.ended.items():
            assert len(found.asked[place]) <= ASKED_MAX
            settled += digest is not None
            if digest not in {right(place), None}:
                wrongs += 1
                assert len(found.hostile & set(found.asked[place])) >= 2
        for dispute in found.disputes:
            liars = {who for who, digest in dispute.signed if digest != right(dispute.number)}
            assert liars, "no dispute without a wrong sum"
            assert liars <= found.hostile, "who adds again convicts no honest one"
    assert wrongs < settled / 10


def machine(members: int = 24) -> tuple[Summing, Summers]:
    drawn = summers(members=members)
    found = Summing(drawn, PATIENCE_MS)
    asked = found.handle(Fixed(), 0)
    assert asked == [Ask(who, n) for n, pair in enumerate(drawn.pairs) for who in pair]
    return found, drawn


def test_two_equal_digests_settle_a_range_and_nobody_else_is_asked() -> None:
    found, drawn = machine()
    for number, (one, other) in enumerate(drawn.pairs):
        assert found.handle(Signed(one, number, right(number)), 5) == []
        assert found.handle(Signed(one, number, right(number)), 6) == []
        assert not found.is_done
        said = found.handle(Signed(other, number, right(number)), 7)
        assert said == [Settle(number, right(number))]
    assert found.is_done
    assert found.handle(Elapsed(), 10 * PATIENCE_MS) == []


def test_unlike_digests_are_a_dispute_that_the_next_of_the_draw_settles() -> None:
    found, drawn = machine()
    one, other = drawn.pairs[0]
    third = drawn.third(0, ())
    assert third is not None
    found.handle(Signed(one, 0, right(0)), 5)
    dispute = Dispute(0, ((one, right(0)), (other, wrong(0))))
    assert found.handle(Signed(other, 0, wrong(0)), 6) == [dispute, Ask(third, 0)]
    assert found.handle(Signed(third, 0, right(0)), 7)[-1] == Settle(0, right(0))


def test_a_wrong_sum_that_comes_after_the_right_one_is_a_dispute_all_the_same() -> None:
    found, drawn = machine()
    one, other = drawn.pairs[0]
    assert found.handle(Elapsed(), PATIENCE_MS - 1) == []
    found.handle(Signed(one, 0, right(0)), 5)
    found.handle(Signed(other, 0, right(0)), 5)
    assert found.handle(Signed(one, 0, wrong(0)), 6) == [
        Dispute(0, ((one, right(0)), (other, right(0)), (one, wrong(0))))
    ]
    assert found.handle(Signed(one, 0, wrong(0, b"again")), 6) == [], "two digests are a proof"


def test_in_place_of_one_that_is_gone_or_late_the_next_is_asked() -> None:
    found, drawn = machine()
    one, other = drawn.pairs[0]
    third = drawn.third(0, {one})
    assert third is not None
    effects = found.handle(Gone(one), 5)
    assert Ask(third, 0) in effects
    assert {each.number for each in effects if isinstance(each, Ask)} == {
        number for number, pair in enumerate(drawn.pairs) if one in pair
    }
    fourth = drawn.third(0, {one, third})
    assert fourth is not None
    found.handle(Signed(other, 0, right(0)), 6)
    assert Ask(fourth, 0) not in found.handle(Elapsed(), PATIENCE_MS + 4)
    assert Ask(fourth, 0) in found.handle(Elapsed(), PATIENCE_MS + 5)
    assert found.handle(Signed(third, 0, right(0)), 2 * PATIENCE_MS) == [Settle(0, right(0))], (
        "late"
    )


def test_a_range_that_nobody_is_left_for_goes_to_everybody() -> None:
    found, drawn = machine(members=2)
    one, other = drawn.pairs[0]
    assert found.handle(Signed(one, 0, right(0)), 1) == []
    effects = found.handle(Gone(other), 5)
    assert effects[0] == Spread(0)
    assert found.handle(Signed(other, 0, right(0)), 6) == []
    assert not any(isinstance(each, Settle) for each in effects)


def test_words_of_nodes_that_were_not_asked_change_nothing() -> None:
    found, drawn = machine()
    stranger = next(who for who, _ in drawn.authors if who not in drawn.pairs[0])
    for number, who in ((0, stranger), (0, peer(999)), (-1, stranger), (16, stranger)):
        assert found.handle(Signed(who, number, wrong(0)), 5) == []
    found.handle(Signed(drawn.pairs[0][0], 0, right(0)), 6)
    assert found.handle(Signed(drawn.pairs[0][1], 0, right(0)), 6) == [Settle(0, right(0))]
