"""The payload container: one node's coefficients of one round, for all chunks, as bytes.

    head               payload_header.py: b"LSP1", or b"LSPS" with scales; who sent it, when
    planes (bits.py), each of whole bytes with zero padding:
      short bitmap     1 bit per chunk: it has fewer than top_k coefficients   | only if there are
      short counts     (top_k - 1).bit_length() bits per such chunk            | such chunks
      scales           1 byte per chunk that has coefficients (scales.py)      | only with scales
      larger scales    1 byte per chunk that has coefficients                  | with two scales
      remainders       rice_parameter(top_k) bits per coefficient
      quotients        unary, as long as what is left of the container
      values           value_bits bits per coefficient

Indices of a chunk ascend. They are sent as gaps: the first index, then each difference minus one,
so that disorder and duplicates cannot be written down; a chunk's last index must stay below 4096. A
value is a sign bit above the magnitude minus one: zero cannot be written down either. A chunk
without coefficients has no scale, and every byte is a scale.

With scales a value of one bit is a sign, and its size is its chunk's scale. One of two bits has one
of two scales: magnitude 1 the scale, magnitude 2 the larger one. At most half of the values of a
chunk have the larger scale, so that nobody says more by it than others; it is above the scale, or
0 in a chunk in which no value has it.

The encoding is canonical: equal coefficients give equal bytes, and `decode` accepts exactly the
bytes that `encode` makes, so one set of coefficients has one digest. The container is
length-checked against the run's `PayloadShape` and against its own header before memory is taken;
what decoding takes is a small multiple of the coefficients that the shape allows, whatever the
bytes claim.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.codec.bits import (
    INDEX_MAX,
    Numbers,
    Plane,
    gaps_of,
    indices_of,
    pack,
    pack_unary,
    plane_bytes,
    rice_parameter,
    row_bytes,
    starts_of,
    unary_parts,
    unpack,
    unpack_unary,
)
from protocol.codec.payload_header import (
    MAGIC,
    MAGIC_SCALED,
    ROUND_MAX,
    Blob,
    Header,
    head_bytes,
    read_head,
)
from protocol.codec.payload_shape import VALUE_BITS, PayloadShape
from protocol.errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "MAGIC",
    "MAGIC_SCALED",
    "ROUND_MAX",
    "VALUE_BITS",
    "Blob",
    "Body",
    "Coefficients",
    "Header",
    "PayloadReader",
    "PayloadShape",
    "bits_per_value",
    "body_of",
    "decode",
    "encode",
    "sealed",
]

TWO_SCALES = 2
"""Scales of a chunk whose values have two bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """One node's coefficients, chunk after chunk; n is the sum of `counts`."""

    counts: npt.NDArray[np.uint16]
    """[chunks]: coefficients of each chunk, at most top_k."""

    indices: npt.NDArray[np.uint16]
    """[n]: places in the chunk, below 4096, strictly ascending within a chunk."""

    values: npt.NDArray[np.int16]
    """[n]: signed values without zero, of magnitude at most value_max."""

    scales: npt.NDArray[np.uint8] | None = None
    """[chunks], or [chunks, 2] with a larger scale beside each: the codes of the chunks' scales, 0
    where there are no coefficients of that scale; None without scales."""


@dataclass(frozen=True, slots=True)
class Body:
    """The part of a container behind its header."""

    short_chunks: int
    """Chunks with fewer than top_k coefficients."""

    values: int
    """Coefficients of all chunks."""

    planes: bytes


def encode(header: Header, coefficients: Coefficients, shape: PayloadShape) -> bytes:
    """The container; `LocalProtocolError` for coefficients that the shape does not allow."""
    return sealed(header, body_of(coefficients, shape), shape)


def sealed(header: Header, body: Body, shape: PayloadShape) -> bytes:
    """The container of a body that was packed for this shape."""
    return head_bytes(header, shape.sizes, body.short_chunks) + body.planes


def body_of(coefficients: Coefficients, shape: PayloadShape) -> Body:
    """Coefficients packed; `LocalProtocolError` for those that the shape does not allow."""
    _check(coefficients, shape)
    counts = coefficients.counts
    gaps = gaps_of(coefficients.indices, counts)
    rice_bits = rice_parameter(shape.top_k)
    planes = [
        pack(gaps & np.uint16((1 << rice_bits) - 1), rice_bits),
        pack_unary(gaps >> np.uint16(rice_bits)),
        pack(_codes(coefficients.values, shape), shape.value_bits),
    ]
    if coefficients.scales is not None:
        planes.insert(0, coefficients.scales[counts > 0].T.reshape(-1))
    short = counts < shape.top_k
    short_chunks = int(np.count_nonzero(short))
    if short_chunks:
        planes[:0] = [pack(short.astype(np.uint16), 1), pack(counts[short], shape.count_bits)]
    return Body(short_chunks, len(coefficients.values), b"".join(plane.data for plane in planes))


def decode(container: Blob, shape: PayloadShape) -> tuple[Header, Coefficients]:
    """The header and coefficients of which `encode` made this container.

    Raises `RemoteProtocolError`, and nothing else, for any bytes that `encode` does not make for
    this shape, those of another protocol version included: the version of a run was agreed when
    its members said hello, so such a payload counts for nothing and stops nobody.
    """
    reader = PayloadReader(container, shape)
    reader.read(0)
    return reader.header, reader.coefficients


class PayloadReader:
    """A container whose coefficients are read part by part, each a range of chunks, in any order
    or at once by several threads: each part is written to a place of its own. Together the parts
    accept what `decode` accepts, which reads a container of one part.
    """

    def __init__(self, container: Blob, shape: PayloadShape, parts: int = 1) -> None:
        """`RemoteProtocolError` for what shows before any coefficient is read."""
        view = memoryview(container).cast("B")
        if view.nbytes > shape.bytes_max:
            raise RemoteProtocolError(
                f"expected a payload of at most {shape.bytes_max} bytes, got {view.nbytes}"
            )
        self._shape = shape
        self.header, short_chunks, planes = read_head(view, shape.sizes)
        counts, body = _read_counts(np.frombuffer(planes, np.uint8), short_chunks, shape)
        scales, body = _read_scales(body, counts, shape)
        count = int(counts.sum(dtype=np.int64))
        remainders_end = plane_bytes(count, rice_parameter(shape.top_k))
        values_start = body.size - plane_bytes(count, shape.value_bits)
        if values_start - remainders_end < row_bytes(count):
            raise RemoteProtocolError(
                f"expected the planes of {count} coefficients, got only {body.size} bytes"
            )
        self._remainders, self._values = body[:remainders_end], body[values_start:]
        self._chunks = [shape.chunks * part // parts for part in range(parts + 1)]
        self._numbers = [int(counts[:chunk].sum(dtype=np.int64)) for chunk in self._chunks]
        quotients = body[remainders_end:values_start]
        self._quotients = [(quotients, 0)] if parts == 1 else unary_parts(quotients, self._numbers)
        indices, values = np.empty(count, np.uint16), np.empty(count, np.int16)
        self.coefficients = Coefficients(counts, indices, values, scales)
        """All of them, once every part is read."""

    def read(self, part: int) -> None:
        """Read a part, counted from 0; `RemoteProtocolError` as `decode` raises it."""
        shape, found = self._shape, self.coefficients
        first, stop = self._numbers[part : part + 2]
        total, rice_bits = len(found.indices), rice_parameter(shape.top_k)
        plane, skipped = self._quotients[part]
        gaps = unpack_unary(plane, stop - first, INDEX_MAX >> rice_bits, skipped)
        gaps <<= rice_bits
        gaps |= unpack(self._remainders, total, rice_bits, first, stop)
        counts = found.counts[slice(*self._chunks[part : part + 2])]
        found.indices[first:stop] = indices_of(gaps, counts)
        codes = unpack(self._values, total, shape.value_bits, first, stop)
        found.values[first:stop] = _values(codes, shape)
        if shape.scale_count == TWO_SCALES:
            assert found.scales is not None, "the shape has scales"
            scales = found.scales[slice(*self._chunks[part : part + 2])]
            if flaw := _flaw_of_larger(counts, found.values[first:stop], scales):
                raise RemoteProtocolError(flaw)


def bits_per_value(container_bytes: int, values: int) -> float:
    """Bits of a container per value in it, everything included; 0.0 for one without values."""
    return 8 * container_bytes / values if values else 0.0


def _read_counts(body: Plane, short_chunks: int, shape: PayloadShape) -> tuple[Numbers, Plane]:
    """Counts of all chunks, uint16[chunks], and the bytes after their planes."""
    if not short_chunks:
        return np.full(shape.chunks, shape.top_k, np.uint16), body
    bitmap_end = row_bytes(shape.chunks)
    end = bitmap_end + plane_bytes(short_chunks, shape.count_bits)
    if body.size < end:
        raise RemoteProtocolError(f"expected {end} bytes that count short chunks, got {body.size}")
    short = unpack(body[:bitmap_end], shape.chunks, 1) != 0
    if (marked := int(np.count_nonzero(short))) != short_chunks:
        raise RemoteProtocolError(
            f"expected {short_chunks} short chunks in the bitmap, got {marked}"
        )
    short_counts = unpack(body[bitmap_end:end], short_chunks, shape.count_bits)
    if (largest := int(short_counts.max())) >= shape.top_k:
        raise RemoteProtocolError(
            f"expected a short chunk of fewer than {shape.top_k} coefficients, got {largest}"
        )
    counts = np.full(shape.chunks, shape.top_k, np.uint16)
    counts[short] = short_counts
    return counts, body[end:]


def _read_scales(
    body: Plane, counts: Numbers, shape: PayloadShape
) -> tuple[npt.NDArray[np.uint8] | None, Plane]:
    """Scales of all chunks, None without; and the bytes after their planes."""
    if not shape.scaled:
        return None, body
    filled, columns = counts > 0, shape.scale_count
    end = int(np.count_nonzero(filled)) * columns
    if body.size < end:
        raise RemoteProtocolError(f"expected {end} bytes of scales, got {body.size}")
    scales = np.zeros((shape.chunks, columns), np.uint8)
    scales[filled] = body[:end].reshape(columns, -1).T
    return scales[:, 0] if columns == 1 else scales, body[end:]


def _check(coefficients: Coefficients, shape: PayloadShape) -> None:
    """`LocalProtocolError` for arrays that do not fit each other or the shape; `gaps_of` judges
    indices.
    """
    counts, indices, values = coefficients.counts, coefficients.indices, coefficients.values
    types = (counts.dtype.name, indices.dtype.name, values.dtype.name)
    if types != ("uint16", "uint16", "int16"):
        raise LocalProtocolError(
            f"expected counts, indices, values of uint16, uint16, int16, got {types}"
        )
    count = int(counts.sum(dtype=np.int64))
    lengths = (counts.shape, indices.shape, values.shape)
    if lengths != ((shape.chunks,), (count,), (count,)):
        raise LocalProtocolError(
            f"expected {shape.chunks} counts and {count} indices and values, got {lengths}"
        )
    if (largest := int(counts.max())) > shape.top_k:
        raise LocalProtocolError(
            f"expected at most {shape.top_k} coefficients in a chunk, got {largest}"
        )
    least, most = int(values.min(initial=1)), int(values.max(initial=1))
    if least < -shape.value_max or most > shape.value_max or not values.all():
        raise LocalProtocolError(
            f"expected values of magnitude 1 to {shape.value_max}, got {least} to {most}, or a zero"
        )
    _check_scales(coefficients, shape)


def _check_scales(coefficients: Coefficients, shape: PayloadShape) -> None:
    """`LocalProtocolError` for scales that are not those of chunks with these coefficients."""
    scales, counts = coefficients.scales, coefficients.counts
    if scales is None:
        if shape.scaled:
            raise LocalProtocolError("expected a scale for each chunk, got none")
        return
    two = shape.scale_count == TWO_SCALES
    expected = (shape.chunks, TWO_SCALES) if two else (shape.chunks,)
    found = (scales.dtype.name, scales.shape)
    if not shape.scaled or found != ("uint8", expected) or scales[counts == 0].any():
        said = f"uint8 scales of {shape.chunks} chunks, 0 for empty ones"
        if two:
            said = f"two {said}"
        raise LocalProtocolError(
            f"expected {said if shape.scaled else 'no scales'}, got {found[0]} of {found[1]}"
        )
    if two and (flaw := _flaw_of_larger(counts, coefficients.values, scales)):
        raise LocalProtocolError(flaw)


def _flaw_of_larger(
    counts: Numbers, values: npt.NDArray[np.int16], scales: npt.NDArray[np.uint8]
) -> str:
    """The reason why `scales`, [chunks, 2], are not those of chunks with these values; empty:
    none.
    """
    larger = larger_counts(counts, values)
    if (2 * larger > counts).any():
        return "expected the larger scale for at most half of the values of a chunk, got more"
    lower, upper = scales.T
    if ((upper > lower) != (larger > 0)).any() or upper[larger == 0].any():
        return "expected a larger scale above the other, or 0 where no value has it, got another"
    return ""


def larger_counts(counts: Numbers, values: npt.NDArray[np.int16]) -> Numbers:
    """Values of magnitude 2, uint16[chunks], of chunks that have `counts` values."""
    found: Numbers = np.zeros(len(counts), np.uint16)
    filled = counts > 0
    if filled.any():
        marked = (values & 1) == 0
        found[filled] = np.add.reduceat(marked, starts_of(counts)[filled], dtype=np.uint16)
    return found


def _codes(values: npt.NDArray[np.int16], shape: PayloadShape) -> Numbers:
    """Codes, uint16[n], of values: a sign bit above the magnitude minus one."""
    codes: Numbers = (np.abs(values) - 1 + shape.value_max * (values < 0)).astype(np.uint16)
    return codes


def _values(codes: Numbers, shape: PayloadShape) -> npt.NDArray[np.int16]:
    """Values, int16[n], of codes."""
    magnitudes = (codes & (shape.value_max - 1)).astype(np.int16) + np.int16(1)
    signs = 1 - 2 * (codes >> shape.value_bits - 1).astype(np.int16)  # +1 or -1
    return magnitudes * signs
