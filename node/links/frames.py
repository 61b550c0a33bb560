"""Frames: how a link cuts its stream of bytes, so that no short, long or damaged message passes for
a whole one. Pure.

    0        2      3      4             8                16
    | "LS"   | kind | zero | body length | digest         | body ...
                                           first 8 bytes of SHA-256(the 8 bytes before it, body)

A frame is accepted whole or not at all. Its length is checked against the limit of its kind before
a byte of the body is kept, so a stranger's claim takes no memory. The digest finds losses and
damage of a transport; `protocol` proves the sender. Two kinds: a control frame carries a
`LinkMessage`, a part frame raw bytes of a blob.

Traffic is counted here, once: the data of parts belongs to the owner of their blob, all other bytes
are control.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire_pb2 import LinkMessage

PART_BYTES_MIN = 1024
"""Least data in a part that is not a blob's last: otherwise one byte at a time would count as
progress for ever. Small enough to hold up a heartbeat for 0.2 s only on a link of 0.05 Mbit/s."""

PART_BYTES_MAX = 512 * 1024
"""Most data in one part."""

CONTROL_BYTES_MAX = 128 * 1024
"""Bytes in the body of a control frame: a full list of offers is half of that."""

JOINED_BYTES_MAX = 2 * PART_BYTES_MIN
"""Bytes of small frames that are written together: no two parts, because neither is acknowledged
before both have come, and a thin link would look like a long one."""

MAGIC = b"LS"
HEADER_BYTES = 16

_HEAD = struct.Struct(">2sBBI")
_PART = struct.Struct(">IQQ")
_KIND_AT = len(MAGIC)
_DIGEST_BYTES = HEADER_BYTES - _HEAD.size

PART_FRAME_OVERHEAD = HEADER_BYTES + _PART.size
"""Bytes of a part frame that are not data."""


class Kind(IntEnum):
    """The kinds of a frame's body."""

    CONTROL = 1
    PART = 2


_BODY_BYTES_MAX = {Kind.CONTROL: CONTROL_BYTES_MAX, Kind.PART: _PART.size + PART_BYTES_MAX}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a blob: the answer, or one of the answers, to a fetch."""

    request: int
    offset: int
    total_bytes: int
    data: bytes


Message = LinkMessage | Part


def encode(message: Message) -> bytes:
    """The frame of a message; `LocalProtocolError` for one above its limit, or a part without
    data.
    """
    if isinstance(message, Part):
        kind, fields, data = (
            Kind.PART,
            _PART.pack(message.request, message.offset, message.total_bytes),
            message.data,
        )
    else:
        kind, fields, data = Kind.CONTROL, b"", message.SerializeToString()
    length = len(fields) + len(data)
    if length > _BODY_BYTES_MAX[kind] or (fields and not data):
        raise LocalProtocolError(
            f"expected a frame body of 1..{_BODY_BYTES_MAX[kind]} bytes, got {length}"
        )
    head = _HEAD.pack(MAGIC, kind, 0, length)
    return b"".join((head, _digest(head, fields, data), fields, data))


def grouped(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Frames in order, in groups to be written together: small ones up to `JOINED_BYTES_MAX`, a
    large one alone. No group is larger than a pipe takes.
    """
    together = list[bytes]()
    for frame in frames:
        if together and len(frame) + sum(map(len, together)) > JOINED_BYTES_MAX:
            yield together
            together = []
        together.append(frame)
    if together:
        yield together


def part_data(frame: bytes) -> tuple[int, int]:
    """(request, bytes of data) of a part frame that `encode` made; (0, 0) for a control frame."""
    if frame[_KIND_AT] != Kind.PART:
        return 0, 0
    request, _, _ = _PART.unpack_from(frame, HEADER_BYTES)
    return int(request), len(frame) - PART_FRAME_OVERHEAD


class FrameReader:
    """Cuts frames out of a stream of bytes that arrives in any pieces."""

    def __init__(self) -> None:
        self.control_bytes = 0
        """Bytes of the frames so far, without the data of parts."""
        self._buffer = bytearray()
        self._frame_bytes = 0  # of the incoming frame; 0 until its header is complete

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now, one by one, so that many tiny frames never lie in
        memory together.

        `RemoteProtocolError` for bytes that are no frames; every later call raises it again.
        """
        self._buffer += data
        while self._whole():
            yield self._take()

    def _whole(self) -> bool:
        if not self._frame_bytes and len(self._buffer) >= HEADER_BYTES:
            self._frame_bytes = HEADER_BYTES + _body_bytes(self._buffer[: _HEAD.size])
        return 0 < self._frame_bytes <= len(self._buffer)

    def _take(self) -> Message:
        kind = Kind(self._buffer[_KIND_AT])
        data_at = HEADER_BYTES + (_PART.size if kind is Kind.PART else 0)
        # A part's data is copied once more, here.
        with memoryview(self._buffer)[: self._frame_bytes] as frame:
            intact = frame[_HEAD.size : HEADER_BYTES] == _digest(
                frame[: _HEAD.size], frame[HEADER_BYTES:]
            )
            fields, data = bytes(frame[HEADER_BYTES:data_at]), bytes(frame[data_at:])
        if not intact:
            raise RemoteProtocolError(
                "expected a frame with the digest of its bytes, got a damaged one"
            )
        message = _part(fields, data) if kind is Kind.PART else _control(data)
        # Cheap: a bytearray moves its beginning and not its bytes.
        del self._buffer[: self._frame_bytes]
        is_part = isinstance(message, Part)
        self.control_bytes += PART_FRAME_OVERHEAD if is_part else self._frame_bytes
        self._frame_bytes = 0
        return message


def _body_bytes(head: bytearray) -> int:
    magic, kind, zero, length = _HEAD.unpack(head)
    if magic != MAGIC or zero:
        raise RemoteProtocolError(
            f"expected a frame that begins with {MAGIC!r} and a kind, got {bytes(head)!r}"
        )
    if kind not in _BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"expected a frame of kind {' or '.join(str(int(k)) for k in Kind)}, got {kind}"
        )
    if length > _BODY_BYTES_MAX[kind]:
        raise RemoteProtocolError(
            f"expected a frame body of at most {_BODY_BYTES_MAX[kind]} bytes, got {length}"
        )
    return int(length)


def _part(fields: bytes, data: bytes) -> Part:
    if not data:
        raise RemoteProtocolError(
            f"expected a part with data after {_PART.size} bytes of fields, got none"
        )
    request, offset, total_bytes = _PART.unpack(fields)
    return Part(request, offset, total_bytes, data)


def _control(body: bytes) -> LinkMessage:
    try:
        return LinkMessage.FromString(body)
    except DecodeError:
        raise RemoteProtocolError(
            "expected a LinkMessage of protocol/wire.proto, got bytes that do not decode"
        ) from None


def _digest(*pieces: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()[:_DIGEST_BYTES]
