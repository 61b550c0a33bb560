"""The parts of a round's payloads, and the summers that hold them.

A summer names the root of a payload, and the ranges of which it holds the part. That may come
before the author's announcement, so it may name any roots, at most `roots_max`; what it says of
ranges that it does not add counts for nothing. An author holds its own parts in the ranges that it
adds itself. A summer that has read another author in the headers of parts holds nothing of one that
announces the root of another.

`copies` is `named` by author, and follows every event: so the question "may the round close?" costs
the same with a thousand members as with two.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.machine.events.inputs import HeldParts
from protocol.ids import Digest, PeerId


@dataclass(slots=True)
class PartCopies:
    """The parts of one author that summers hold, as bits by range."""

    root: Digest

    once: int = 0
    """Ranges of which one summer at least holds the part."""

    twice: int = 0
    """Ranges of which two do."""


@dataclass(slots=True)
class PartHolders:
    """The receipts of one round's summers; see the module."""

    roots_max: int
    """Roots that one summer may name."""
    adds: dict[PeerId, int] = field(default_factory=dict)
    """The ranges that each summer adds, as bits."""
    named: dict[PeerId, dict[Digest, HeldParts]] = field(default_factory=dict)
    doubted: dict[PeerId, set[Digest]] = field(default_factory=dict)
    """Roots that a summer with a new session has not named again."""
    authors: dict[Digest, list[PeerId]] = field(default_factory=dict)
    """Authors by announced root; more than one when a member announces another's payload."""
    copies: dict[PeerId, PartCopies] = field(default_factory=dict)

    # ---- queries

    def news(self, peer: PeerId, held: Iterable[HeldParts]) -> tuple[HeldParts, ...]:
        """The part of a summer's word of which `hold` would take note."""
        adds, named = self.adds.get(peer, 0), self.named.get(peer, {})
        doubted, found = self.doubted.get(peer, set()), dict[Digest, HeldParts]()
        room = self.roots_max - len(named)
        for each in held:
            ranges, author = each.ranges & adds, each.author
            earlier = named.get(each.root)
            if not ranges or each.root in found:
                continue
            if earlier is None and room > 0:
                room -= 1
            elif earlier and each.root not in doubted and ranges & ~earlier.ranges:
                author = earlier.author
            elif each.root not in doubted:
                continue
            found[each.root] = HeldParts(each.root, ranges, author)
        return tuple(found.values())

    def bits(self, peer: PeerId, author: PeerId) -> int:
        """The ranges that a summer adds and of which it holds this author's part."""
        if peer == author:
            return self.adds.get(peer, 0)
        said = self.named.get(peer, {}).get(self.copies[author].root)
        return said.ranges if said and said.author in (None, author) else 0

    def authors_of(self, roots: Iterable[Digest]) -> list[PeerId]:
        """The members that have announced one of these roots, sorted."""
        return sorted({author for root in roots for author in self.authors.get(root, ())})

    # ---- changes

    def add_summer(self, peer: PeerId, number: int) -> None:
        """One more node adds a range."""
        self.adds[peer] = self.adds.get(peer, 0) | 1 << number
        if peer in self.copies:
            self._count(peer)

    def announce(self, author: PeerId, root: Digest) -> None:
        """An author has announced the root of its payload."""
        self.authors.setdefault(root, []).append(author)
        self.copies[author] = PartCopies(root)
        self._count(author)

    def hold(self, peer: PeerId, held: Iterable[HeldParts]) -> tuple[HeldParts, ...]:
        """Note what a summer holds, as far as that is news; returns that part."""
        news, doubted = self.news(peer, held), self.doubted.get(peer, set())
        for said in news:
            named = self.named.setdefault(peer, {})
            earlier = None if said.root in doubted else named.get(said.root)
            before = earlier.ranges if earlier else 0
            named[said.root] = HeldParts(said.root, before | said.ranges, said.author)
            for author in self.authors.get(said.root, ()):
                if said.root in doubted:
                    self._count(author)
                elif author != peer:
                    self._note(self.copies[author], self.bits(peer, author) & ~before)
            doubted.discard(said.root)
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
        for root in dropped:
            del self.named[peer][root]
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
