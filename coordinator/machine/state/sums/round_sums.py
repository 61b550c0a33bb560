"""One round with summers: from the drawn plan to a result of every range.

    holding -----------------> adding ---------------------> done
     |   ^   the set is fixed   |   ^   every range is settled, or nobody's
     '---'                      '---'
    the next of the draw holds  the next of the draw adds

Rules
- A range includes an author when two of those that were asked for it hold its part; or all of them,
  where fewer than two are left and nobody follows them.
- Once a summer holds an author's part in half of the ranges, the rest is awaited for `patience_ms`
  after the last news of it. Each of the two drawn summers of a range that lacks its part then is
  replaced by the next of the draw. When those lack it too, nobody waits for that author's parts.
- An author's payload is available when half of the ranges include it.
- In the place of a summer that is gone the next of the draw is asked, up to ASKED_MAX for a range.
  Those that have missed another range of the round come last.
- A summer is late that has not signed `patience_ms` after it was asked. Then, and when sums differ,
  the next of the draw is asked (`coordinator.machine.state.sums.adding`).

So a set that is fixed is added within ASKED_MAX - 1 patiences, whatever is said.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.machine.events.inputs import HeldParts
from coordinator.machine.state.sums.adding import Adding, RangeSums, SummerAnswer
from coordinator.machine.state.sums.part_holders import PartHolders
from coordinator.machine.state.sums.summers import Summers
from protocol.ids import Digest, PeerId
from protocol.sums.asked import SumAuthor

ASKED_MAX: Final = 6
"""Nodes asked to add one range: two, and four in place of those that are gone, late or unlike."""

WANTED: Final = 2
"""Summers of a range that hold its parts, and equal results that settle it."""

Asked = tuple[PeerId, int]
"""A node, and the range that it is to add."""


@dataclass(slots=True)
class RoundSums:
    """The summers of one round, and what they have said; see the module."""

    summers: Summers
    patience_ms: int
    parts: PartHolders
    asked: list[dict[PeerId, int]]
    """By range: the nodes that were asked for it, in order, and when each is late."""
    excused: list[set[PeerId]]
    """By range: nodes in whose place another one was asked, or would be if there were one."""
    gone: set[PeerId] = field(default_factory=set)
    short: set[PeerId] = field(default_factory=set)
    """Authors that some range does not include."""
    whole_ms: dict[PeerId, int] = field(default_factory=dict)
    """Time at which every range first included an author."""
    due_ms: dict[PeerId, int] = field(default_factory=dict)
    """Time at which summers that lack a part of an author are replaced."""
    given_up: set[PeerId] = field(default_factory=set)
    """Authors for whose parts nobody waits any more."""
    vacant: bool = False
    """A summer went, or all were asked anew: others may have to be asked (`fill`)."""
    lonely: int = 0
    """The ranges with fewer than two nodes, and nobody to follow, as bits."""
    adding: Adding | None = None
    """Once the set of authors is fixed."""

    @classmethod
    def open(cls, summers: Summers, patience_ms: int, names_max: int) -> "RoundSums":
        """A round with these summers, which nobody has given a part yet."""
        asked = [dict.fromkeys(pair, 0) for pair in summers.pairs]
        opened = cls(summers, patience_ms, PartHolders(names_max), asked, [set() for _ in asked])
        for number, pair in enumerate(summers.pairs):
            for peer in pair:
                opened.parts.add_summer(peer, number)
        return opened

    # ---- queries

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self.asked)

    def living(self, number: int) -> list[PeerId]:
        """The nodes asked for a range that are not gone, in the order in which they were."""
        return [peer for peer in self.asked[number] if peer not in self.gone]

    def plan(self) -> tuple[tuple[PeerId, ...], ...]:
        """The nodes that hold the parts of each range."""
        return tuple(tuple(self.living(number)) for number in range(self.ranges))

    def included(self, author: PeerId) -> int:
        """The ranges that include an author, as bits."""
        copies = self.parts.copies[author]
        return copies.twice | (copies.once & self.lonely)

    def is_available(self, author: PeerId) -> bool:
        """Whether half of the ranges include the author of a payload."""
        return 2 * self.included(author).bit_count() >= self.ranges

    def waits_for(self, author: PeerId, *, present: bool) -> bool:
        """Whether more parts of an author may come: it is a member, or others pass them on."""
        awaited = author in self.short and author not in self.given_up
        return awaited and (present or author in self.due_ms)

    def next_due_ms(self) -> int | None:
        """A time before which `reach` does nothing; None while nothing is planned."""
        if self.adding is None:
            return min(self.due_ms.values(), default=None)
        return min(
            (self.asked[number][peer] for number, peer in self._awaited_sums()), default=None
        )

    # ---- parts

    def announce(self, author: PeerId, root: Digest, now_ms: int) -> None:
        """An author has announced its payload."""
        self.parts.announce(author, root)
        self._follow((author,), now_ms)

    def hold(self, peer: PeerId, held: Iterable[HeldParts], now_ms: int) -> None:
        """A summer holds parts."""
        news = self.parts.hold(peer, held)
        self._follow(self.parts.authors_of(said.payload for said in news), now_ms)

    def settle_doubt(self, peer: PeerId, now_ms: int) -> None:
        """A member with a new session is ready: what it has not repeated is dropped."""
        self._follow(self.parts.settle_doubt(peer), now_ms)

    def forget(self, peer: PeerId, now_ms: int) -> None:
        """A member went."""
        if self.summers.is_candidate(peer):  # one that adds, or may be asked next
            self.gone.add(peer)
            self.vacant |= peer in self.parts.adds
        self._follow(self.parts.forget(peer), now_ms)

    def _lacking(self, author: PeerId) -> int:
        return ((1 << self.ranges) - 1) & ~self.included(author)

    def _follow(self, authors: Iterable[PeerId], now_ms: int) -> None:
        """There is news of the parts of these authors."""
        for author in authors:
            is_whole = self._note_whole(author, now_ms)
            if (
                not is_whole
                and self._is_there(author)
                and author not in self.given_up
                and not self.adding
            ):
                self.due_ms[author] = now_ms + self.patience_ms

    def _note_whole(self, author: PeerId, now_ms: int) -> bool:
        """Note that every range includes an author, if that is so."""
        if self._lacking(author):
            self.short.add(author)
            return False
        self.short.discard(author)
        self.whole_ms.setdefault(author, now_ms)
        self.due_ms.pop(author, None)
        return True

    def _is_there(self, author: PeerId) -> bool:
        """Whether summers hold an author's part in half of the ranges."""
        return 2 * self.parts.copies[author].once.bit_count() >= self.ranges

    # ---- time

    def reach(self, now_ms: int, copied: Callable[[PeerId], bool]) -> list[Asked]:
        """Replace the summers whose time is over; returns the nodes that are asked. `copied` says
        for the parts of which authors rounds wait.
        """
        if self.adding is None:
            return self._replace_behind(now_ms, copied)
        for number, peer in list(self._awaited_sums()):
            if self.asked[number][peer] <= now_ms:
                self.excused[number].add(peer)
        return self.fill(now_ms)

    def postpone(self, milliseconds: int) -> None:
        """The coordinator was away for this long: everybody has that much longer."""
        self.due_ms = {author: due_ms + milliseconds for author, due_ms in self.due_ms.items()}
        self.asked = [
            {peer: late_ms + milliseconds for peer, late_ms in asked.items()}
            for asked in self.asked
        ]

    def _replace_behind(self, now_ms: int, copied: Callable[[PeerId], bool]) -> list[Asked]:
        due = sorted(author for author, due_ms in self.due_ms.items() if due_ms <= now_ms)
        for author in due:
            del self.due_ms[author]
            for number in self._lacking_ranges(author) if copied(author) else ():
                self.excused[number] |= {
                    peer
                    for peer in self.summers.pairs[number]
                    if not self.parts.bits(peer, author) >> number & 1
                }
        asked = self.fill(now_ms)
        for author in due:
            if any(
                self._may_get(author, number, now_ms) for number in self._lacking_ranges(author)
            ):
                self.due_ms[author] = now_ms + self.patience_ms
            else:
                self.given_up.add(author)
        return asked

    def _lacking_ranges(self, author: PeerId) -> list[int]:
        lacking = self._lacking(author)
        return [number for number in range(self.ranges) if lacking >> number & 1]

    def _may_get(self, author: PeerId, number: int, now_ms: int) -> bool:
        """Whether a node that was asked for a range in place of another has time for a part."""
        return any(
            late_ms > now_ms and not self.parts.bits(peer, author) >> number & 1
            for peer, late_ms in self.asked[number].items()
        )

    # ---- those that follow

    def fill(self, now_ms: int) -> list[Asked]:
        """Ask the next of the draw where summers are gone, late, behind or unlike, and close the
        ranges for which nobody is left.
        """
        self.vacant = False
        missed = self.missed(now_ms)
        asked = [
            (peer, number)
            for number in range(self.ranges)
            for peer in self._fill(number, missed, now_ms)
        ]
        alone = [number for number in range(self.ranges) if len(self.living(number)) < WANTED]
        self.lonely = sum(1 << number for number in alone)
        for author in self.parts.copies if alone and self.adding is None else ():
            self._note_whole(author, now_ms)
        return asked

    def _fill(self, number: int, missed: set[PeerId], now_ms: int) -> Iterator[PeerId]:
        while self._lacks_summer(number):
            peer = self._next(number, missed)
            if peer is None:
                if self.adding and not self._awaited(number):
                    self.adding.by_range[number].is_open = False
                return
            self.asked[number][peer] = now_ms + self.patience_ms
            self.parts.add_summer(peer, number)
            yield peer

    def _lacks_summer(self, number: int) -> bool:
        """Whether those that were asked for a range can settle it no more."""
        if self.adding is None:
            return len(self.living(number)) - len(self.excused[number] - self.gone) < WANTED
        found = self.adding.by_range[number]
        return found.is_open and found.most() + len(self._awaited(number)) < WANTED

    def _next(self, number: int, missed: set[PeerId]) -> PeerId | None:
        """The node that is asked for a range next; None: nobody is left. One that has `missed`
        another range of this round is asked where nobody else is left.
        """
        asked = self.asked[number]
        if len(asked) >= ASKED_MAX:
            return None
        taken = {*self.gone, *asked}
        prompt = self.summers.third(number, taken | missed)
        return prompt or self.summers.third(number, taken)

    # ---- sums

    def fix(
        self, authors: Sequence[SumAuthor], learning_rate_bits: int, now_ms: int
    ) -> list[Asked]:
        """The set of authors, sorted, is fixed: ask the summers of all ranges that include one."""
        included = [self.included(each.author) for each in authors]
        silent = [
            tuple(place for place, bits in enumerate(included) if not bits >> number & 1)
            for number in range(self.ranges)
        ]
        self.due_ms.clear()
        return self._ask(authors, learning_rate_bits, now_ms, silent)

    def ask_again(self, learning_rate_bits: int, now_ms: int) -> list[Asked]:
        """The learning rate of the step has changed: ask all summers anew."""
        if self.adding is None:
            return []
        silent = [each.silent for each in self.adding.by_range]
        return self._ask(self.adding.authors, learning_rate_bits, now_ms, silent)

    def _ask(
        self,
        authors: Sequence[SumAuthor],
        learning_rate_bits: int,
        now_ms: int,
        silent: Sequence[tuple[int, ...]],
    ) -> list[Asked]:
        by_range = [RangeSums(each, is_open=len(each) < len(authors)) for each in silent]
        fixed_ms = self.adding.fixed_ms if self.adding else now_ms
        self.adding = Adding(learning_rate_bits, tuple(authors), fixed_ms, by_range)
        told = list[Asked]()
        for number, found in enumerate(by_range):
            self.excused[number].clear()
            for peer in self.living(number) if found.is_open else ():
                self.asked[number][peer] = now_ms + self.patience_ms
                told.append((peer, number))
        self.vacant = True
        return told

    def is_news(self, number: int, said: SummerAnswer, learning_rate_bits: int) -> bool:
        """Whether a node that was asked has signed a further digest under the question that is
        open.
        """
        if self.adding is None or learning_rate_bits != self.adding.learning_rate_bits:
            return False
        asked = 0 <= number < self.ranges and said.peer in self.asked[number]
        return asked and self.adding.is_news(number, said)

    def sign(
        self, number: int, said: SummerAnswer, now_ms: int
    ) -> tuple[tuple[tuple[PeerId, Digest], ...], list[Asked]]:
        """A node has signed a digest that is news; returns all that was signed, if digests differ,
        and the nodes that are asked.
        """
        assert self.adding is not None
        signed = self.adding.take(number, said)
        missed = self.missed(now_ms) if self._lacks_summer(number) else set()
        return signed, [(peer, number) for peer in self._fill(number, missed, now_ms)]

    def missed(self, now_ms: int) -> set[PeerId]:
        """The nodes that, for some range, have not signed in their time, or only sums unlike the
        one that is settled.
        """
        if self.adding is None:
            return set()
        return {
            peer
            for number, found in enumerate(self.adding.by_range)
            for peer, late_ms in self.asked[number].items()
            if len(found.silent) < len(self.adding.authors)
            and (
                found.is_outvoted(peer)
                if found.said(peer)
                else peer in self.gone or late_ms <= now_ms
            )
        }

    def _awaited(self, number: int) -> list[PeerId]:
        """Nodes that may still sign their first digest of a range in time."""
        assert self.adding is not None
        found, excused = self.adding.by_range[number], self.excused[number]
        return [
            peer for peer in self.living(number) if peer not in excused and not found.said(peer)
        ]

    def _awaited_sums(self) -> Iterator[tuple[int, PeerId]]:
        for number, found in enumerate(self.adding.by_range if self.adding else ()):
            for peer in self._awaited(number) if found.is_open else ():
                yield number, peer
