"""Frames: how a stream of bytes is cut so that nothing short, long or damaged passes for whole. Pure.

    0        2      3      4             8                16
    | "LS"   | kind | zero | body length | digest         | body ...
                                           first 8 bytes of SHA-256(the 8 bytes before it, body)

A frame is accepted whole or not at all. Its length is checked against the cap of its kind before a byte of the body is
kept, so a stranger's claim takes no memory. The digest finds what a transport lost or damaged; who sent the frame is
the session's business. Two kinds: a control frame carries a `LinkMessage`, a part frame raw bytes of a blob.
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.message import DecodeError

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire_pb2 import LinkMessage

PART_BYTES_MIN = 16 * 1024
"""Data in any part but a blob's last: else a byte at a time would count as progress for ever."""

PART_BYTES_MAX = 512 * 1024
"""Data in one part."""

CONTROL_BYTES_MAX = 128 * 1024
"""Body of a control frame: a full list of offers is half of it."""

MAGIC = b"LS"
HEADER_BYTES = 16

_HEAD = struct.Struct(">2sBBI")
_PART = struct.Struct(">IQQ")
_DIGEST_BYTES = HEADER_BYTES - _HEAD.size

PART_FRAME_OVERHEAD = HEADER_BYTES + _PART.size
"""Bytes of a part frame that are not data."""


class Kind(IntEnum):
    """What a frame's body is."""

    CONTROL = 1
    PART = 2


_BODY_BYTES_MAX = {Kind.CONTROL: CONTROL_BYTES_MAX, Kind.PART: _PART.size + PART_BYTES_MAX}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a blob on its way: the answer, or one of the answers, to a fetch."""

    request: int
    offset: int
    total_bytes: int
    data: bytes


Message = LinkMessage | Part


def encode(message: Message) -> bytes:
    """The frame of a message; `LocalProtocolError` for one above its cap."""
    if isinstance(message, Part):
        kind = Kind.PART
        body = _PART.pack(message.request, message.offset, message.total_bytes) + message.data
    else:
        kind, body = Kind.CONTROL, message.SerializeToString()
    if len(body) > _BODY_BYTES_MAX[kind]:
        raise LocalProtocolError(f"expected a frame body of at most {_BODY_BYTES_MAX[kind]} bytes, got {len(body)}")
    head = _HEAD.pack(MAGIC, kind, 0, len(body))
    return b"".join((head, _digest(head, body), body))


class FrameReader:
    """Cuts frames out of a stream of bytes, however it is cut itself."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frame_bytes = 0  # of the frame that is coming in; 0 while its header is not here

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now; `RemoteProtocolError` for bytes that are no frames."""
        self._buffer += data
        messages, start = list[Message](), 0
        while len(self._buffer) - start >= (self._frame_bytes or HEADER_BYTES):
            if not self._frame_bytes:
                self._frame_bytes = HEADER_BYTES + _body_bytes(self._buffer[start : start + _HEAD.size])
                continue
            with memoryview(self._buffer) as view:
                messages.append(_decode(view[start : start + self._frame_bytes]))
            start, self._frame_bytes = start + self._frame_bytes, 0
        del self._buffer[:start]
        return messages

    @property
    def partial_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)


def _body_bytes(head: bytearray) -> int:
    magic, kind, zero, length = _HEAD.unpack(head)
    if magic != MAGIC or zero:
        raise RemoteProtocolError(f"expected a frame that begins with {MAGIC!r} and a kind, got {bytes(head)!r}")
    if kind not in _BODY_BYTES_MAX:
        raise RemoteProtocolError(f"expected a frame of kind {' or '.join(str(int(k)) for k in Kind)}, got {kind}")
    if length > _BODY_BYTES_MAX[kind]:
        raise RemoteProtocolError(f"expected a frame body of at most {_BODY_BYTES_MAX[kind]} bytes, got {length}")
    return int(length)


def _decode(frame: memoryview) -> Message:
    head, digest, body = frame[: _HEAD.size], frame[_HEAD.size : HEADER_BYTES], frame[HEADER_BYTES:]
    if digest != _digest(head, body):
        raise RemoteProtocolError("expected a frame with the digest of its bytes, got a damaged one")
    if head[2] == Kind.CONTROL:
        return _control(bytes(body))
    if len(body) <= _PART.size:
        raise RemoteProtocolError(f"expected a part with at least one byte of data, got a body of {len(body)} bytes")
    request, offset, total = _PART.unpack(body[: _PART.size])
    return Part(request, offset, total, bytes(body[_PART.size :]))


def _control(body: bytes) -> LinkMessage:
    try:
        return LinkMessage.FromString(body)
    except DecodeError:
        raise RemoteProtocolError(
            "expected a LinkMessage of protocol/wire.proto, got bytes that do not decode"
        ) from None


def _digest(head: bytes | memoryview, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(body)
    return digest.digest()[:_DIGEST_BYTES]
