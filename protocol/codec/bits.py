"""Index coding: gaps between sorted indices, their Rice code, and numbers of fixed width, as planes
of bits.

Gaps (`gaps_of`, `indices_of`). The indices of a chunk ascend, so they are sent as the first index
and then each difference minus one: disorder and duplicates cannot be written down.

A *plane* is a byte-aligned run of bits, least significant bit of a byte first, its padding bits
zero.

Fixed width (`pack`, `unpack`). The numbers are transposed: first bit 0 of every number, then bit 1
of every number, each such row padded to a byte. One pass over the numbers per bit is a comparison
and `np.packbits`, which makes the transposed order several times faster than numbers laid end to
end, and no longer than they are except for the padding of the rows.

Rice code (Rice and Plaunt, 1971). A gap g is split into the quotient g >> b and the remainder g mod
2**b. The remainders are a plane of width b. The quotients are a unary plane: q zero bits, then a
one (`pack_unary`, `unpack_unary`). Two planes instead of one mixed stream let both directions work
on whole arrays.

Each pair is a bijection between numbers and bytes: what one does not write, the other does not
read.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.limits import CHUNK_ENTRIES

_Count = TypeVar("_Count", int, npt.NDArray[np.int64])

Plane = npt.NDArray[np.uint8]
"""Bytes of one plane, one-dimensional."""

Numbers = npt.NDArray[np.uint16]
"""Unsigned numbers, one-dimensional."""

INDEX_MAX: Final = CHUNK_ENTRIES - 1
"""Last index of a chunk, and so the largest gap."""

WIDTH_MAX: Final = 16
"""Widest number in a plane: what uint16 holds."""

BLOCK: Final = 64 * 1024
"""Numbers, or bits of a unary plane, handled at a time: little memory for 64-bit positions, and
bits fit uint16."""

_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.uint8)
"""uint8 [256]: the ones in each byte."""


def rice_parameter(top_k: int) -> int:
    """Width b of the remainders of `top_k` indices per chunk: within 0.03 bits per index of the
    best.

    For geometric gaps of mean m the best b is the floor of log2(2 * ln(phi) * (m + 1/2)), phi the
    golden ratio (Kiely, "Selecting the Golomb parameter in Rice coding", 2004, to first order in
    1/m). Here m is (4096 - k) / (k + 1), and ln(phi) is 31537 / 65536, so that every party gets the
    same b from integers.
    """
    return max(0, _scaled_gap(top_k, CHUNK_ENTRIES).bit_length() - 1)


def rice_parameters(ones: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> Numbers:
    """Widths of the remainders of `ones` `among` places, both by chunk: for each what
    `rice_parameter` is for 4096.
    """
    scaled_gaps = _scaled_gap(ones, among).astype(np.float64)
    lengths: Numbers = np.frexp(scaled_gaps)[1].astype(np.uint16)
    return lengths - (lengths > 0)


def _scaled_gap(ones: _Count, among: _Count) -> _Count:
    """The floor of 2 * ln(phi) * (m + 1/2), m the mean gap of `ones` `among` places."""
    return (2 * among + 1 - ones) * 31537 // ((ones + 1) * 65536)


def row_bytes(bits: int) -> int:
    """Bytes that hold the given number of bits."""
    return -(-bits // 8)


def plane_bytes(count: int, width: int) -> int:
    """Bytes of the plane of `count` numbers of `width` bits."""
    return width * row_bytes(count)


def pack(numbers: Numbers, width: int) -> Plane:
    """Plane of numbers below 2**width; `LocalProtocolError` for a width or a number beyond that."""
    if not 0 <= width <= WIDTH_MAX:
        raise LocalProtocolError(f"expected a width of 0 to {WIDTH_MAX} bits, got {width}")
    if numbers.size and (largest := int(numbers.max())) >> width:
        raise LocalProtocolError(f"expected numbers of at most {width} bits, got {largest}")
    rows = np.empty((width, row_bytes(numbers.size)), np.uint8)
    for bit in range(width):
        rows[bit] = np.packbits(numbers & (1 << bit) != 0, bitorder="little")
    return rows.reshape(-1)


def unpack(
    plane: Plane, count: int, width: int, first: int = 0, stop: int | None = None
) -> Numbers:
    """The numbers from `first` up to `stop`, without it to the end, of the `count` that `pack` made
    this plane of; `RemoteProtocolError` for a plane that it makes of none.
    """
    if plane.size != plane_bytes(count, width):
        expected = f"{plane_bytes(count, width)} bytes for {count} numbers of {width} bits"
        raise RemoteProtocolError(f"expected {expected}, got {plane.size}")
    rows = plane.reshape(width, row_bytes(count))
    if count % 8 and width and (padding := int(rows[:, -1].max() >> (count % 8))):
        raise RemoteProtocolError(f"expected zero padding after {count} bits, got {padding:#x}")
    stop = count if stop is None else stop
    start, skipped = divmod(first, 8)
    numbers = np.zeros(stop - first, np.uint16)
    for bit in range(width):
        row = rows[bit, start : row_bytes(stop)]
        bits = np.unpackbits(row, count=stop - 8 * start, bitorder="little")[skipped:]
        numbers |= bits.astype(np.uint16) << bit
    return numbers


def pack_unary(quotients: Numbers) -> Plane:
    """Unary plane of quotients below 4096: each is its number of zero bits, then a one."""
    bits = np.zeros(quotients.size + int(quotients.sum(dtype=np.int64)), np.bool_)
    end = 0
    for start in range(0, quotients.size, BLOCK):
        ends = end + np.cumsum(quotients[start : start + BLOCK] + 1, dtype=np.int64)
        bits[ends - 1] = True
        end = int(ends[-1])
    return np.packbits(bits, bitorder="little")


def unpack_unary(plane: Plane, count: int, quotient_max: int, skipped: int = 0) -> Numbers:
    """The `count` quotients that `pack_unary` made this plane of, behind `skipped` zero bits.

    `RemoteProtocolError` for another number of ones, a quotient above `quotient_max`, or a byte
    after the one that holds the last one (whose padding bits are zero because a one would have been
    counted).
    """
    if count > 8 * plane.size:
        raise RemoteProtocolError(
            f"expected {count} ones in a unary plane, got only {8 * plane.size} bits"
        )
    quotients = np.empty(count, np.uint16)
    found, last = 0, skipped - 1
    for start in range(0, plane.size, BLOCK // 8):
        block = np.unpackbits(plane[start : start + BLOCK // 8], bitorder="little").view(np.bool_)
        ones = np.flatnonzero(block).astype(np.uint16)
        if not ones.size:
            continue
        if found + ones.size > count:
            raise RemoteProtocolError(
                f"expected {count} ones in a unary plane, got {found + ones.size} or more"
            )
        first = 8 * start + int(ones[0]) - last - 1
        zeros = ones[1:] - ones[:-1] - np.uint16(1)
        if (largest := max(first, int(zeros.max(initial=0)))) > quotient_max:
            raise RemoteProtocolError(
                f"expected quotients of at most {quotient_max}, got {largest}"
            )
        quotients[found] = first
        quotients[found + 1 : found + ones.size] = zeros
        found, last = found + ones.size, 8 * start + int(ones[-1])
    if found != count:
        raise RemoteProtocolError(f"expected {count} ones in a unary plane, got {found}")
    if plane.size != row_bytes(last + 1):
        raise RemoteProtocolError(
            f"expected a unary plane of {row_bytes(last + 1)} bytes, got {plane.size}"
        )
    return quotients


def unary_parts(plane: Plane, numbers: Sequence[int]) -> list[tuple[Plane, int]]:
    """A unary plane cut before some of its quotients: (bytes, zero bits to skip) for `unpack_unary`
    of each part, the quotients from one of these ascending `numbers` up to the next.

    The last of `numbers` is the count of all quotients; `RemoteProtocolError` for another number of
    ones. The last part has all bytes that are left.
    """
    ones = np.cumsum(_ONES[plane], dtype=np.int64)
    if (found := int(ones[-1]) if ones.size else 0) != numbers[-1]:
        raise RemoteProtocolError(f"expected {numbers[-1]} ones in a unary plane, got {found}")
    bounds = [_bit_after(plane, ones, number) for number in numbers[:-1]] + [8 * plane.size]
    parts: list[tuple[Plane, int]] = []
    for first, stop in pairwise(bounds):
        start, skipped = divmod(first, 8)
        part = plane[start : row_bytes(stop)].copy()
        if part.size and stop % 8:
            part[-1] &= (1 << stop % 8) - 1
        if part.size and skipped:
            part[0] &= -1 << skipped & 0xFF
        parts.append((part, skipped))
    return parts


def gaps_of(indices: Numbers, counts: Numbers) -> Numbers:
    """Gaps, uint16[n], of the indices of chunks that have `counts` of them.

    `LocalProtocolError` for an index above 4095 or one that does not ascend within its chunk.
    """
    if not indices.size:
        return indices
    if (largest := int(indices.max())) > INDEX_MAX:
        raise LocalProtocolError(f"expected indices up to {INDEX_MAX}, got {largest}")
    gaps = indices.copy()
    gaps[1:] -= indices[:-1] + 1
    firsts = starts_of(counts)[counts > 0]
    gaps[firsts] = indices[firsts]
    # An index that does not ascend leaves a negative gap, which modulo 2**16 is far above 4095.
    if int(gaps.max()) > INDEX_MAX:
        place = int(gaps.argmax())
        pair = f"{indices[place - 1]} then {indices[place]}"
        raise LocalProtocolError(f"expected indices that ascend within a chunk, got {pair}")
    return gaps


def indices_of(gaps: Numbers, counts: Numbers) -> Numbers:
    """Indices, uint16[n], that have these gaps of at most 4095; `RemoteProtocolError` if one is
    above 4095.

    Sums are modulo 2**16. A chunk that runs over cannot hide in that: the first index above 4095 is
    at most 4095 + 1 + 4095, and shows.
    """
    if not gaps.size:
        return gaps
    ends = np.cumsum(gaps + 1, dtype=np.uint16)
    firsts = starts_of(counts)
    before = np.where(firsts > 0, ends[firsts - 1], np.uint16(0))
    indices: Numbers = ends - np.repeat(before, counts) - 1
    if (largest := int(indices.max())) > INDEX_MAX:
        raise RemoteProtocolError(f"expected indices up to {INDEX_MAX}, got {largest}")
    return indices


def _bit_after(plane: Plane, ones: npt.NDArray[np.int64], number: int) -> int:
    """The bit behind the `number`-th one of a plane; `ones` counts them up to each byte's end."""
    if number == 0:
        return 0
    byte = int(np.searchsorted(ones, number))
    before = int(ones[byte - 1]) if byte else 0
    places = np.flatnonzero(np.unpackbits(plane[byte : byte + 1], bitorder="little"))
    return 8 * byte + int(places[number - before - 1]) + 1


def bounds_of(counts: Numbers | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places between which each chunk's coefficients lie, int64[chunks + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def starts_of(counts: Numbers | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The place at which each chunk's coefficients start, int64[chunks]."""
    return np.cumsum(counts, dtype=np.int64) - counts
