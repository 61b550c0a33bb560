"""The payloads of one round and the members that hold them.

A receipt names the digest of a payload that a member holds and has verified. It may arrive before
the author's announcement, so a member may name any digests, at most `named_max` of them: one that
names digests of no payload takes room from no other member's receipts.

`holders` is `named` by digest, and `short` the authors whose payload has fewer than `copies_min`
holders besides the author. Both follow every event, so that the question "may the round be
decided?" costs the same with a thousand members as with two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.machine.state.standing import half
from protocol.ids import Digest, PeerId

HOLDERS_TOLD_MAX = 8
"""Holders of a payload that a commit's message names: enough to start pulling, even if few offers
have arrived."""

HOLDERS_TOLD_IN_ALL = 1024
"""Holders that a commit's message names over all payloads, at least one each: with many authors the
lists would outweigh the commit."""


@dataclass(slots=True)
class Receipts:
    """The receipts of one round; see the module."""

    copies_min: int
    named_max: int
    """Digests that one member may name."""
    authors: dict[Digest, list[PeerId]] = field(default_factory=dict)
    """Authors by announced digest; more than one when a member announces another's payload."""
    holders: dict[Digest, set[PeerId]] = field(default_factory=dict)
    named: dict[PeerId, set[Digest]] = field(default_factory=dict)
    headers: dict[PeerId, dict[Digest, PeerId]] = field(default_factory=dict)
    """Authors that a holder has read in the headers of payloads, as far as it said so."""
    doubted: dict[PeerId, set[Digest]] = field(default_factory=dict)
    """Digests that a member with a new session has not named again."""
    drawn: dict[PeerId, frozenset[PeerId]] = field(default_factory=dict)
    """Witnesses of an author's payload, in a run that draws them; without a line every holder is
    one."""
    copying: dict[PeerId, set[PeerId]] = field(default_factory=dict)
    """Witnesses that hold an author's payload, by author."""
    short: set[PeerId] = field(default_factory=set)
    auditors: frozenset[PeerId] = frozenset()
    """Auditors of the run: nobody has drawn them, and each that holds a payload is a copy more."""
    copied_ms: dict[PeerId, int] = field(default_factory=dict)
    """Time at which an author's payload first had `copies_min` other holders."""

    # ---- queries

    def holding(self, digest: Digest) -> set[PeerId]:
        """Members that hold this payload, its author included."""
        return self.holders.get(digest, set())

    def copies(self, digest: Digest, author: PeerId) -> int:
        """Witnesses and auditors that hold a payload, besides its author and those that have read
        another author in its header: a member that announces another's payload has no copies.
        """
        return len(self.copying[author]) if author in self.authors.get(digest, ()) else 0

    def wanted(self, author: PeerId, others: int) -> int:
        """Copies that a payload needs when at most `others` witnesses can have one: `copies_min`,
        and half of the witnesses where they are drawn.
        """
        drawn = half(others) if author in self.drawn else 0
        return max(drawn, min(self.copies_min, others))

    def told_holders(self, digest: Digest) -> tuple[PeerId, ...]:
        """Some of the members that hold a payload, sorted. The digest chooses them, which spreads
        the load.
        """
        told_max = min(HOLDERS_TOLD_MAX, max(1, HOLDERS_TOLD_IN_ALL // max(1, len(self.authors))))
        holding = sorted(self.holding(digest))
        first = int.from_bytes(digest[:8], "big") % max(1, len(holding))
        return tuple(sorted((holding[first:] + holding[:first])[:told_max]))

    def confirmed_by(self, peer: PeerId) -> bool:
        """Whether the member holds a payload that another one has announced."""
        named = self.named.get(peer, set())
        return any(set(self.authors.get(digest, ())) - {peer} for digest in named)

    def needed(self, author: PeerId) -> int:
        """Copies that a payload needs while no witness has gone."""
        drawn = self.drawn.get(author)
        return self.copies_min if drawn is None else self.wanted(author, len(drawn))

    def news(self, peer: PeerId, digests: Iterable[Digest]) -> tuple[Digest, ...]:
        """The digests among these of which `hold` would take note: those that the member has not
        named, as far as it may name more, and those that it has to name again.
        """
        named, doubted = self.named.get(peer, set()), self.doubted.get(peer, set())
        fresh = dict.fromkeys(digest for digest in digests if digest not in named)
        room = self.named_max - len(named)
        taken = {*list(fresh)[:room], *doubted} if room > 0 else doubted
        return tuple(digest for digest in dict.fromkeys(digests) if digest in taken)

    # ---- changes

    def announce(
        self,
        author: PeerId,
        digest: Digest,
        now_ms: int,
        witnesses: frozenset[PeerId] | None = None,
    ) -> None:
        """Note the payload that an author has announced; the author holds it. `witnesses` are those
        that were drawn for it; None where every holder counts.
        """
        self.authors.setdefault(digest, []).append(author)
        if witnesses is not None:
            self.drawn[author] = witnesses
        self.copying[author] = {
            peer for peer in self.holding(digest) if self.is_copy(peer, digest, author)
        }
        self.hold(author, (digest,), now_ms)
        self._count_copies(digest, now_ms)

    def is_copy(self, peer: PeerId, digest: Digest, author: PeerId) -> bool:
        """Whether it counts that this peer holds the author's payload."""
        drawn = peer in self.auditors or peer in self.drawn.get(author, (peer,))
        if peer == author or not drawn:
            return False
        return self.headers.get(peer, {}).get(digest, author) == author

    def hold(
        self,
        peer: PeerId,
        digests: Sequence[Digest],
        now_ms: int,
        authors: Sequence[PeerId] = (),
    ) -> None:
        """Note the receipts of a member, as far as it may name more digests. `authors` are those in
        the payloads' headers, or nothing.
        """
        headers = dict(zip(digests, authors, strict=False))
        for digest in self.news(peer, digests):
            self.named.setdefault(peer, set()).add(digest)
            if author := headers.get(digest):
                self.headers.setdefault(peer, {})[digest] = author
            self.doubted.get(peer, set()).discard(digest)
            self.holders.setdefault(digest, set()).add(peer)
            for announcer in self.authors.get(digest, ()):
                self.copying[announcer].discard(peer)
                if self.is_copy(peer, digest, announcer):
                    self.copying[announcer].add(peer)
            if digest in self.authors:
                self._count_copies(digest, now_ms)

    def doubt(self, peer: PeerId) -> None:
        """A member has a new session, perhaps as a new process: its receipts count until it is
        ready, and then only those that it has repeated.
        """
        self.doubted[peer] = set(self.named.get(peer, ()))

    def settle_doubt(self, peer: PeerId) -> None:
        """The member is ready: drop the receipts that it has not repeated."""
        for digest in self.doubted.pop(peer, set()):
            self.named[peer].discard(digest)
            self._drop(peer, digest)

    def forget(self, peer: PeerId) -> None:
        """A member went: it holds nothing any more."""
        for digest in self.named.pop(peer, set()):
            self._drop(peer, digest)
        self.headers.pop(peer, None)
        self.doubted.pop(peer, None)

    def _drop(self, peer: PeerId, digest: Digest) -> None:
        self.holders[digest].discard(peer)
        self.headers.get(peer, {}).pop(digest, None)
        if not self.holders[digest]:
            del self.holders[digest]
        for author in self.authors.get(digest, ()):
            self.copying[author].discard(peer)
        if digest in self.authors:
            self._count_copies(digest)

    def _count_copies(self, digest: Digest, now_ms: int | None = None) -> None:
        for author in self.authors[digest]:
            if self.copies(digest, author) < self.needed(author):
                self.short.add(author)
            else:
                self.short.discard(author)
                if now_ms is not None:
                    self.copied_ms.setdefault(author, now_ms)
