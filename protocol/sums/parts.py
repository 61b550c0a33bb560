"""A payload cut by ranges of chunks, so that whoever adds a range needs no more than its part.

    part    a payload container of its own (`protocol.codec.payload`), with the payload's header
            and the range's chunks: it decodes alone, and its digest names it in `part_list`

Cutting is canonical both ways: a payload has one set of parts, and these are of one payload. What
decodes as a whole decodes in parts, and parts of one header are a payload.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from protocol.codec.payload import Blob, Coefficients, Header, PayloadShape, decode, encode
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.sums.ranges import Range, ranges_of


def shape_of(shape: PayloadShape, among: Range) -> PayloadShape:
    """The shape of a payload's part."""
    return replace(shape, chunks=among.chunks)


def cut(payload: Blob, shape: PayloadShape, count: int) -> list[bytes]:
    """The parts of a payload for `count` ranges; `RemoteProtocolError` if it does not decode."""
    header, coefficients = decode(payload, shape)
    return [
        encode(header, within(coefficients, among), shape_of(shape, among))
        for among in ranges_of(shape.chunks, count)
    ]


def heard(parts: Sequence[Blob | None], shape: PayloadShape, header: Header) -> bytes:
    """The payload of an author as its parts are added, one for each range: it says nothing in the
    range of a part that is not there (None), does not decode, or has another header. Where all that
    decode have the same other header, they are the payload of that.
    """
    ranges = ranges_of(shape.chunks, len(parts))
    found = list[tuple[Header, Coefficients] | None]()
    for part, among in zip(parts, ranges, strict=True):
        try:
            found.append(None if part is None else decode(part, shape_of(shape, among)))
        except RemoteProtocolError:
            found.append(None)
    headers = {each[0] for each in found if each}
    if len(headers) == 1:
        header = headers.pop()
    sent = [
        each[1] if each and each[0] == header else silence(shape_of(shape, among))
        for each, among in zip(found, ranges, strict=True)
    ]
    return encode(header, _concatenated(sent), shape)


def silence(shape: PayloadShape) -> Coefficients:
    """Coefficients of an author that says nothing."""
    columns = () if shape.scale_count == 1 else (shape.scale_count,)
    return Coefficients(
        np.zeros(shape.chunks, np.uint16),
        np.zeros(0, np.uint16),
        np.zeros(0, np.int16),
        np.zeros((shape.chunks, *columns), np.uint8) if shape.scaled else None,
    )


def _concatenated(parts: Sequence[Coefficients]) -> Coefficients:
    """The coefficients of chunks that follow each other."""
    scales = [each.scales for each in parts if each.scales is not None]
    return Coefficients(
        np.concatenate([each.counts for each in parts]),
        np.concatenate([each.indices for each in parts]),
        np.concatenate([each.values for each in parts]),
        np.concatenate(scales) if scales else None,
    )


def within(coefficients: Coefficients, among: Range) -> Coefficients:
    """What coefficients say of a range, as views; `LocalProtocolError` beyond their chunks."""
    if among.stop > len(coefficients.counts):
        raise LocalProtocolError(
            f"expected a range of {len(coefficients.counts)} chunks, got {among}"
        )
    counts, scales = coefficients.counts[among.slice], coefficients.scales
    first = int(coefficients.counts[: among.first].sum(dtype=np.int64))
    here = slice(first, first + int(counts.sum(dtype=np.int64)))
    return Coefficients(
        counts,
        coefficients.indices[here],
        coefficients.values[here],
        None if scales is None else scales[among.slice],
    )
