"""A round's sums in whole steps, as bytes: what one who adds for all says of a range of chunks.

The exact sums S of a chunk (`protocol.sums.movements`) are rounded to a coarse step of
their own, a power of two that follows their root mean square:

    n, V   count of the S that are not zero; sum of S^2
    t      least whole t >= 0 with d * V < n * 2^(2t + 1)
    l      sign(S) * ((|S| + 2^(t-1)) >> t)                 halves away from zero

d is 1 for a step of about the root mean square, 4 for twice that. What takes the place of S is
l * 2^t. Because t follows V, a level is at most 91, and those of a chunk are at most 11,585 in sum.

    magic, length        b"LSQ1", uint16, and a msgpack array: see `_Head`
    exponents            1 byte per chunk: its unit, E + 56; 0 where nothing is left
    steps                1 byte per chunk: t; 0 where nothing is left
    layers, the first: places with |l| > 0 among all; the next: those with |l| > 1 among these; ...
      ones               counts of such places, of chunks that have any to choose from
      remainders         of Rice's code of the gaps between them, chunks of one parameter together
      quotients          unary
    signs                1 bit per place with |l| > 0

In a chunk in which more than half of a layer are ones, the others are told. Rice's parameter
follows from a chunk's counts (`bits.rice_parameters`). The encoding is canonical: equal levels give
equal bytes, and `decode_sums` accepts exactly what `encode_sums` makes. Memory is bounded by the
number of chunks that the reader expects.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from protocol.codec.bits import (
    Numbers,
    Plane,
    gaps_of,
    indices_of,
    pack,
    pack_unary,
    plane_bytes,
    rice_parameters,
    row_bytes,
    starts_of,
    unpack,
    unpack_unary,
)
from protocol.codec.messagepack import converted, packed, unpacked
from protocol.codec.scales import EXPONENT_MAX, EXPONENT_MIN
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.limits import CHUNK_ENTRIES, VOTE_SUM_MAX

MAGIC: Final = b"LSQ1"

COARSE: Final = (1, 4)
"""d: the steps that a run may have."""

LEVEL_MAX: Final = 91
"""Largest |l|: S^2 <= V and d * V < n * 2^(2t + 1) leave |S| < 2^t * sqrt(2 * 4096)."""

LEVELS_MAX: Final = 11_585
"""Largest sum of |l| in a chunk: that of |S| is below 2^t * n * sqrt(2), by Cauchy and Schwarz, and
rounding at most doubles a size that is not lost."""

UNIT_MAX: Final = EXPONENT_MAX - EXPONENT_MIN
"""Largest unit of a chunk: that of the largest scale."""

STEP_MAX: Final = 24
"""Largest t: sums are below 2^24."""

_OPENING: Final = struct.Struct("<4sH")
_HEAD_BYTES_MAX: Final = 4096
_COUNT_BITS: Final = CHUNK_ENTRIES.bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Rounded sums of chunks; m is the sum of `counts`."""

    exponents: npt.NDArray[np.uint8]
    """[chunks]: the unit of each chunk, at most UNIT_MAX, 0 where nothing is left."""

    steps: npt.NDArray[np.uint8]
    """[chunks]: t, 0 where nothing is left."""

    counts: Numbers
    """[chunks]: levels that are not zero."""

    indices: Numbers
    """[m]: their places in the chunk, ascending."""

    values: npt.NDArray[np.int8]
    """[m]: l."""


class _Head(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The header: chunks, and of each layer its ones and the bytes of its quotients."""

    chunks: int
    layers: Annotated[
        tuple[tuple[int, int], ...],
        msgspec.Meta(max_length=LEVEL_MAX),
    ]


def rounded(sums: npt.NDArray[np.int32], exponents: npt.NDArray[np.uint8], coarse: int) -> Levels:
    """Exact sums, [chunks, 4096] and below 2^24 each, in steps; `coarse` is d.

    `exponents` are the units of the chunks, [chunks]. `LocalProtocolError` for others.
    """
    if coarse not in COARSE or np.abs(sums).max(initial=0) > VOTE_SUM_MAX:
        raise LocalProtocolError(
            f"expected sums up to {VOTE_SUM_MAX} and a rounding of {COARSE}, got {coarse}"
        )
    squares = np.square(sums, dtype=np.int64).sum(axis=1)
    counts = np.count_nonzero(sums, axis=1)
    steps = np.zeros(len(sums), np.int64)
    while (short := coarse * squares >= counts << (2 * steps + 1)).any():
        short &= counts > 0
        if not short.any():
            break
        steps += short
    halves = (1 << steps >> 1)[:, None]
    sizes = (np.abs(sums) + halves) >> steps[:, None]
    rows, indices = np.nonzero(sizes)
    left = np.bincount(rows, minlength=len(sums)).astype(np.uint16)
    return Levels(
        exponents=np.where(left > 0, exponents, 0).astype(np.uint8),
        steps=np.where(left > 0, steps, 0).astype(np.uint8),
        counts=left,
        indices=indices.astype(np.uint16),
        values=(np.sign(sums[rows, indices]) * sizes[rows, indices]).astype(np.int8),
    )


def sums_of(levels: Levels) -> npt.NDArray[np.int32]:
    """What takes the place of the exact sums: l * 2^t, [chunks, 4096]."""
    sums = np.zeros((len(levels.counts), CHUNK_ENTRIES), np.int32)
    rows = np.repeat(np.arange(len(sums)), levels.counts)
    sums[rows, levels.indices] = levels.values.astype(np.int32) << levels.steps[rows]
    return sums


def concatenated(parts: Sequence[Levels]) -> Levels:
    """The levels of chunks that follow each other, of at least one part."""
    names = (field.name for field in fields(Levels))
    return Levels(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def encode_sums(levels: Levels) -> bytes:
    """The container; `LocalProtocolError` for levels that no rounding makes."""
    _check(levels)
    sizes = np.abs(levels.values.astype(np.int16))
    among = np.full(len(levels.counts), CHUNK_ENTRIES, np.int64)
    counts, places = levels.counts, levels.indices
    heads, planes = list[tuple[int, int]](), [levels.exponents, levels.steps]
    for layer in range(int(sizes.max(initial=0))):
        if layer:
            ones = sizes > layer
            rows = np.repeat(np.arange(len(among)), counts)
            among = counts.astype(np.int64)
            places = _ranks(counts)[ones]
            counts = np.bincount(rows[ones], minlength=len(among)).astype(np.uint16)
            sizes = sizes[ones]
        *coded, quotients = _layer_planes(among, counts, places)
        heads.append((int(counts.sum(dtype=np.int64)), quotients.size))
        planes += [*coded, quotients]
    planes.append(pack((levels.values < 0).astype(np.uint16), 1))
    head = packed(_Head(len(levels.counts), tuple(heads)))
    return b"".join([_OPENING.pack(MAGIC, len(head)), head, *(each.data for each in planes)])


def decode_sums(container: bytes | bytearray | memoryview, chunks: int) -> Levels:
    """The levels of `chunks` chunks of which `encode_sums` made this container.

    Raises `RemoteProtocolError`, and nothing else, for any bytes that it does not make.
    """
    view = memoryview(container).cast("B")
    head, body = _read_head(view, chunks)
    reader = _Reader(np.frombuffer(body, np.uint8))
    exponents, steps = reader.take(chunks), reader.take(chunks)
    among = np.full(chunks, CHUNK_ENTRIES, np.int64)
    counts, indices = np.zeros(chunks, np.uint16), np.zeros(0, np.uint16)
    sizes = alive = np.zeros(0, np.int64)
    for number, (total, quotient_bytes) in enumerate(head.layers):
        ones, places = _read_layer(reader, among, total, quotient_bytes)
        if number == 0:
            counts, indices = ones, places
            sizes, alive = np.ones(total, np.int64), np.arange(total)
        else:
            alive = alive[np.repeat(starts_of(among), ones) + places]
            sizes[alive] += 1
        among = ones.astype(np.int64)
    signs = unpack(reader.take(row_bytes(len(sizes))), len(sizes), 1)
    reader.require_end()
    values = np.where(signs > 0, -sizes, sizes).astype(np.int8)
    found = Levels(exponents, steps, counts, indices, values)
    try:
        _check(found)
    except LocalProtocolError as error:
        raise RemoteProtocolError(str(error)) from error
    return found


def _check(levels: Levels) -> None:
    """`LocalProtocolError` for levels that no rounding makes."""
    chunks, total = len(levels.counts), int(levels.counts.sum(dtype=np.int64))
    lengths = (levels.exponents.shape, levels.steps.shape, levels.indices.shape)
    if (*lengths, levels.values.shape) != ((chunks,), (chunks,), (total,), (total,)):
        raise LocalProtocolError(
            f"expected {chunks} exponents and steps, {total} indices and values, got {lengths}"
        )
    empty = levels.counts == 0
    if levels.exponents[empty].any() or levels.steps[empty].any():
        raise LocalProtocolError("expected no exponent and no step of a chunk without levels")
    if (most := int(levels.exponents.max(initial=0))) > UNIT_MAX:
        raise LocalProtocolError(f"expected units of at most {UNIT_MAX}, got {most}")
    if (most := int(levels.steps.max(initial=0))) > STEP_MAX:
        raise LocalProtocolError(f"expected steps of at most 2^{STEP_MAX}, got 2^{most}")
    sizes = np.abs(levels.values.astype(np.int64))
    if not sizes.all() or sizes.max(initial=0) > LEVEL_MAX:
        raise LocalProtocolError(f"expected levels of 1 to {LEVEL_MAX}, got others")
    rows = np.repeat(np.arange(chunks), levels.counts)
    if np.bincount(rows, sizes, chunks).max(initial=0) > LEVELS_MAX:
        raise LocalProtocolError(f"expected levels of at most {LEVELS_MAX} in a chunk's sum")
    if (sizes << levels.steps[rows].astype(np.int64)).max(initial=0) > 2 * VOTE_SUM_MAX:
        raise LocalProtocolError("expected levels of sums below 2^24, got larger ones")


def _layer_planes(
    among: npt.NDArray[np.int64], counts: Numbers, places: Numbers
) -> Iterator[Plane]:
    """Planes of a layer: counts, remainders by their width, and last the quotients."""
    yield pack(counts[among > 0], _COUNT_BITS)
    told, places = _flipped(among, counts, places)
    gaps = gaps_of(places, told)
    widths = np.repeat(rice_parameters(told.astype(np.int64), among), told)
    for width in _widths(widths):
        yield pack(gaps[widths == width] & np.uint16((1 << width) - 1), width)
    yield pack_unary(gaps >> widths)


def _read_layer(
    reader: "_Reader", among: npt.NDArray[np.int64], total: int, quotient_bytes: int
) -> tuple[Numbers, Numbers]:
    """Counts and places of a layer's ones."""
    counts = np.zeros(len(among), np.uint16)
    choices = int(np.count_nonzero(among))
    counts[among > 0] = unpack(reader.take(plane_bytes(choices, _COUNT_BITS)), choices, _COUNT_BITS)
    if (found := int(counts.sum(dtype=np.int64))) != total or total < 1:
        raise RemoteProtocolError(f"expected {total} ones of a layer, at least 1, got {found}")
    if (counts > among).any():
        raise RemoteProtocolError("expected no more ones than places, got more")
    told = np.where(2 * counts.astype(np.int64) > among, among - counts, counts).astype(np.uint16)
    widths = np.repeat(rice_parameters(told.astype(np.int64), among), told)
    gaps = np.zeros(len(widths), np.uint16)
    for width in _widths(widths):
        there = widths == width
        count = int(np.count_nonzero(there))
        gaps[there] = unpack(reader.take(plane_bytes(count, width)), count, width)
    quotients = unpack_unary(reader.take(quotient_bytes), len(widths), CHUNK_ENTRIES - 1)
    if ((quotients.astype(np.int64) << widths) >= CHUNK_ENTRIES).any():
        raise RemoteProtocolError(f"expected gaps below {CHUNK_ENTRIES}, got larger ones")
    gaps |= quotients << widths
    places = indices_of(gaps, told)
    if (places >= np.repeat(among, told)).any():
        raise RemoteProtocolError("expected places among those of a layer, got others")
    _, places = _flipped(among, told, places, back=counts)
    return counts, places


def _flipped(
    among: npt.NDArray[np.int64], counts: Numbers, places: Numbers, back: Numbers | None = None
) -> tuple[Numbers, Numbers]:
    """(counts, places) with ones and zeros exchanged in each chunk in which more than half are
    ones; `back`: in which they were so, by these counts.
    """
    flips = 2 * (counts if back is None else back).astype(np.int64) > among
    if not flips.any():
        return counts, places
    firsts = starts_of(among)
    layer = np.repeat(flips, among)
    layer[np.repeat(firsts, counts) + places] ^= True
    rows = np.repeat(np.arange(len(among)), among)[layer]
    turned = np.bincount(rows, minlength=len(among)).astype(np.uint16)
    return turned, (np.flatnonzero(layer) - np.repeat(firsts, turned)).astype(np.uint16)


def _ranks(counts: Numbers) -> Numbers:
    """Places of the ones of a layer among each other."""
    total = int(counts.sum(dtype=np.int64))
    return (np.arange(total) - np.repeat(starts_of(counts), counts)).astype(np.uint16)


def _widths(widths: Numbers) -> list[int]:
    """Those above 0 that occur, ascending."""
    return [int(width) for width in np.unique(widths) if width]


def _read_head(view: memoryview, chunks: int) -> tuple[_Head, memoryview]:
    if view.nbytes < _OPENING.size:
        raise RemoteProtocolError(f"expected sums, got {view.nbytes} bytes")
    magic, length = _OPENING.unpack_from(view)
    end = _OPENING.size + length
    if magic != MAGIC or length > _HEAD_BYTES_MAX or view.nbytes < end:
        raise RemoteProtocolError(f"expected the head of sums, got {bytes(view[:8]).hex()}")
    said = view[_OPENING.size : end]
    head = converted(unpacked(said, text_bytes_max=0, items_max=LEVEL_MAX), _Head)
    if head.chunks != chunks or packed(head) != said:
        raise RemoteProtocolError(f"expected a head of {chunks} chunks, got {head.chunks}")
    return head, view[end:]


class _Reader:
    """Bytes, taken from the front."""

    def __init__(self, plane: Plane) -> None:
        self._left = plane

    def take(self, size: int) -> Plane:
        """The next bytes, `size` of them; `RemoteProtocolError` if there are fewer."""
        if not 0 <= size <= self._left.size:
            raise RemoteProtocolError(f"expected {size} bytes more, got {self._left.size}")
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def require_end(self) -> None:
        """`RemoteProtocolError` if bytes are left."""
        if self._left.size:
            raise RemoteProtocolError(f"expected no more bytes, got {self._left.size}")
