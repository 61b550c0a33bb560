"""Unsigned varints, and bytes behind their length: how libp2p writes numbers where no protobuf
library does. Pure.

    varint(300) = ac 02        seven bits to a byte, the lowest first; the last byte is below 0x80
    sized(b"ab") = 02 61 62    on streams each message is sized; in an address each value is

Source: multiformats/unsigned-varint.
"""

from protocol.errors import RemoteProtocolError

_VARINT_BYTES_MAX = 10  # 64 bits, seven to a byte


def varint(value: int) -> bytes:
    """The bytes of an unsigned integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, end) of the varint at `at`; `RemoteProtocolError` when there is none."""
    value = 0
    for count, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    found = data[at : at + _VARINT_BYTES_MAX].hex() or "none"
    raise RemoteProtocolError(f"expected a varint at byte {at} of {len(data)}, got {found}")


def sized(data: bytes) -> bytes:
    """Bytes behind their length."""
    return varint(len(data)) + data


def read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    """(bytes, end) of the sized bytes at `at`; `RemoteProtocolError` when they are cut short."""
    size, start = read_varint(data, at)
    if size > len(data) - start:
        raise RemoteProtocolError(f"expected {size} bytes at byte {start}, got {len(data) - start}")
    return data[start : start + size], start + size
