"""A round with summers ends with a result of every range or with nobody's, whoever lies, dies or is
silent; and honest authors are in it.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from coordinator.machine.events.inputs import HeldParts
from coordinator.machine.state.sums.adding import SummerAnswer
from coordinator.machine.state.sums.round_sums import ASKED_MAX, Asked, RoundSums
from coordinator.machine.state.sums.summers import draw
from protocol.ids import Digest, PeerId, sha256
from protocol.sums.asked import SumAuthor
from protocol.sums.receipts import receipt_name
from tests.coordinator.machine.state.sums.test_summers import crowd, peer, seed

PATIENCE_MS = 1000
TICK_MS = 100
CLOSE_MS = 12 * PATIENCE_MS
"""Time at which the set is fixed whatever is missing."""
RATE = 7


def right(number: int) -> Digest:
    return sha256(b"right" + bytes([number]))


def wrong(number: int, whose: bytes = b"") -> Digest:
    return sha256(b"wrong" + whose + bytes([number]))


def root(author: PeerId) -> Digest:
    return sha256(author.encode())


def name(author: PeerId) -> int:
    return receipt_name(author, root(author))


def opened(number: int = 0, members: int = 24, chunks: int = 16) -> RoundSums:
    found = draw(seed(number), chunks, {}, crowd([9] * members), list(crowd([9] * members)))
    assert found is not None
    return RoundSums.open(found, PATIENCE_MS, 2 * members)


def candidates(sums: RoundSums) -> list[PeerId]:
    return [who for who, _ in sums.summers.authors]


@dataclass
class Played:
    """One round in virtual time. Honest authors give a part to every summer that is asked for its
    range, after some time; hostile ones to some, or to none. Honest summers say what they hold, and
    pass it on; hostile ones say nothing, hold everything at once, or half.
    """

    chance: random.Random
    hostile: set[PeerId]
    deaths_ms: dict[PeerId, int]
    sums: RoundSums
    now_ms: int = 0
    coming: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    added: dict[int, list[PeerId]] = field(default_factory=lambda: defaultdict(list))
    disputes: list[tuple[tuple[PeerId, Digest], ...]] = field(default_factory=list)
    held_by: list[set[PeerId]] = field(default_factory=list)
    """By range: the nodes that were to hold its parts as the set was fixed."""
    included: dict[PeerId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ways = {who: self.chance.choice(("dumb", "claims", "half")) for who in self.hostile}

    def alive(self, who: PeerId) -> bool:
        return self.deaths_ms.get(who, 10**9) > self.now_ms

    def later(self, most_ms: int, then: Callable[[], None]) -> None:
        self.coming.append((self.now_ms + self.chance.randrange(1, most_ms), then))

    def run(self) -> None:
        for who, at_ms in self.deaths_ms.items():
            if self.chance.random() < 0.7:  # else nobody hears of it
                self.coming.append((at_ms, lambda who=who: self.sums.forget(who, self.now_ms)))
        for author in candidates(self.sums):
            self.later(PATIENCE_MS, lambda author=author: self.announce(author))
        end_ms = CLOSE_MS + ASKED_MAX * PATIENCE_MS
        while self.now_ms <= end_ms and not (self.sums.adding and self.sums.adding.is_done):
            self.tick()
            self.now_ms += TICK_MS
        assert self.sums.adding, "the set is fixed"
        assert self.sums.adding.is_done, "every round ends in time"

    def tick(self) -> None:
        due = [each for at_ms, each in self.coming if at_ms <= self.now_ms]
        self.coming = [each for each in self.coming if each[0] > self.now_ms]
        for each in self.chance.sample(due, len(due)):
            each()
        due_ms = self.sums.next_due_ms()
        if due_ms is not None and due_ms <= self.now_ms:
            self.ask(self.sums.reach(self.now_ms, lambda author: True))
            later_ms = self.sums.next_due_ms()
            assert later_ms is None or later_ms > self.now_ms, "stays due"
        if self.sums.vacant:
            self.ask(self.sums.fill(self.now_ms))
        if self.chance.random() < 0.02:  # the coordinator goes on from its snapshot
            self.sums = msgspec.msgpack.decode(msgspec.msgpack.encode(self.sums), type=RoundSums)
        if self.sums.adding is None and self.may_fix():
            self.fix()

    # ---- parts

    def announce(self, author: PeerId) -> None:
        if not self.alive(author) or self.sums.adding:
            return
        self.sums.announce(author, root(author), self.now_ms)
        for number in range(self.sums.ranges):
            for who in self.sums.living(number):
                self.give(author, who, number)

    def give(self, author: PeerId, who: PeerId, number: int) -> None:
        gives = author not in self.hostile or self.chance.random() < 0.5
        if gives and author in self.sums.parts.copies:
            self.later(PATIENCE_MS // 2, lambda: self.get(author, who, number, author))

    def get(self, author: PeerId, who: PeerId, number: int, giver: PeerId) -> None:
        """A summer gets a part: it says so, as it is, and passes it on."""
        way = self.ways.get(who, "honest")
        if self.sums.adding or not (self.alive(giver) and self.alive(who)) or way == "dumb":
            return
        if way == "half" and self.chance.random() < 0.5:
            return
        ranges = (1 << 64) - 1 if way == "claims" else 1 << number
        said = (HeldParts(name(author), ranges),)
        self.sums.hold(who, said, self.now_ms)
        assert not self.sums.parts.news(who, said), "news a second time"
        for other in self.sums.living(number) if way == "honest" else ():
            if not self.sums.parts.bits(other, author) >> number & 1 and other not in self.hostile:
                self.later(
                    PATIENCE_MS // 2,
                    lambda other=other: self.get(author, other, number, who),
                )

    # ---- the set, and sums

    def may_fix(self) -> bool:
        authors = candidates(self.sums)
        said = all(a in self.sums.parts.copies or not self.alive(a) for a in authors)
        waits = any(
            self.sums.waits_for(a, present=a not in self.sums.gone) for a in self.sums.parts.copies
        )
        return self.now_ms >= CLOSE_MS or (said and not waits and self.now_ms > PATIENCE_MS)

    def fix(self) -> None:
        self.held_by = [set(asked) for asked in self.sums.asked]
        self.included = {a: self.sums.included(a) for a in self.sums.parts.copies}
        counted = [a for a in sorted(self.included) if self.sums.is_available(a)]
        told = self.sums.fix([SumAuthor(a, root(a), 1) for a in counted], RATE, self.now_ms)
        for who, number in told:
            self.add(who, number)
        self.ask(self.sums.fill(self.now_ms))

    def ask(self, asked: list[Asked]) -> None:
        for who, number in asked:
            assert who not in self.added[number], "asked twice"
            assert len(self.sums.asked[number]) <= ASKED_MAX
            self.added[number].append(who)
            if self.sums.adding is None:
                for author in list(self.sums.parts.copies):
                    self.give(author, who, number)
            else:
                self.add(who, number)

    def add(self, who: PeerId, number: int) -> None:
        chance, said = self.chance, [right(number)]
        if who in self.hostile:
            lies = [[wrong(number)], [wrong(number, who.encode())], [], [*said, wrong(number)]]
            said = chance.choice(lies)
        slow = chance.random() < 0.1
        for digest in said:
            self.later(
                PATIENCE_MS * (3 if slow else 1),
                lambda digest=digest: self.sign(who, number, digest),
            )

    def sign(self, who: PeerId, number: int, digest: Digest) -> None:
        said = SummerAnswer(who, digest, 9)
        if not self.alive(who) or not self.sums.is_news(number, said, RATE):
            return
        signed, asked = self.sums.sign(number, said, self.now_ms)
        if signed:
            self.disputes.append(signed)
        assert not self.sums.is_news(number, said, RATE), "news a second time"
        self.ask(asked)


def played(number: int, share_hostile: float, share_dead: float) -> Played:
    chance = random.Random(number)
    sums = opened(number, members=chance.choice((2, 5, 12)), chunks=8)
    crowd = candidates(sums)
    chance.shuffle(crowd)
    hostile = set(crowd[: int(len(crowd) * share_hostile)])
    dying = chance.sample(crowd, int(len(crowd) * share_dead))
    deaths_ms = {who: chance.randrange(4 * PATIENCE_MS) for who in dying}
    found = Played(chance, hostile, deaths_ms, sums)
    found.run()
    return found


def check_authors(found: Played) -> int:
    """An honest author that lived is in every range whose parts two such summers were to hold.
    Returns the places in which one is missing.
    """
    missing = 0
    faulty = found.hostile | found.deaths_ms.keys()
    for author in set(candidates(found.sums)) - faulty:
        for number, asked in enumerate(found.held_by):
            if not found.included[author] >> number & 1:
                missing += 1
                assert len(asked - faulty) < 2, f"range {number} is without {author}"
    return missing


def check_sums(found: Played) -> tuple[int, int]:
    """Returns the ranges that are settled, and those of them with a wrong sum."""
    assert found.sums.adding
    wrongs = settled = 0
    for number, each in enumerate(found.sums.adding.by_range):
        assert len(found.sums.asked[number]) <= ASKED_MAX
        signers = set(each.signers())
        settled += bool(each.settled)
        if each.settled and each.settled.digest != right(number):
            wrongs += 1
            assert len(signers & found.hostile) >= 2
        assert bool(each.settled) == (len(signers) >= 2)
    return settled, wrongs


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_with_honest_nodes_that_die_at_any_point_every_result_is_right(first: int) -> None:
    ranges = settled = missing = places = 0
    for number in range(first, first + 100):
        found = played(number, 0, 0.3)
        each, wrongs = check_sums(found)
        assert (wrongs, found.disputes) == (0, [])
        missing += check_authors(found)
        places += found.sums.ranges * len(candidates(found.sums))
        if len(candidates(found.sums)) > ASKED_MAX:
            ranges, settled = ranges + found.sums.ranges, settled + each
    assert settled > 0.95 * ranges > 0
    assert missing < places / 20


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_a_hostile_third_settles_no_wrong_sum_but_where_two_of_it_were_asked(first: int) -> None:
    wrongs = settled = missing = places = 0
    for number in range(first, first + 100):
        found = played(number, 1 / 3, 0.1)
        missing += check_authors(found)
        places += found.sums.ranges * len(candidates(found.sums))
        each, lies = check_sums(found)
        settled, wrongs = settled + each, wrongs + lies
        for dispute in found.disputes:
            liars = {who for who, digest in dispute if digest not in RIGHT}
            assert liars, "no dispute without a wrong sum"
            assert liars <= found.hostile, "who adds again convicts no honest one"
    assert wrongs < settled / 10
    assert missing < places / 10, "a ninth of the ranges have two hostile summers"


RIGHT = {right(number) for number in range(16)}


# ---- one by one


def announced(sums: RoundSums, *authors: PeerId) -> RoundSums:
    for author in authors:
        sums.announce(author, root(author), 0)
    return sums


def held(sums: RoundSums, who: PeerId, author: PeerId, *numbers: int, at_ms: int = 0) -> None:
    said = HeldParts(name(author), sum(1 << number for number in numbers))
    sums.hold(who, (said,), at_ms)


def spread(
    sums: RoundSums, author: PeerId, without: tuple[Asked, ...] = (), at_ms: int = 0
) -> None:
    """Every summer holds the author's parts, but for those of `without`."""
    for number, pair in enumerate(sums.summers.pairs):
        for who in pair:
            if (who, number) not in without:
                held(sums, who, author, number, at_ms=at_ms)


def outsider(sums: RoundSums) -> PeerId:
    """A candidate that adds nothing."""
    return next(who for who in candidates(sums) if who not in sums.parts.adds)


def always(author: PeerId) -> bool:
    return True


def test_a_range_includes_an_author_once_two_summers_hold_its_part() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    announced(sums, author)
    (one, other), bit = sums.summers.pairs[3], 1 << 3
    held(sums, one, author, 3)
    assert not sums.included(author) & bit
    held(sums, other, author, 3)
    assert sums.included(author) & bit
    assert not sums.is_available(author)
    spread(sums, author, at_ms=9)
    assert sums.is_available(author)
    assert sums.whole_ms == {author: 9}


def test_what_a_summer_says_of_ranges_that_it_does_not_add_counts_for_nothing() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    announced(sums, author)
    one = sums.summers.pairs[0][0]
    every = HeldParts(name(author), (1 << 64) - 1)
    sums.hold(one, (every,), 0)
    assert sums.parts.copies[author].once == sums.parts.adds[one]
    assert sums.parts.news(author, (every,)) == ()


def test_an_author_holds_its_own_parts_in_the_ranges_that_it_adds() -> None:
    sums = opened()
    one, other = sums.summers.pairs[0]
    announced(sums, one)
    held(sums, other, one, 0)
    assert sums.included(one) & 1


def test_receipts_may_come_before_the_announcement_and_name_few_roots() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    spread(sums, author)
    assert not sums.parts.copies
    announced(sums, author)
    assert sums.included(author) == (1 << sums.ranges) - 1
    one = sums.summers.pairs[0][0]
    many = tuple(HeldParts(n, 1 << 0) for n in range(200))
    sums.hold(one, many, 0)
    assert len(sums.parts.named[one]) == sums.parts.names_max
    assert sums.parts.news(one, many[-1:]) == ()


def test_of_two_roots_told_to_two_summers_that_which_is_announced_counts_alone() -> None:
    """So nobody tells one summer of a range other scales than the other."""
    sums = opened(members=64)
    author = outsider(sums)
    announced(sums, author)
    spread(sums, author, without=tuple((pair[0], number) for number, pair in pairs_of(sums)))
    for _, (one, _) in pairs_of(sums):
        other = HeldParts(receipt_name(author, sha256(b"other")), (1 << 64) - 1)
        sums.hold(one, (other,), 0)
    assert sums.included(author) == 0
    assert not sums.is_available(author)
    spread(sums, author)
    assert sums.included(author) == (1 << sums.ranges) - 1


def pairs_of(sums: RoundSums) -> list[tuple[int, tuple[PeerId, ...]]]:
    return list(enumerate(sums.summers.pairs))


def test_who_announces_the_root_of_another_has_no_parts() -> None:
    sums = opened(members=64)
    author, thief = [who for who in candidates(sums) if who not in sums.parts.adds][:2]
    sums.announce(thief, root(author), 0)
    sums.announce(author, root(author), 0)
    spread(sums, author)
    assert sums.is_available(author)
    assert sums.parts.copies[thief].once == 0


def test_a_summer_that_lacks_a_part_for_long_is_replaced_and_then_nobody_waits() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    lazy = sums.summers.pairs[0][1]
    announced(sums, author)
    spread(sums, author, without=((lazy, 0),), at_ms=10)
    assert sums.waits_for(author, present=True)
    assert sums.next_due_ms() == 10 + PATIENCE_MS
    assert sums.reach(9 + PATIENCE_MS, always) == []
    third = sums.summers.third(0, ())
    assert third is not None
    assert sums.reach(10 + PATIENCE_MS, always) == [(third, 0)]
    assert third in sums.plan()[0]
    assert sums.waits_for(author, present=True)
    assert sums.reach(10 + 2 * PATIENCE_MS, always) == []
    assert not sums.waits_for(author, present=True)
    assert sums.next_due_ms() is None
    held(sums, third, author, 0)
    assert sums.included(author) & 1


def test_nobody_is_replaced_for_the_parts_of_an_author_that_gives_them_to_few() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    announced(sums, author)
    for number in range(sums.ranges // 2 - 1):
        held(sums, sums.summers.pairs[number][0], author, number)
    assert sums.next_due_ms() is None
    assert sums.waits_for(author, present=True)
    assert not sums.waits_for(author, present=False)


def test_in_the_place_of_one_that_went_the_next_is_asked_at_once() -> None:
    sums = opened(members=64)
    one, other = sums.summers.pairs[0]
    mine = [number for number in range(sums.ranges) if one in sums.summers.pairs[number]]
    sums.forget(one, 5)
    assert [number for _, number in sums.fill(5)] == mine
    assert one not in sums.plan()[0]
    assert other in sums.plan()[0]


def test_a_new_session_keeps_what_it_names_again() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    announced(sums, author)
    spread(sums, author)
    one = sums.summers.pairs[0][0]
    sums.parts.doubt(one)
    assert sums.included(author) & 1, "it counts until the member is ready"
    sums.settle_doubt(one, 5)
    assert not sums.included(author) & 1
    held(sums, one, author, 0)
    sums.parts.doubt(one)
    held(sums, one, author, 0)
    sums.settle_doubt(one, 6)
    assert sums.included(author) & 1


def fixed(members: int = 24) -> RoundSums:
    """A round whose set of authors is fixed at 0: all candidates, in all ranges."""
    sums = opened(members=members)
    crowd = sorted(candidates(sums))
    announced(sums, *crowd)
    for author in crowd:
        spread(sums, author)
    told = sums.fix([SumAuthor(author, root(author), 1) for author in crowd], RATE, 0)
    assert sorted(told) == sorted(
        (who, n) for n, pair in enumerate(sums.summers.pairs) for who in pair
    )
    assert sums.fill(0) == []
    return sums


def say(
    sums: RoundSums,
    who: PeerId,
    digest: Digest,
    number: int = 0,
    result_bytes: int = 9,
    now_ms: int = 5,
) -> tuple[tuple[tuple[PeerId, Digest], ...], list[Asked]]:
    said = SummerAnswer(who, digest, result_bytes)
    if not sums.is_news(number, said, RATE):
        return (), []
    return sums.sign(number, said, now_ms)


def settled(sums: RoundSums, number: int = 0) -> Digest | None:
    assert sums.adding
    kept = sums.adding.by_range[number].settled
    return kept.digest if kept else None


def test_two_equal_digests_settle_a_range_and_nobody_else_is_asked() -> None:
    sums = fixed()
    assert sums.adding
    for number, (one, other) in enumerate(sums.summers.pairs):
        assert say(sums, one, right(number), number) == ((), [])
        assert say(sums, one, right(number), number) == ((), [])
        assert not sums.adding.is_done
        assert say(sums, other, right(number), number) == ((), [])
        assert settled(sums, number) == right(number)
        assert sums.adding.by_range[number].signers() == tuple(sorted((one, other)))
    assert sums.adding.is_done
    assert sums.next_due_ms() is None
    assert sums.missed(10 * PATIENCE_MS) == set()


def test_unlike_digests_are_a_dispute_that_the_next_of_the_draw_settles() -> None:
    sums = fixed()
    one, other = sums.summers.pairs[0]
    third = sums.summers.third(0, ())
    assert third is not None
    say(sums, one, right(0))
    dispute = ((one, right(0)), (other, wrong(0)))
    assert say(sums, other, wrong(0)) == (dispute, [(third, 0)])
    assert sums.missed(6) == set(), "nobody knows yet"
    say(sums, third, right(0))
    assert settled(sums) == right(0)
    assert sums.missed(6) == {other}


def test_one_that_is_late_in_one_range_is_not_asked_for_another() -> None:
    sums = fixed()
    late = {*sums.summers.pairs[0], *sums.summers.pairs[1]}
    for number, pair in enumerate(sums.summers.pairs):
        for who in set(pair) - late:
            say(sums, who, right(number), number)
    asked = sums.reach(PATIENCE_MS, always)
    assert len(asked) == sum(who in late for pair in sums.summers.pairs for who in pair)
    assert sums.missed(PATIENCE_MS) == late
    assert not late & {who for who, _ in asked}


def test_one_digest_of_two_lengths_is_settled_by_a_third_and_no_dispute() -> None:
    sums = fixed()
    one, other = sums.summers.pairs[0]
    third = sums.summers.third(0, ())
    assert third is not None
    say(sums, one, right(0))
    assert say(sums, other, right(0), result_bytes=99) == ((), [(third, 0)])
    assert say(sums, third, right(0)) == ((), [])
    assert sums.adding
    kept = sums.adding.by_range[0].settled
    assert kept is not None
    assert kept.result_bytes == 9


def test_a_wrong_sum_that_comes_after_the_right_one_is_a_dispute_all_the_same() -> None:
    sums = fixed()
    one, other = sums.summers.pairs[0]
    say(sums, one, right(0))
    say(sums, other, right(0))
    signed, asked = say(sums, one, wrong(0))
    assert signed == ((one, right(0)), (other, right(0)), (one, wrong(0)))
    assert (asked, settled(sums)) == ([], right(0))
    assert say(sums, one, wrong(0, b"again")) == ((), []), "two digests are a proof"


def test_in_place_of_one_that_is_gone_or_late_the_next_is_asked_and_what_comes_late_counts() -> (
    None
):
    sums = fixed()
    one, other = sums.summers.pairs[0]
    third = sums.summers.third(0, {one})
    assert third is not None
    sums.forget(one, 5)
    assert (third, 0) in sums.fill(5)
    say(sums, other, right(0))
    fourth = sums.summers.third(0, {one, third})
    assert fourth is not None
    assert (fourth, 0) not in sums.reach(PATIENCE_MS + 4, always)
    assert (fourth, 0) in sums.reach(PATIENCE_MS + 5, always)
    assert {one, third} <= sums.missed(PATIENCE_MS + 5)
    say(sums, third, right(0))
    assert settled(sums) == right(0)


def test_a_range_that_nobody_is_left_for_is_nobodys() -> None:
    sums = fixed(members=2)
    assert sums.adding
    one, other = sums.summers.pairs[0]
    say(sums, one, right(0))
    sums.forget(other, 5)
    assert sums.fill(5) == []
    assert not sums.adding.by_range[0].is_open
    assert say(sums, one, wrong(0))[1] == []
    assert settled(sums) is None


def test_a_range_without_any_author_is_not_added() -> None:
    sums = opened(members=64)
    author = outsider(sums)
    announced(sums, author)
    for number in range(1, sums.ranges):
        for who in sums.summers.pairs[number]:
            held(sums, who, author, number)
    told = sums.fix([SumAuthor(author, root(author), 1)], RATE, 0)
    assert {number for _, number in told} == set(range(1, sums.ranges))
    assert sums.adding
    assert [each.silent for each in sums.adding.by_range] == [(0,), *[()] * (sums.ranges - 1)]


def test_another_learning_rate_asks_everybody_again() -> None:
    sums = fixed()
    one, other = sums.summers.pairs[0]
    say(sums, one, right(0))
    told = sums.ask_again(RATE + 1, 500)
    assert (one, 0) in told
    assert say(sums, other, right(0)) == ((), []), "signed under the old question"
    assert sums.adding
    assert sums.adding.fixed_ms == 0
    assert sums.next_due_ms() == 500 + PATIENCE_MS


def test_an_outage_gives_everybody_as_much_longer() -> None:
    sums = fixed()
    sums.postpone(700)
    assert sums.next_due_ms() == 700 + PATIENCE_MS


def test_words_of_nodes_that_were_not_asked_change_nothing() -> None:
    sums = fixed()
    stranger = next(who for who in candidates(sums) if who not in sums.summers.pairs[0])
    for number, who in ((0, stranger), (0, peer(999)), (-1, stranger), (16, stranger)):
        assert say(sums, who, wrong(0), number) == ((), [])
    one, other = sums.summers.pairs[0]
    say(sums, one, right(0))
    say(sums, other, right(0))
    assert settled(sums) == right(0)
