"""Judges a part of a payload by the shape of its range."""

from collections.abc import Callable

from protocol.codec.payload import Blob, Header, PayloadShape, decode
from protocol.errors import RemoteProtocolError
from protocol.sums.parts import shape_of
from protocol.sums.ranges import RANGES_MAX, ranges_of


def part_header_of(shape: PayloadShape) -> Callable[[Blob, int, int], Header]:
    """The check `header_of(part, number, count)` of the parts of payloads of this shape: it returns
    the header of one that decodes, and raises `RemoteProtocolError` for another.
    """

    def header_of(part: Blob, number: int, count: int) -> Header:
        if not 0 <= number < count <= min(shape.chunks, RANGES_MAX):
            raise RemoteProtocolError(
                f"expected a range of at most {min(shape.chunks, RANGES_MAX)}, got {number} of "
                f"{count}"
            )
        header, _ = decode(part, shape_of(shape, ranges_of(shape.chunks, count)[number]))
        return header

    return header_of
