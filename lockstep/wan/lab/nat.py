"""The address translation of a home router, as nftables rules.

    table ip lockstep {
      chain out { type nat hook postrouting priority 100; oifname "wan" masquerade }
      chain in  { type filter hook input priority 0; iifname "wan" ct state new,invalid drop }
    }

This is a port-restricted cone: a connection keeps its port if the router has it free, and lets
packets in only from the address and port that it was opened to. Unasked packets are dropped in
silence: an answer, such as a reset, would make a hole-punching peer give up, and a packet that the
router took for itself would occupy its port.

The rules go to the kernel over netlink and not through `nft`: Debian's base system, the test
machines and the node image have iproute2 but no nftables, and the tests of NAT and hole punching
would be skipped there. Sources: linux/netfilter/nf_tables.h, nfnetlink.h; the kernel requires the
batch form.
"""

import os
import socket
import struct
from collections.abc import Iterable

from protocol.errors import UnavailableError

WAN_INTERFACE = "wan"

_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_ERROR = 2
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NETLINK_NETFILTER, _NFTABLES = 12, 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_NESTED = 0x8000
_FAMILY_IPV4 = 2
_INPUT, _POSTROUTING = 1, 4
_PRIORITY_FILTER, _PRIORITY_SOURCE_NAT = 0, 100
_META_IIFNAME, _META_OIFNAME = 6, 7
_CT_STATE = 0
_CT_STATE_INVALID_OR_NEW = 1 << 0 | 1 << 3
_REGISTER = 1
_EQUAL, _UNEQUAL = 0, 1
_DROP = 0
_TABLE = "lockstep"


def attribute(kind: int, value: bytes) -> bytes:
    """One netlink attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(inner))


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def _expression(name: str, *data: bytes) -> bytes:
    return nested(1, _text(1, name), nested(2, *data))


def _interface_is(key: int, name: str) -> list[bytes]:
    value = name.encode().ljust(16, b"\0")
    return [
        _expression("meta", _number(1, _REGISTER), _number(2, key)),
        _expression(
            "cmp", _number(1, _REGISTER), _number(2, _EQUAL), nested(3, attribute(1, value))
        ),
    ]


def _unasked() -> list[bytes]:
    mask = struct.pack("=I", _CT_STATE_INVALID_OR_NEW)
    return [
        _expression("ct", _number(1, _REGISTER), _number(2, _CT_STATE)),
        _expression(
            "bitwise",
            _number(1, _REGISTER),
            _number(2, _REGISTER),
            _number(3, 4),
            nested(4, attribute(1, mask)),
            nested(5, attribute(1, bytes(4))),
        ),
        _expression(
            "cmp", _number(1, _REGISTER), _number(2, _UNEQUAL), nested(3, attribute(1, bytes(4)))
        ),
    ]


def _chain(name: str, kind: str, hook: int, priority: int) -> bytes:
    return (
        _text(1, _TABLE)
        + _text(3, name)
        + nested(4, _number(1, hook), _number(2, priority))
        + _text(7, kind)
    )


def _rule(chain: str, expressions: Iterable[bytes]) -> bytes:
    return _text(1, _TABLE) + _text(2, chain) + nested(4, *expressions)


def masquerade_messages() -> list[tuple[int, bytes]]:
    """Kind and attributes of each message of the rules above."""
    drop = _expression("immediate", _number(1, 0), nested(2, nested(2, _number(1, _DROP))))
    return [
        (_NEW_TABLE, _text(1, _TABLE)),
        (_NEW_CHAIN, _chain("out", "nat", _POSTROUTING, _PRIORITY_SOURCE_NAT)),
        (
            _NEW_RULE,
            _rule("out", [*_interface_is(_META_OIFNAME, WAN_INTERFACE), _expression("masq")]),
        ),
        (_NEW_CHAIN, _chain("in", "filter", _INPUT, _PRIORITY_FILTER)),
        (_NEW_RULE, _rule("in", [*_interface_is(_META_IIFNAME, WAN_INTERFACE), *_unasked(), drop])),
    ]


def masquerade() -> None:
    """Makes this network namespace a home router; `UnavailableError` when the kernel cannot."""
    messages = masquerade_messages()
    batch = [_message(_BATCH_BEGIN, 0, 0, resource=_NFTABLES)]
    flags = _ACK | _CREATE | _APPEND
    batch += [
        _message(_NFTABLES << 8 | kind, flags, i, body)
        for i, (kind, body) in enumerate(messages, 1)
    ]
    batch += [_message(_BATCH_END, 0, len(messages) + 1, resource=_NFTABLES)]
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
            kernel.bind((0, 0))
            kernel.send(b"".join(batch))
            _await_success(kernel, {number for number, _ in enumerate(messages, 1)})
    except OSError as error:
        raise UnavailableError(
            f"the kernel refused a NAT router (nftables masquerade): {error.strerror}"
        ) from error


def _message(kind: int, flags: int, number: int, body: bytes = b"", *, resource: int = 0) -> bytes:
    content = struct.pack("!BBH", 0 if resource else _FAMILY_IPV4, 0, resource) + body
    return struct.pack("=IHHII", 16 + len(content), kind, _REQUEST | flags, number, 0) + content


def _await_success(kernel: socket.socket, awaited: set[int]) -> None:
    """Reads one acknowledgement for each message number; `OSError` with the kernel's reason."""
    kernel.settimeout(5.0)
    while awaited:
        answer = memoryview(kernel.recv(65536))
        while len(answer) >= 16:
            length, kind, _, number, _ = struct.unpack_from("=IHHII", answer)
            if kind == _ERROR and (code := -struct.unpack_from("=i", answer, 16)[0]):
                raise OSError(code, os.strerror(code))
            awaited.discard(number)
            answer = answer[length + (-length % 4) :]
