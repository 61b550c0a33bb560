"""How far two payloads are alike. Pure.

    likeness = max(places with the same sign, places with the other sign) / places of the smaller

A copy whose signs are all turned is a copy, so is one with some places of its own. Every payload is
compared with hundreds, so what is kept of it is a sketch: its places in a few chunks, which are
drawn with a secret of the auditor's. Pairs that are alike there are compared whole.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from node.exact.sign_audit import of_values, weighed
from protocol.codec.payload import Coefficients
from protocol.ids import Digest, PeerId
from protocol.limits import CHUNK_ENTRIES

CHUNKS_DRAWN: Final = 16
"""Chunks of a sketch: half a thousand places at k = 32."""

PLACES_KEPT: Final = 1 << 18
"""Places of all sketches that are kept: some five hundred payloads at k = 32. To compare one with
all of them took 4 ms of a busy core, so a round of sixty-four authors takes a quarter of a second.
"""

NEAR: Final = 0.25
"""Likeness of two sketches from which on the payloads are compared whole. Of 512 places of a copy
that is judged, 205 are alike in the mean, and hardly ever fewer than 128."""

NEAR_MAX: Final = 4
"""Payloads that one is compared with whole: nobody makes an auditor read more."""

PLACES_MIN: Final = 64
"""Fewest places of a payload, and of its sketch, that are compared: fewer may be alike by chance.
"""

OPPOSED: Final = 0.6
"""Share of signs that are not those of the others of a round, above which an author's work is
audited before that of others. It proves nothing, as most of the others may have turned theirs."""

Places = npt.NDArray[np.int64]
Signs = npt.NDArray[np.int8]


class Sent(msgspec.Struct, frozen=True):
    """One committed payload."""

    round: int
    author: PeerId
    digest: Digest


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """What is kept of one payload: int64 [n] places in the drawn chunks, ascending, int8 [n] their
    signs, and float32 [n] how far the step moves by each.
    """

    sent: Sent
    places: Places
    signs: Signs
    scales: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Near:
    """Two payloads whose sketches are alike; `earlier` may be of the same round."""

    sent: Sent
    earlier: Sent
    likeness: float


@dataclass(frozen=True, slots=True)
class Compared:
    """The payloads of a round beside those before them."""

    near: list[Near]
    """At most `NEAR_MAX` for each payload, the nearest first."""
    usual: list[float]
    """How far each is like each payload of the newest earlier round, which none of them copies if
    most authors are honest."""
    opposed: set[PeerId] = field(default_factory=set)
    """Authors whose signs are mostly not those that the others have in the same places."""


def drawn_chunks(secret: int, chunks: int) -> npt.NDArray[np.int64]:
    """int64 [at most CHUNKS_DRAWN]: the chunks of a sketch, ascending."""
    count = min(CHUNKS_DRAWN, chunks)
    drawn = np.random.default_rng(secret).choice(chunks, count, replace=False)
    return np.sort(drawn.astype(np.int64))


def part_of(found: Coefficients, chunks: npt.NDArray[np.int64]) -> Coefficients:
    """A payload's part in these chunks."""
    ends = np.cumsum(found.counts, dtype=np.int64)
    kept = [np.arange(ends[each] - found.counts[each], ends[each]) for each in chunks]
    places = np.concatenate(kept).astype(np.int64)
    scales = None if found.scales is None else found.scales[chunks]
    return Coefficients(found.counts[chunks], found.indices[places], found.values[places], scales)


def sketch_of(
    sent: Sent, part: Coefficients, scales: npt.NDArray[np.float32] | None = None
) -> Sketch:
    """The sketch of a payload by its part in the drawn chunks. `scales`, [chunks] or [chunks, 2],
    are those that the step counts; None: all alike.
    """
    by_scale = np.ones(len(part.counts), np.float32) if scales is None else scales
    places, signs = _flat(part)
    return Sketch(sent, places, signs, of_values(by_scale, part))


def likeness(one: Coefficients, other: Coefficients) -> float:
    """How far two payloads are alike, from 0 to 1; 0 for one of too few places."""
    (first, signs), (second, others) = _flat(one), _flat(other)
    least = min(first.size, second.size)
    if least < PLACES_MIN:
        return 0.0
    _, mine, theirs = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    same = int(np.count_nonzero(signs[mine] == others[theirs]))
    return max(same, mine.size - same) / least


def _flat(found: Coefficients) -> tuple[Places, Signs]:
    chunks = np.repeat(np.arange(len(found.counts), dtype=np.int64), found.counts)
    return chunks * CHUNK_ENTRIES + found.indices, np.sign(found.values).astype(np.int8)


def turned(sketches: Sequence[Sketch]) -> dict[PeerId, tuple[float, int]]:
    """The share of each author's signs that are not those of the sum of the others of its round, in
    the places that they share, and the number of these; without authors of too few. A sign of the
    author's counts by the square of its scale, and the number is of as many of one weight as tell
    as much; in the sum each of the others has one vote, whatever it says of its scale.
    """
    votes = np.zeros(CHUNKS_DRAWN * CHUNK_ENTRIES, np.int32)
    for each in sketches:
        votes[each.places] += each.signs
    found = {}
    for each in sketches:
        others = np.sign(votes[each.places] - each.signs)
        if np.count_nonzero(others) >= PLACES_MIN:
            against = (-others * each.signs).astype(np.int8)
            told = weighed(against, np.square(each.scales, dtype=np.float64))
            found[each.sent.author] = told.share, told.compared
    return found


def opposed(sketches: Sequence[Sketch]) -> set[PeerId]:
    """Authors whose signs are mostly turned against the others of their round, by more than three
    standard deviations of chance.
    """
    return {
        author
        for author, (share, told) in turned(sketches).items()
        if share > max(OPPOSED, 0.5 + 3 * 0.5 / math.sqrt(told))
    }


class SketchWindow:
    """The sketches of the newest payloads, as many as `PLACES_KEPT` places allow."""

    def __init__(self) -> None:
        self._kept: deque[Sketch] = deque()
        self._places = 0

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._places = 0

    def sent_by(self, author: PeerId, round: int) -> Sent | None:
        """The author's payload of a round; None without one, or when it is forgotten."""
        for kept in self._kept:
            if (kept.sent.author, kept.sent.round) == (author, round):
                return kept.sent
        return None

    def add(self, sketches: Sequence[Sketch]) -> Compared:
        """Keep the payloads of a round, and compare each with those before it."""
        known = {each.sent for each in self._kept}  # a replay that waited looks once more
        sketches = [each for each in sketches if each.sent not in known]
        for sketch in sketches:
            self._kept.append(sketch)
            self._places += sketch.places.size
        while self._places > PLACES_KEPT and len(self._kept) > len(sketches):
            self._places -= self._kept.popleft().places.size
        large = [each for each in self._kept if each.places.size >= PLACES_MIN]
        new = [each for each in large if each in sketches]
        old = large[: len(large) - len(new)]
        newest = old[-1].sent.round if old else -1
        compared = Compared([], [], opposed(new))
        for place, sketch in enumerate(new):
            found = _beside(sketch, [*old, *new[:place]])
            near = [each for each in found if each.likeness >= NEAR]
            near.sort(key=lambda each: (-round(each.likeness, 2), each.earlier.round))
            compared.near.extend(near[:NEAR_MAX])
            compared.usual.extend(each.likeness for each in found if each.earlier.round == newest)
        return compared


def _beside(sketch: Sketch, earlier: Sequence[Sketch]) -> list[Near]:
    """A sketch beside all earlier ones, none of which is empty."""
    if not earlier:
        return []
    places = np.concatenate([each.places for each in earlier])
    signs = np.concatenate([each.signs for each in earlier])
    table = np.zeros(CHUNKS_DRAWN * CHUNK_ENTRIES, np.int8)
    table[sketch.places] = sketch.signs
    products = table[places] * signs
    sizes = np.array([each.places.size for each in earlier])
    starts = np.cumsum(sizes) - sizes
    shared = np.add.reduceat(np.abs(products), starts, dtype=np.int64)
    excess = np.abs(np.add.reduceat(products, starts, dtype=np.int64))
    alike = (shared + excess) / 2 / np.minimum(sizes, sketch.places.size)
    return [
        Near(sketch.sent, each.sent, float(value))
        for each, value in zip(earlier, alike, strict=True)
    ]
