"""The header of a payload container: who sent it, in which round, and the size of what follows.

magic              4 bytes, which name the form of the container
header length      uint16, little-endian
header             msgpack array, see `_Head`
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
"""First bytes of a payload container without scales."""

MAGIC_SCALED: Final = b"LSPS"
"""First bytes of a payload container with a scale for each chunk."""

MAGIC_HALF: Final = b"LSPH"
"""First bytes of a payload that holds parameters in float16."""

MAGIC_FLOAT: Final = b"LSPF"
"""First bytes of a payload that holds parameters in float32."""

MAGIC_DIFFERENCES: Final = b"LSPD"
"""First bytes of a payload that holds differences of parameters in one byte each."""

MAGICS: Final = (MAGIC, MAGIC_SCALED, MAGIC_HALF, MAGIC_FLOAT, MAGIC_DIFFERENCES)
"""First bytes of payloads of all forms."""

Blob = bytes | bytearray | memoryview

ROUND_MAX: Final = 2**63 - 1
"""Rounds are signed 64-bit integers in messages."""

_OPENING: Final = struct.Struct("<4sH")

_HEAD_ITEMS_MAX: Final = 16
"""Fields of a header at most, in any version."""


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


@dataclass(frozen=True, slots=True)
class Sizes:
    """The form of a container and the sizes that its header states."""

    magic: bytes
    chunks: int
    top_k: int
    value_bits: int


class _Version(msgspec.Struct, array_like=True, frozen=True):
    """The field that any version of the header starts with."""

    version: int


class _Head(_Version, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The header on the wire: an array of eight, in this order."""

    run_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    round: Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]
    author: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    chunks: int
    top_k: int
    value_bits: int
    short_chunks: int


def head_bytes(header: Header, sizes: Sizes, short_chunks: int) -> bytes:
    """Magic, header length and header."""
    head = _Head(
        PROTOCOL_VERSION,
        bytes.fromhex(header.run_id),
        header.round,
        bytes.fromhex(header.author),
        sizes.chunks,
        sizes.top_k,
        sizes.value_bits,
        short_chunks,
    )
    fields = packed(head)
    return _OPENING.pack(sizes.magic, len(fields)) + fields


def read_head(view: memoryview, sizes: Sizes) -> tuple[Header, int, memoryview]:
    """Header, number of short chunks, and the bytes after the header.

    `RemoteProtocolError` for any bytes that `head_bytes` does not make for these sizes.
    """
    head, end = _read_fields(view, (sizes.magic,))
    found = (head.chunks, head.top_k, head.value_bits)
    if found != (expected := (sizes.chunks, sizes.top_k, sizes.value_bits)):
        raise RemoteProtocolError(f"expected chunks, top_k, value_bits of {expected}, got {found}")
    if not 0 <= head.short_chunks <= sizes.chunks:
        raise RemoteProtocolError(
            f"expected 0 to {sizes.chunks} short chunks, got {head.short_chunks}"
        )
    header = Header(RunId(head.run_id.hex()), head.round, PeerId(head.author.hex()))
    # msgpack can write one number in several ways; only ours is the payload.
    if head_bytes(header, sizes, head.short_chunks) != view[:end]:
        raise RemoteProtocolError(
            f"expected the shortest msgpack header, got {bytes(view[:end]).hex()}"
        )
    return header, head.short_chunks, view[end:]


def read_header(container: Blob) -> Header:
    """The header of a container of any form and shape; what follows it is not read. Raises as
    `read_head`.
    """
    head, _ = _read_fields(memoryview(container).cast("B"), MAGICS)
    return Header(RunId(head.run_id.hex()), head.round, PeerId(head.author.hex()))


def _read_fields(view: memoryview, magics: tuple[bytes, ...]) -> tuple[_Head, int]:
    """The fields of the header and its end, in bytes."""
    if view.nbytes < _OPENING.size:
        raise RemoteProtocolError(
            f"expected a payload of at least {_OPENING.size} bytes, got {view.nbytes}"
        )
    magic, length = _OPENING.unpack_from(view)
    if magic not in magics:
        raise RemoteProtocolError(
            f"expected a payload that starts with {' or '.join(map(repr, magics))}, got {magic!r}"
        )
    end = _OPENING.size + length
    if length > PAYLOAD_HEADER_BYTES_MAX or end > view.nbytes:
        most = min(PAYLOAD_HEADER_BYTES_MAX, view.nbytes - _OPENING.size)
        raise RemoteProtocolError(
            f"expected a payload header of at most {most} bytes, got {length}"
        )
    return _parse_head(view[_OPENING.size : end]), end


def _parse_head(fields: memoryview) -> _Head:
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
        return converted(plain, _Head)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"expected a payload header, got {bytes(fields).hex()}: {error}"
        ) from None
