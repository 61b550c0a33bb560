"""One round with summers: from the fixed set of authors to a result of every range.

              set fixed: two are asked        two alike
    (range) -----------------------> asked -------------------------------> settled: the result
                                     |   ^                                     |
             gone, late, or unlike   |   | the next of the draw is asked       | another digest,
                                     '---'                                     v signed: a dispute
                                     |
                                     '--- ASKED_MAX, or nobody left ------> everybody adds it

Rules
- A range is settled by the first digest that two nodes, asked for it, have signed.
- A node is late that has not said its digest `patience_ms` after it was asked. What it says later
  counts as long as the range is open.
- Digests that differ are a dispute, with all that was signed: whoever has the parts adds again and
  finds who signed a wrong sum. Nobody is judged by number here, so two that lie together cannot
  frame an honest one.
- Each range ends, whatever is said: after ASKED_MAX nodes everybody gets its parts and adds it; if
  that happens to all ranges it costs what a round without summers does.

A message of a node that was not asked, or of no range, changes nothing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, assert_never

from coordinator.machine.state.summers import Summers
from protocol.ids import Digest, PeerId

ASKED_MAX: Final = 6
"""Nodes asked to add one range: two, and four in place of those that are gone, late or unlike."""

SIGNED_MAX: Final = 2
"""Digests of one node for one range that are kept: the second one proves that it lies."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The set of authors is fixed, and told."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A node has signed the digest of its sum of a range."""

    peer: PeerId
    number: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Gone:
    """A node has left."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Time has passed."""


Event = Fixed | Signed | Gone | Elapsed


@dataclass(frozen=True, slots=True)
class Ask:
    """A node is to add a range."""

    peer: PeerId
    number: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The commit names this result for a range."""

    number: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Spread:
    """The commit names the parts of a range: everybody gets and adds them."""

    number: int


@dataclass(frozen=True, slots=True)
class Dispute:
    """Unlike sums of one range were signed: whoever adds again finds the wrong ones."""

    number: int
    signed: tuple[tuple[PeerId, Digest], ...]


Effect = Ask | Settle | Spread | Dispute


@dataclass(slots=True)
class _Range:
    """What is known of one range."""

    asked: dict[PeerId, int] = field(default_factory=dict)
    """Nodes asked, and by when each is late."""

    signed: list[tuple[PeerId, Digest]] = field(default_factory=list)

    excused: set[PeerId] = field(default_factory=set)
    """Nodes in whose place another was asked."""

    is_open: bool = True

    def has(self, peer: PeerId) -> int:
        """Digests that a node has signed."""
        return sum(who == peer for who, _ in self.signed)

    def agreed(self) -> Digest | None:
        """The digest that two nodes have signed."""
        counts = Counter(digest for _, digest in self.signed)
        return next((digest for _, digest in self.signed if counts[digest] > 1), None)

    def awaited(self) -> set[PeerId]:
        """Nodes that may still say their first digest in time."""
        return {peer for peer in self.asked if not self.has(peer)} - self.excused


class Summing:
    """The ranges of one round; see the module."""

    def __init__(self, summers: Summers, patience_ms: int) -> None:
        self._summers, self._patience_ms = summers, patience_ms
        self._gone = set[PeerId]()
        self._ranges = [_Range() for _ in summers.pairs]

    @property
    def is_done(self) -> bool:
        """Whether every range is settled, or goes to everybody."""
        return not any(each.is_open for each in self._ranges)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """What follows from an event."""
        match event:
            case Fixed():
                pairs = enumerate(self._summers.pairs)
                return [self._ask(number, peer, now_ms) for number, pair in pairs for peer in pair]
            case Signed(peer, number, digest):
                return list(self._take(peer, number, digest, now_ms))
            case Gone(peer):
                self._gone.add(peer)
                return [each for n in range(len(self._ranges)) for each in self._go_on(n, now_ms)]
            case Elapsed():
                return [each for n in range(len(self._ranges)) for each in self._go_on(n, now_ms)]
            case _:
                assert_never(event)

    def _take(self, peer: PeerId, number: int, digest: Digest, now_ms: int) -> Iterator[Effect]:
        """A digest was signed."""
        if not 0 <= number < len(self._ranges):
            return
        found = self._ranges[number]
        is_news = (peer, digest) not in found.signed and found.has(peer) < SIGNED_MAX
        if peer not in found.asked or not is_news:
            return
        found.signed.append((peer, digest))
        if len({each for _, each in found.signed}) > 1:
            yield Dispute(number, tuple(found.signed))
        yield from self._go_on(number, now_ms)

    def _go_on(self, number: int, now_ms: int) -> Iterator[Effect]:
        """Settle an open range, ask others for it, or give it to everybody."""
        found = self._ranges[number]
        if not found.is_open:
            return
        if (digest := found.agreed()) is not None:
            found.is_open = False
            yield Settle(number, digest)
            return
        for peer in sorted(found.awaited()):
            if peer in self._gone or found.asked[peer] <= now_ms:
                found.excused.add(peer)
        while not self._may_settle(found):
            third = self._summers.third(number, {*self._gone, *found.asked})
            if third is None or len(found.asked) >= ASKED_MAX:
                found.is_open = bool(found.awaited())
                if not found.is_open:
                    yield Spread(number)
                return
            yield self._ask(number, third, now_ms)

    def _may_settle(self, found: _Range) -> bool:
        """Whether two digests may still be alike when all that are awaited have spoken."""
        most = max(Counter(digest for _, digest in found.signed).values(), default=0)
        return most + len(found.awaited()) >= 2

    def _ask(self, number: int, peer: PeerId, now_ms: int) -> Ask:
        self._ranges[number].asked[peer] = now_ms + self._patience_ms
        return Ask(peer, number)
