"""The payloads of rounds with a plan: roots, the lists of their parts, and which parts are held.

    root    names the list of an author's parts; the author has signed it (`Announcements` keeps
            that, one root for each author)
    part    is named by its digest in one list, or in several: an author may list what is another's.
            The header of the bytes says whose it is, and then it is a part of that author's root

A list is kept as bytes, at most 2.5 kB, and there is one for each author of a round that is
followed. Parts are known by digest where this node takes them, or made them.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from protocol.codec.announcement import Announcement
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId
from protocol.sums.asked import bits_of
from protocol.sums.part_list import PartList, open_list


@dataclass(slots=True)
class _Root:
    """A payload in parts."""

    author: PeerId
    blob: bytes
    """The list, canonical."""
    held: int = 0
    """Bits of the ranges whose parts are held here, verified."""


@dataclass(slots=True)
class _Round:
    roots: dict[Digest, _Root] = field(default_factory=dict)
    claims: dict[Digest, dict[Digest, int]] = field(default_factory=dict)
    """By a part's digest the roots that list it, and the ranges for which they do, as bits."""


class PartBook:
    """The roots and parts of the rounds that a swarm follows."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Round] = {}

    # ---- queries

    def list_of(self, round: int, root: Digest) -> bytes | None:
        """The list that a root names, if it is known."""
        known = self._rounds.get(round, _Round()).roots.get(root)
        return known.blob if known else None

    def knows(self, root: Digest) -> bool:
        """Whether a digest is a root of a round that is followed."""
        return any(root in round.roots for round in self._rounds.values())

    def author_of(self, round: int, root: Digest) -> PeerId:
        """The author of a root of which parts are held: it has signed it, and stands in them."""
        return self._rounds[round].roots[root].author

    def claims(self, round: int, part: Digest) -> dict[PeerId, int]:
        """The authors that list a part, and the ranges for which they do, as bits."""
        known = self._rounds.get(round, _Round())
        return {
            known.roots[root].author: ranges for root, ranges in known.claims.get(part, {}).items()
        }

    def held(self, round: int) -> dict[Digest, int]:
        """The roots of which parts are held, and the ranges of these, as bits."""
        known = self._rounds.get(round, _Round())
        return {root: each.held for root, each in known.roots.items() if each.held}

    def rounds(self) -> list[int]:
        """Rounds of which roots are known, oldest first."""
        return sorted(self._rounds)

    def offered(self, round: int, parts: Collection[Digest], ranges: int) -> dict[Digest, int]:
        """What to offer of these parts to a node that takes these `ranges`: by root, the ranges
        whose parts are held.
        """
        found, known = dict[Digest, int](), self._rounds.get(round, _Round())
        for part in parts:
            for root, listed in known.claims.get(part, {}).items():
                if offered := listed & ranges & known.roots[root].held:
                    found[root] = found.get(root, 0) | offered
        return found

    # ---- changes

    def enter(self, said: Announcement, listed: PartList, ranges: int) -> None:
        """An author's list is known; this node takes the parts of these `ranges`."""
        round = self._rounds.setdefault(said.round, _Round())
        round.roots.setdefault(said.digest, _Root(said.author, listed.blob))
        for part, bits in parts_of(listed, ranges).items():
            roots = round.claims.setdefault(part, {})
            roots[said.digest] = roots.get(said.digest, 0) | bits

    def hold(self, round: int, part: Digest, author: PeerId, ranges: int) -> Digest | None:
        """A part of an author is held, verified for these ranges; returns the author's root, None
        if no list of the author has it.
        """
        known = self._rounds.get(round, _Round())
        for root, listed in known.claims.get(part, {}).items():
            if known.roots[root].author == author:
                known.roots[root].held |= listed & ranges
                return root
        return None

    def follow(self, rounds: Collection[int]) -> None:
        """Forget all other rounds."""
        self._rounds = {number: known for number, known in self._rounds.items() if number in rounds}


def parts_of(listed: PartList, ranges: int) -> Mapping[Digest, int]:
    """The parts of these ranges: of each digest the ranges that it is listed for, as bits."""
    found = dict[Digest, int]()
    for number, name in _names(listed, ranges):
        found[name] = found.get(name, 0) | bits_of([number])
    return found


def sizes_of(listed: PartList) -> dict[Digest, int]:
    """Bytes of each part."""
    return {Digest(name.digest): name.bytes for name in listed.names}


def open_offered(said: Announcement, part_list: bytes, count: int) -> PartList:
    """The list of `count` parts under an author's announcement; `RemoteProtocolError` for another,
    and where the parts together have not the size that was announced.
    """
    listed = open_list(part_list, count, said.digest)
    if (total := sum(name.bytes for name in listed.names)) != said.size:
        raise RemoteProtocolError(
            f"expected parts of {said.size} bytes together, as announced, got some of {total}"
        )
    return listed


def _names(listed: PartList, ranges: int) -> Iterator[tuple[int, Digest]]:
    for number, name in enumerate(listed.names):
        if ranges >> number & 1:
            yield number, Digest(name.digest)
