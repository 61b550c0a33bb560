"""The first bytes of a payload container: magic, header length, header.

Without numpy, so that a relay can read whose payload it holds. `protocol.codec.payload` has the
picture, and what follows these bytes.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, RunId
from protocol.limits import PAYLOAD_HEADER_BYTES_MAX, PROTOCOL_VERSION

MAGIC: Final = b"LSP1"
"""First bytes of every payload container."""

ROUND_MAX: Final = 2**63 - 1
"""Rounds are signed 64-bit integers in messages."""

_OPENING: Final = struct.Struct("<4sH")

_HEAD_ITEMS_MAX: Final = 16
"""Fields of a header at most, in any version."""

Blob = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Header:
    """Run, round and author of a payload; `LocalProtocolError` outside the bounds."""

    run_id: RunId
    round: int
    author: PeerId

    def __post_init__(self) -> None:
        for name in (self.run_id, self.author):
            if len(name) != 32 or set(name) - set("0123456789abcdef"):
                raise LocalProtocolError(
                    f"expected an id of 32 hexadecimal characters, got {name[:40]!r}"
                )
        if not 0 <= self.round <= ROUND_MAX:
            raise LocalProtocolError(f"expected a round from 0 to {ROUND_MAX}, got {self.round}")


class _Version(msgspec.Struct, array_like=True, frozen=True):
    """The field that any version of the header starts with."""

    version: int


class Head(_Version, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The header on the wire: an array of eight, in this order."""

    run_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    round: Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]
    author: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    chunks: int
    top_k: int
    value_bits: int
    short_chunks: int

    def plain(self) -> Header:
        """Run, round and author."""
        return Header(RunId(self.run_id.hex()), self.round, PeerId(self.author.hex()))


def head_bytes(head: Head) -> bytes:
    """Magic, header length and header."""
    fields = packed(head)
    return _OPENING.pack(MAGIC, len(fields)) + fields


def read_header(container: Blob) -> Header:
    """The header of a container of any shape; what follows it is not read. Raises as `decode`."""
    return read_head(memoryview(container).cast("B"))[0].plain()


def read_head(view: memoryview) -> tuple[Head, int]:
    """The fields of the header and its end, in bytes."""
    if view.nbytes < _OPENING.size:
        raise RemoteProtocolError(
            f"expected a payload of at least {_OPENING.size} bytes, got {view.nbytes}"
        )
    magic, length = _OPENING.unpack_from(view)
    if magic != MAGIC:
        raise RemoteProtocolError(f"expected a payload that starts with {MAGIC!r}, got {magic!r}")
    end = _OPENING.size + length
    if length > PAYLOAD_HEADER_BYTES_MAX or end > view.nbytes:
        most = min(PAYLOAD_HEADER_BYTES_MAX, view.nbytes - _OPENING.size)
        raise RemoteProtocolError(
            f"expected a payload header of at most {most} bytes, got {length}"
        )
    return _parse_head(view[_OPENING.size : end]), end


def _parse_head(fields: memoryview) -> Head:
    """The header's fields, of the right types; the version is judged before what it may have
    changed.
    """
    try:
        plain = unpacked(fields, text_bytes_max=PAYLOAD_HEADER_BYTES_MAX, items_max=_HEAD_ITEMS_MAX)
        version = converted(plain, _Version).version
        if version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"expected a payload of protocol version {PROTOCOL_VERSION}, got version {version}"
            )
        return converted(plain, Head)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"expected a payload header, got {bytes(fields).hex()}: {error}"
        ) from None
