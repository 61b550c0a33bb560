"""libp2p's names: peer ids, and the addresses that carry them. Pure.

    /ip4/192.0.2.7/tcp/50702/p2p/12D3KooW...     a peer, dialled directly
    /ip4/192.0.2.7/tcp/50702/p2p/12D3KooW.../p2p-circuit/p2p/12D3KooV...
                                                 another one, through the first as a relay
    /p2p/12D3KooV...                             a peer that dials, or is connected already

A peer id is base58 over a multihash. For an ed25519 key that is the key itself behind six fixed
bytes, so every node can compute it from a public key. In binary, the form that the daemon takes,
each component is a code and its value. Only the components of a TCP address are known here.

This stays our own code: py-multiaddr is marked pre-alpha and needs trio, psutil, py-cid and nine
more packages. Source: multiformats/multiaddr, libp2p/specs peer-ids.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from node.transports.libp2p.varint import read_sized, read_varint, sized, varint
from protocol.addresses import split_address
from protocol.border import networks
from protocol.errors import RemoteProtocolError, SettingsError

CIRCUIT = "/p2p-circuit"
"""Marks an address through a relay."""

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519_ID = bytes.fromhex("002408011220")
"""An identity multihash (0) of 36 bytes (0x24): a protobuf of key type 1 (ed25519) and 32 bytes
(0x20) of key."""

_PEER_ID_BYTES_MAX = 64
"""A multihash of any key: ed25519 needs 38, SHA-256 of an RSA key 34."""

_TEXT_MAX = 512
"""Characters of an address: two peer ids and a host name need half of them."""


@dataclass(frozen=True, slots=True)
class _Component:
    code: int
    size: int | None
    """Bytes of the value; None: its length stands before it."""
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


_COMPONENTS = {
    "ip4": _Component(
        4,
        4,
        lambda text: ipaddress.IPv4Address(text).packed,
        lambda data: str(ipaddress.IPv4Address(data)),
    ),
    "ip6": _Component(
        41,
        16,
        lambda text: ipaddress.IPv6Address(text).packed,
        lambda data: str(ipaddress.IPv6Address(data)),
    ),
    "tcp": _Component(
        6,
        2,
        lambda text: int(text).to_bytes(2, "big"),
        lambda data: str(int.from_bytes(data, "big")),
    ),
    "dns": _Component(53, None),
    "dns4": _Component(54, None),
    "dns6": _Component(55, None),
    "unix": _Component(400, None),
    "p2p": _Component(421, None, _unbase58, _base58),
    "p2p-circuit": _Component(290, 0),
}
_NAMES = {component.code: name for name, component in _COMPONENTS.items()}


def libp2p_id(public_key: bytes) -> str:
    """The libp2p peer id of a node, from its raw ed25519 public key of 32 bytes."""
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
    """A peer id as text."""
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
            component = _COMPONENTS[name]
            value = "" if component.size == 0 else words.pop(0)
            data = (
                ("/" + "/".join((value, *words))).encode()
                if name == "unix"
                else component.encode(value)
            )
            binary += varint(component.code) + (sized(data) if component.size is None else data)
            if name == "unix":  # a path, which takes the rest
                break
        return binary
    except (ValueError, KeyError, IndexError, OverflowError):
        raise SettingsError(
            "expected an address like /ip4/192.0.2.7/tcp/50702/p2p/12D3KooW..., "
            f"found {address[:80]!r}"
        ) from None


def decode(binary: bytes) -> str:
    """An address as text; `RemoteProtocolError` for components that are not known here."""
    text, at = "", 0
    while at < len(binary):
        code, at = read_varint(binary, at)
        if code not in _NAMES:
            raise RemoteProtocolError(
                f"expected an address over TCP, got component {code} after {text!r}"
            )
        name = _NAMES[code]
        component = _COMPONENTS[name]
        if component.size is None:
            data, at = read_sized(binary, at)
        else:
            data, at = binary[at : at + component.size], at + component.size
        try:
            text += f"/{name}" + ("" if component.size == 0 else f"/{component.decode(data)}")
        except ValueError:
            raise RemoteProtocolError(
                f"expected a value for /{name} after {text!r}, got {data.hex()!r}"
            ) from None
    return text


def split_peer(address: str) -> tuple[str, str]:
    """(where, peer) of an announced address: the address that the daemon can dial, perhaps empty,
    and the peer id at the end. `SettingsError` when it cannot be dialled.
    """
    where, mark, peer = address.rpartition("/p2p/")
    if not mark:
        raise SettingsError(
            f"expected an address that ends in /p2p/ and a peer id, found {address[:80]!r}"
        )
    id_bytes(peer)
    encode(where)
    return where, peer


def from_host_port(address: str) -> str:
    """libp2p's form of HOST:PORT; an address in libp2p's form stays. `SettingsError` for
    neither.
    """
    if address.startswith("/"):
        return address
    host, port = split_address(address)
    try:
        kind = "ip6" if ipaddress.ip_address(host).version == 6 else "ip4"
    except ValueError:
        kind = "dns"
    converted = f"/{kind}/{host}/tcp/{port}"
    encode(converted)
    return converted


def is_circuit(address: str) -> bool:
    """Whether an address leads through a relay."""
    return CIRCUIT in address


def ip_of(address: str) -> networks.Ip | None:
    """The IP address that an address begins with; None when it begins with another component."""
    return networks.ip_of(host_of(address))


def host_of(address: str) -> str:
    """The IP address or name that an address begins with; empty when there is none."""
    words = address.split("/")
    return words[2] if len(words) > 2 else ""


def tcp_port(address: str) -> int:
    """The TCP port that an address names; 0 when it names none."""
    words = address.split("/")[1:]
    for name, value in zip(words[::2], words[1::2], strict=False):
        if name == "tcp" and value.isascii() and value.isdecimal():
            return int(value)
    return 0


def with_port(address: str, port: int) -> str:
    """An address with the port where it says 0, and without a peer id at its end."""
    where = address.partition("/p2p/")[0]
    return f"{where[:-1]}{port}" if where.endswith("/tcp/0") else where
