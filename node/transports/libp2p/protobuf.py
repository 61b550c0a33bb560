"""The little of protobuf that libp2p's daemon and its keys need: varints and bytes, no schema.

    field = varint(number * 8 + kind) then, for kind 0, a varint, or, for kind 2, varint(length) and the bytes

hivemind ships the schema of the daemon's control socket as generated code, which cannot be had
without importing all of hivemind, and with it torch. A dozen small messages do not need a
schema."""

from collections.abc import Iterator

from protocol.errors import RemoteProtocolError

_VARINT, _BYTES = 0, 2
_VARINT_BYTES_MAX = 10  # 64 bits, seven to a byte


def varint(value: int) -> bytes:
    """An unsigned integer, seven bits to a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends) of the varint at `at`; `RemoteProtocolError` when there is none."""
    value = 0
    for count, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    raise RemoteProtocolError(
        f"expected a varint at byte {at} of {len(data)}, got {data[at : at + 10].hex() or 'none'}"
    )


def sized(data: bytes) -> bytes:
    """Bytes after their own length: a protobuf `bytes` field's body, and how messages follow each
    other on a socket."""
    return varint(len(data)) + data


def read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    """(bytes, where they end) of what `sized` wrote at `at`; `RemoteProtocolError` when it is cut
    short."""
    size, start = read_varint(data, at)
    if size > len(data) - start:
        raise RemoteProtocolError(f"expected {size} bytes at byte {start}, got {len(data) - start}")
    return data[start : start + size], start + size


def field(number: int, value: int | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    return varint(number << 3 | _BYTES) + sized(value)


def fields(message: bytes) -> dict[int, list[bytes]]:
    """The values of each field of bytes by its number.

    `RemoteProtocolError` for half a field, or one of another kind."""
    found: dict[int, list[bytes]] = {}
    for number, value in _values(message):
        if isinstance(value, bytes):
            found.setdefault(number, []).append(value)
    return found


def numbers(message: bytes) -> dict[int, int]:
    """The last value of each field of integers by its number. Raises what `fields` does."""
    return {number: value for number, value in _values(message) if isinstance(value, int)}


def _values(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        if tag & 7 == _VARINT:
            number, at = read_varint(message, at)
            yield tag >> 3, number
        elif tag & 7 == _BYTES:
            value, at = read_sized(message, at)
            yield tag >> 3, value
        else:
            raise RemoteProtocolError(
                f"expected a field of kind 0 or 2, got kind {tag & 7} at byte {at}"
            )
