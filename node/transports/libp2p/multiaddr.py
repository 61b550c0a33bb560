"""libp2p's names: peer ids and the addresses that carry them.

    /ip4/192.0.2.7/tcp/50702/p2p/12D3KooW...                            a peer, dialled directly
    /ip4/192.0.2.7/tcp/50702/p2p/12D3KooW.../p2p-circuit/p2p/12D3KooV...   another one, through the first as a relay
    /p2p/12D3KooV...                                                    one that only dials, or is linked already

A peer id is base58 over a multihash; for an ed25519 key that is the key itself behind six fixed
bytes, so it is a function of the node's public key and nobody needs to be told. In binary, which is
how the daemon takes addresses, each part is a code and its value. Only the parts that a TCP address
can have are known here. Source: multiformats/multiaddr, libp2p/specs peer-ids."""

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

from node.transports.libp2p.protobuf import read_sized, read_varint, sized, varint
from protocol.errors import RemoteProtocolError, SettingsError

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519_ID = bytes.fromhex("002408011220")
"""An identity multihash (0) of 36 bytes (0x24): a protobuf of key type 1 (ed25519) and 32 bytes
(0x20) of key."""

_PEER_ID_BYTES_MAX = 64
"""A multihash of any key: ed25519 needs 38, SHA-256 of an RSA key 34."""

_TEXT_MAX = 512
"""Characters of an address: two peer ids and a host name need half of it."""


@dataclass(frozen=True, slots=True)
class _Part:
    code: int
    size: int | None
    """Bytes of its value; None: it says so itself."""
    encode: Callable[[str], bytes] = str.encode
    decode: Callable[[bytes], str] = bytes.decode


def _base58(data: bytes) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits


def _unbase58(text: str) -> bytes:
    number = 0
    for character in text:
        number = number * 58 + _ALPHABET.index(character)
    data = b"\0" * (len(text) - len(text.lstrip("1"))) + number.to_bytes(
        -(-number.bit_length() // 8), "big"
    )
    if not 2 < len(data) <= _PEER_ID_BYTES_MAX:
        raise ValueError(f"a peer id of {len(data)} bytes")
    return data


_PARTS = {
    "ip4": _Part(
        4,
        4,
        lambda text: ipaddress.IPv4Address(text).packed,
        lambda data: str(ipaddress.IPv4Address(data)),
    ),
    "ip6": _Part(
        41,
        16,
        lambda text: ipaddress.IPv6Address(text).packed,
        lambda data: str(ipaddress.IPv6Address(data)),
    ),
    "tcp": _Part(
        6,
        2,
        lambda text: int(text).to_bytes(2, "big"),
        lambda data: str(int.from_bytes(data, "big")),
    ),
    "dns": _Part(53, None),
    "dns4": _Part(54, None),
    "dns6": _Part(55, None),
    "unix": _Part(400, None),
    "p2p": _Part(421, None, _unbase58, _base58),
    "p2p-circuit": _Part(290, 0),
}
_NAMES = {part.code: name for name, part in _PARTS.items()}


def libp2p_id(public_key: bytes) -> str:
    """The libp2p peer id of the node that holds the given raw 32-byte ed25519 public key."""
    return _base58(_ED25519_ID + public_key)


def id_bytes(peer: str) -> bytes:
    """A peer id in binary; `SettingsError` for anything else."""
    try:
        return _unbase58(peer)
    except ValueError:
        raise SettingsError(
            f"expected a libp2p peer id such as 12D3KooW..., found {peer[:80]!r}"
        ) from None


def id_text(peer: bytes) -> str:
    """A peer id as people read it."""
    return _base58(peer)


def encode(address: str) -> bytes:
    """An address in binary; `SettingsError` for one that cannot be dialled over TCP."""
    words = address.split("/")
    try:
        if len(address) > _TEXT_MAX or words.pop(0):
            raise ValueError("far too long, or no slash before it")
        binary = b""
        while words:
            name = words.pop(0)
            part = _PARTS[name]
            value = "" if part.size == 0 else words.pop(0)
            data = (
                ("/" + "/".join((value, *words))).encode() if name == "unix" else part.encode(value)
            )
            binary += varint(part.code) + (sized(data) if part.size is None else data)
            if name == "unix":  # a path, which takes the rest
                break
        return binary
    except (ValueError, KeyError, IndexError, OverflowError):
        raise SettingsError(
            f"expected an address like /ip4/192.0.2.7/tcp/50702/p2p/12D3KooW..., found {address[:80]!r}"
        ) from None


def decode(binary: bytes) -> str:
    """An address as people read it; `RemoteProtocolError` for parts that are not known here."""
    text, at = "", 0
    while at < len(binary):
        code, at = read_varint(binary, at)
        if code not in _NAMES:
            raise RemoteProtocolError(
                f"expected an address over TCP, got the part {code} after {text!r}"
            )
        name = _NAMES[code]
        part = _PARTS[name]
        if part.size is None:
            data, at = read_sized(binary, at)
        else:
            data, at = binary[at : at + part.size], at + part.size
        try:
            text += f"/{name}" + ("" if part.size == 0 else f"/{part.decode(data)}")
        except ValueError:
            raise RemoteProtocolError(
                f"expected a value for /{name} after {text!r}, got {data.hex()!r}"
            ) from None
    return text


def split_peer(address: str) -> tuple[str, str]:
    """(where, who) of an announced address: what the daemon can dial, perhaps nothing, and the peer
    id at its end.

    `SettingsError` when it cannot be dialled."""
    where, mark, peer = address.rpartition("/p2p/")
    if not mark:
        raise SettingsError(
            f"expected an address that ends in /p2p/ and a peer id, found {address[:80]!r}"
        )
    id_bytes(peer)
    encode(where)
    return where, peer


def from_host_port(address: str) -> str:
    """libp2p's form of HOST:PORT; one that is libp2p's already stays. `SettingsError` for
    neither."""
    if address.startswith("/"):
        return address
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        kind = "ip6" if ipaddress.ip_address(bare).version == 6 else "ip4"
    except ValueError:
        kind = "dns"
    converted = f"/{kind}/{bare}/tcp/{port}"
    if not bare or "/" in bare or (kind == "dns" and ":" in bare):
        raise SettingsError(f"expected HOST:PORT or [IPV6]:PORT, found {address[:80]!r}")
    encode(converted)
    return converted


def ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that an address begins with, if it does."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host_of(address))
    return None


def host_of(address: str) -> str:
    """The IP address or name that an address begins with; empty when there is none."""
    words = address.split("/")
    return words[2] if len(words) > 2 else ""


def tcp_port(address: str) -> int:
    """The TCP port that an address names; 0 when it names none."""
    _, mark, rest = address.partition("/tcp/")
    return int(rest.partition("/")[0]) if mark else 0


def of_socket(bound: socket.socket) -> str:
    """The address that a TCP socket is bound to."""
    ip, port = bound.getsockname()[:2]
    return from_host_port(f"{ip}:{port}")


def with_port(address: str, port: int) -> str:
    """An address with the port where it says 0, and without a peer id at its end."""
    where = address.partition("/p2p/")[0]
    return f"{where[:-1]}{port}" if where.endswith("/tcp/0") else where
