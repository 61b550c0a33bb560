"""The parts of a round's payloads, and the summers that hold them.

A summer names a payload, and the ranges of which it holds the part. That may come before the
author's announcement, so it may name anything, at most `names_max`; what it says of ranges that it
does not add counts for nothing. An author holds its own parts in the ranges that it adds itself.
The name follows from the root and the author in the headers of parts (`protocol.sums.receipts`), so
nobody holds parts of one that announces the root of another.

`copies` is `named` by author, and follows every event: so the question "may the round close?" costs
the same with a thousand members as with two.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.machine.events.inputs import HeldParts
from protocol.ids import Digest, PeerId
from protocol.sums.receipts import receipt_name


@dataclass(slots=True)
class PartCopies:
    """The parts of one author that summers hold, as bits by range."""

    payload: int
    """Its name in receipts."""

    once: int = 0
    """Ranges of which one summer at least holds the part."""

    twice: int = 0
    """Ranges of which two do."""


@dataclass(slots=True)
class PartHolders:
    """The receipts of one round's summers; see the module."""

    names_max: int
    """Payloads that one summer may name."""
    adds: dict[PeerId, int] = field(default_factory=dict)
    """The ranges that each summer adds, as bits."""
    named: dict[PeerId, dict[int, int]] = field(default_factory=dict)
    """By summer and payload the ranges of which it holds the part, as bits."""
    doubted: dict[PeerId, set[int]] = field(default_factory=dict)
    """Payloads that a summer with a new session has not named again."""
    authors: dict[int, PeerId] = field(default_factory=dict)
    """The author of each announced payload; of two of one name, which chance does not make, the
    first."""
    copies: dict[PeerId, PartCopies] = field(default_factory=dict)

    # ---- queries

    def news(self, peer: PeerId, held: Iterable[HeldParts]) -> tuple[HeldParts, ...]:
        """The part of a summer's word of which `hold` would take note."""
        adds, named = self.adds.get(peer, 0), self.named.get(peer, {})
        doubted, found = self.doubted.get(peer, set()), dict[int, HeldParts]()
        room = self.names_max - len(named)
        for each in held:
            ranges, earlier = each.ranges & adds, named.get(each.payload)
            if not ranges or each.payload in found:
                continue
            if earlier is None and room > 0:
                room -= 1
            elif each.payload not in doubted and not (earlier and ranges & ~earlier):
                continue
            found[each.payload] = HeldParts(each.payload, ranges)
        return tuple(found.values())

    def bits(self, peer: PeerId, author: PeerId) -> int:
        """The ranges that a summer adds and of which it holds this author's part."""
        if peer == author:
            return self.adds.get(peer, 0)
        payload = self.copies[author].payload
        if self.authors[payload] != author:
            return 0
        return self.named.get(peer, {}).get(payload, 0)

    def authors_of(self, payloads: Iterable[int]) -> list[PeerId]:
        """The members that have announced one of these payloads, sorted."""
        return sorted({self.authors[each] for each in payloads if each in self.authors})

    # ---- changes

    def add_summer(self, peer: PeerId, number: int) -> None:
        """One more node adds a range."""
        self.adds[peer] = self.adds.get(peer, 0) | 1 << number
        if peer in self.copies:
            self._count(peer)

    def announce(self, author: PeerId, root: Digest) -> None:
        """An author has announced the root of its payload."""
        payload = receipt_name(author, root)
        self.authors.setdefault(payload, author)
        self.copies[author] = PartCopies(payload)
        self._count(author)

    def hold(self, peer: PeerId, held: Iterable[HeldParts]) -> tuple[HeldParts, ...]:
        """Note what a summer holds, as far as that is news; returns that part."""
        news, doubted = self.news(peer, held), self.doubted.get(peer, set())
        for said in news:
            named = self.named.setdefault(peer, {})
            before = 0 if said.payload in doubted else named.get(said.payload, 0)
            named[said.payload] = before | said.ranges
            author = self.authors.get(said.payload)
            if author and said.payload in doubted:
                self._count(author)
            elif author and author != peer:
                self._note(self.copies[author], said.ranges & ~before)
            doubted.discard(said.payload)
        return news

    def doubt(self, peer: PeerId) -> None:
        """A member has a new session, perhaps as a new process: its receipts count until it is
        ready, and then only those that it has repeated.
        """
        if peer in self.named:
            self.doubted[peer] = set(self.named[peer])

    def settle_doubt(self, peer: PeerId) -> list[PeerId]:
        """The member is ready: drop the receipts that it has not repeated. Returns the authors of
        these parts.
        """
        dropped = self.doubted.pop(peer, set())
        for payload in dropped:
            del self.named[peer][payload]
        return self._count_all(self.authors_of(dropped))

    def forget(self, peer: PeerId) -> list[PeerId]:
        """A member went: it holds and adds nothing any more. Returns the authors of whom it held
        parts.
        """
        self.adds.pop(peer, None)
        self.doubted.pop(peer, None)
        touched = self.authors_of(self.named.pop(peer, {}))
        return self._count_all(sorted({*touched, *({peer} & self.copies.keys())}))

    def _count_all(self, authors: list[PeerId]) -> list[PeerId]:
        for author in authors:
            self._count(author)
        return authors

    def _count(self, author: PeerId) -> None:
        """Count an author's copies anew."""
        copies = self.copies[author]
        copies.once = copies.twice = 0
        for peer in {*self.named, author}:
            self._note(copies, self.bits(peer, author))

    def _note(self, copies: PartCopies, bits: int) -> None:
        """One more summer holds the parts of these ranges."""
        copies.twice |= copies.once & bits
        copies.once |= bits
