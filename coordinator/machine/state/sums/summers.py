"""The summers of a round: for each range of chunks two that add it, drawn by the round's hash.

    not authors of this round         authors
    |--- a ---|- b -|----- c ----|----- d -----|-- e --|     lengths: measured uplinks
      0     1     2     3     4     0     1     2     3     4
    2n points at equal distances, from a drawn one on; range i has the summers at both its points

Rules
- A candidate adds as many ranges as its share of all uplinks says, to the next whole number.
- None counts for more than half of all uplinks: so no range has one summer twice.
- Relays and others that are no authors of the round count for half at least, if there are any: so
  every range has a summer that has nothing to gain by it. Only where there are none do two authors
  add one range, or where those have missed rounds.
- A candidate that has missed rounds counts for less then: its weight is halved as often as is said.
- The order of candidates follows from the hash, so nobody chooses its ranges or its companion.
- In place of a summer that is gone, or beside two that differ, the next of a draw by uplinks adds
  the range, those that are no authors first; after `DRAWS_MAX` nobody is left.
- Two summers of one range that lie together are found by an auditor, which draws ranges itself
  (`lockstep.audit.sums.auditing`).

Who may be drawn is the caller's: only those with standing count (a free key decides nothing).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from types import MappingProxyType
from typing import Final

from protocol.ids import Digest, PeerId, sha256
from protocol.sums.ranges import Range, range_count, ranges_of

UPLINK_MAX: Final = 2**40
"""Bytes a second that an uplink counts at most."""

DRAWS_MAX: Final = 32
"""Draws for one range in place of summers that are gone: each costs a look at all candidates."""

Uplinks = tuple[tuple[PeerId, int], ...]
"""Candidates, sorted, with their uplinks in bytes a second, at least 1."""


@dataclass(frozen=True, slots=True)
class Summers:
    """The nodes that add in one round, and what each adds."""

    seed: Digest
    """The round's hash."""

    ranges: tuple[Range, ...]

    pairs: tuple[tuple[PeerId, PeerId], ...]
    """The two summers of each range, unlike; the first is no author where there are such."""

    others: Uplinks
    """Candidates that are no authors of the round."""

    authors: Uplinks
    """Candidates that are."""

    def is_candidate(self, peer: PeerId) -> bool:
        """Whether a node may be drawn."""
        return any(peer == each for pool in (self.others, self.authors) for each, _ in pool)

    def third(self, number: int, gone: Collection[PeerId]) -> PeerId | None:
        """The node, not one that is `gone`, that adds a range, by its number, in place of a summer
        or beside both; None: nobody is left. With more that are gone it is a later one of the same
        draw.
        """
        taken = {*self.pairs[number], *gone}
        drawn = islice(self._drawn(b"third" + number.to_bytes(4, "big")), DRAWS_MAX)
        return next((peer for peer in drawn if peer not in taken), None)

    def _drawn(self, what: bytes) -> Iterator[PeerId]:
        """Candidates, one by one, by their uplinks; those that are no authors first."""
        for pool in (self.others, self.authors):
            left, total = list(pool), sum(uplink for _, uplink in pool)
            while left:
                at = _number(self.seed, what, len(left).to_bytes(4, "big")) % total
                ends = accumulate(uplink for _, uplink in left)
                place = next(place for place, end in enumerate(ends) if end > at)
                peer, uplink = left.pop(place)
                total -= uplink
                yield peer


def draw(
    seed: Digest,
    chunks: int,
    relays: Mapping[PeerId, int],
    members: Mapping[PeerId, int],
    authors: Collection[PeerId],
    halved: Mapping[PeerId, int] = MappingProxyType({}),
) -> Summers | None:
    """The summers of a round of a model of these `chunks`, whose payloads are those of `authors`.

    `relays` are those that offer to add, `members` those that can be reached, with the uplinks that
    were measured, in bytes a second; one without is no candidate. `halved`: how often each of them
    is. None: there are fewer than two candidates, and everybody gets every payload.
    """
    uplinks = {
        peer: min(uplink, UPLINK_MAX)
        for peer, uplink in sorted({**members, **relays}.items())
        if uplink > 0
    }
    if len(uplinks) < 2:
        return None
    at_work = set(authors)
    own = tuple((peer, uplink) for peer, uplink in uplinks.items() if peer in at_work)
    others = tuple((peer, uplink) for peer, uplink in uplinks.items() if peer not in at_work)
    ranges = ranges_of(chunks, range_count(chunks, len(authors)))
    points = _at_points(seed, _weights(others, own, halved), 2 * len(ranges))
    pairs = tuple(zip(points[: len(ranges)], points[len(ranges) :], strict=True))
    return Summers(seed, ranges, pairs, _less(others, halved), _less(own, halved))


def _less(uplinks: Uplinks, halved: Mapping[PeerId, int]) -> Uplinks:
    return tuple((peer, max(1, uplink >> halved.get(peer, 0))) for peer, uplink in uplinks)


def _weights(
    others: Uplinks, authors: Uplinks, halved: Mapping[PeerId, int]
) -> list[tuple[bool, PeerId, int]]:
    """(whether it is an author, candidate, weight) of all: their uplinks, so that the others have
    half at least, if there are any, then `halved` as often as is said of each, and nobody has more
    than half.
    """
    total, of_authors = (sum(uplink for _, uplink in pool) for pool in (others, authors))
    # Of both kinds the authors' weights are uplinks times `total`, the others' times no less.
    more, less = (max(total, of_authors), total) if others and authors else (1, 1)
    stretched = tuple((peer, uplink * more) for peer, uplink in others)
    plain = tuple((peer, uplink * less) for peer, uplink in authors)
    found = [(False, peer, weight) for peer, weight in _less(stretched, halved)]
    found += [(True, peer, weight) for peer, weight in _less(plain, halved)]
    largest = max(range(len(found)), key=lambda place: found[place][2])
    is_author, peer, weight = found[largest]
    rest = sum(each for _, _, each in found) - weight
    found[largest] = is_author, peer, min(weight, rest)
    return found


def _at_points(
    seed: Digest, weights: list[tuple[bool, PeerId, int]], count: int
) -> tuple[PeerId, ...]:
    """The candidates at `count` points at equal distances, on a line on which each is as long as
    its weight, those that are no authors first.
    """
    line = sorted(weights, key=lambda each: (each[0], _number(seed, b"order", each[1].encode())))
    total = sum(weight for _, _, weight in line)
    start = _number(seed, b"start") % total
    ends = [end * count for end in accumulate(weight for _, _, weight in line)]
    found, place = list[PeerId](), 0
    for point in range(start, start + count * total, total):
        while ends[place] <= point:
            place += 1
        found.append(line[place][1])
    return tuple(found)


def _number(*parts: bytes) -> int:
    """A number that follows from these."""
    return int.from_bytes(sha256(b"lockstep.summers.v1" + b"|".join(parts)), "big")
