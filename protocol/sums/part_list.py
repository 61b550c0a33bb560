"""The names of a payload's parts, which one digest names: the root.

    magic      b"LSPL"
    names      msgpack, [[SHA-256, bytes], ...] in one more array: one for each range, ascending

An author signs the root, and a commit names it. Who shows the list, at most 2.5 kB, proves which
part of a range is the author's. The encoding is canonical: equal names give equal bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, sha256
from protocol.limits import PAYLOAD_BYTES_LIMIT
from protocol.sums.ranges import RANGES_MAX

MAGIC: Final = b"LSPL"
"""First bytes of a list: no payload begins with them."""

LIST_BYTES_MAX: Final = len(MAGIC) + 4 + 40 * RANGES_MAX
"""Length of a list: a name takes 34 bytes for its digest, 5 for its length, and 1 for itself."""


class PartName(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Digest and length of a part."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    bytes: Annotated[int, msgspec.Meta(ge=1, le=PAYLOAD_BYTES_LIMIT)]


_Names = Annotated[tuple[PartName, ...], msgspec.Meta(min_length=1, max_length=RANGES_MAX)]


class _List(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    names: _Names


@dataclass(frozen=True, slots=True)
class PartList:
    """The names of all parts of one payload, by range."""

    names: tuple[PartName, ...]

    @property
    def blob(self) -> bytes:
        """The canonical bytes."""
        return MAGIC + packed(_List(self.names))

    @property
    def root(self) -> Digest:
        """The digest that names the payload."""
        return sha256(self.blob)


def list_of(parts: Sequence[bytes]) -> PartList:
    """The list of a payload's parts, by range."""
    return PartList(tuple(PartName(sha256(part), len(part)) for part in parts))


def open_list(blob: bytes, count: int, root: Digest) -> PartList:
    """The list of `count` parts that a root names; `RemoteProtocolError` for any other bytes."""
    if len(blob) > LIST_BYTES_MAX or blob[: len(MAGIC)] != MAGIC:
        raise RemoteProtocolError(
            f"expected a list of parts of at most {LIST_BYTES_MAX} bytes, got {len(blob)} that "
            f"begin with {bytes(blob[:4])!r}"
        )
    if (found := sha256(blob)) != root:
        raise RemoteProtocolError(
            f"expected the list of parts {root.hex()[:16]}, got {found.hex()[:16]}"
        )
    plain = unpacked(blob[len(MAGIC) :], text_bytes_max=32, items_max=RANGES_MAX)
    opened = PartList(converted(plain, _List).names)
    if len(opened.names) != count or opened.blob != blob:
        raise RemoteProtocolError(
            f"expected the shortest list of {count} parts, got one of {len(opened.names)}"
        )
    return opened
