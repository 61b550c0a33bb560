"""Canonical MessagePack: the bytes of commits and of payload headers.

The msgpack package reads and writes the bytes, under limits on every length; msgspec's types then
judge what was read. One value has one encoding here (the shortest forms, fields in declaration
order), so a reader compares the bytes with those of `packed` to refuse any other.
"""

from typing import Any, TypeVar

import msgpack
import msgspec

from protocol.errors import RemoteProtocolError

_Kind = TypeVar("_Kind")

_BUFFER_BYTES = 4096
"""First size of the buffer that a value is packed into; it grows as needed."""


def packed(value: Any) -> bytes:
    """The canonical bytes of a struct, a dataclass or plain values."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    # `packb` would take a buffer of 256 KiB for a header of 43 bytes.
    blob: bytes = msgpack.Packer(use_bin_type=True, buf_size=_BUFFER_BYTES).pack(plain)
    return blob


def unpacked(blob: bytes | memoryview, *, text_bytes_max: int, items_max: int) -> Any:
    """The plain value in `blob`: text and byte strings of at most `text_bytes_max` bytes, arrays
    and maps of at most `items_max` items, no extension types.

    Raises `RemoteProtocolError` for anything else, trailing bytes and deep nesting included.
    """
    try:
        return msgpack.unpackb(
            blob,
            raw=False,
            strict_map_key=True,
            max_str_len=text_bytes_max,
            max_bin_len=text_bytes_max,
            max_array_len=items_max,
            max_map_len=items_max,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(
            f"expected MessagePack: {str(error) or type(error).__name__}"
        ) from None


def converted(plain: Any, kind: type[_Kind]) -> _Kind:
    """A plain value as `kind`, whose types and bounds msgspec checks.

    Raises `RemoteProtocolError` that names the field.
    """
    try:
        return msgspec.convert(plain, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(str(error)) from None
