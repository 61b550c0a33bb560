"""Every TCP connection of this computer as its kernel counts it, asked over netlink (sock_diag, as
`ss -i` does).

    dump                 all open connections, now
    a group's messages   each connection once more in the moment it is destroyed: its last figures, or zeros where its
                         process reset it (closed it with a linger time of 0)

From a connection's `tcp_info` follow the bytes of its frames on the line: what was sent,
retransmissions included, and for each segment, acknowledgements too, an Ethernet, an IP and a TCP
header. Not seen, and small: the first answer of who was called, some options of first segments and
of selective acknowledgements, and content that arrived twice.

No privilege is needed. Written out, because a netlink library is a hundred modules for these two
messages. Sources: linux/sock_diag.h, inet_diag.h, tcp.h (a tcp_info with `tcpi_bytes_sent`: Linux
4.19).
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.errors import UnavailableError

_SOCK_DIAG, _BY_FAMILY, _ERROR, _DONE = 4, 20, 2, 3
_REQUEST_DUMP = 0x1 | 0x300
_GROUPS_DESTROYED = 1 << 0 | 1 << 2  # TCP over IPv4, TCP over IPv6
_WITH_INFO, _INFO = 1 << 1, 2
_STATES = 0xFFF & ~(
    1 << 6 | 1 << 7 | 1 << 10
)  # not TIME_WAIT, CLOSE and LISTEN: no figures of their own
_HEADER, _DIAG = struct.Struct("=IHHII"), struct.Struct("=4B2H16s16sI2I5I")
_PORTS = struct.Struct("!2H")
_ATTRIBUTE = struct.Struct("=HH")
_OPTIONS, _RECEIVED_AND_SEGMENTS, _SENT = (
    struct.Struct("=5xB"),
    struct.Struct("=128xQ2I"),
    struct.Struct("=200xQ"),
)
_TIMESTAMPS = 1
_MAPPED = bytes(10) + b"\xff\xff"

ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, TCP_BYTES, TIMESTAMP_BYTES = 14, 20, 40, 20, 12
"""Headers of a segment's frame; with the timestamps that nearly all connections have."""

RECEIVE_BYTES = 1 << 16
"""A netlink message never is larger."""

ANSWER_SECONDS = 2.0
"""The kernel answers in milliseconds, also for ten thousand connections."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection, seen from one of its ends."""

    cookie: int
    """Its name: never used again before a restart of the machine."""

    inode: int
    """By which a file descriptor refers to it; 0: its process has closed it, or it is destroyed."""

    local_port: int

    loopback: bool
    """Both ends have one address: nothing leaves the machine."""

    up_bytes: int
    """Of the frames that it sent."""

    down_bytes: int
    """Of the frames that it received, without content that its process has not read yet."""


class TcpCounters:
    """The line to the kernel, for the network namespace in which it is made."""

    def __init__(self) -> None:
        """`UnavailableError` where the system is not Linux, is too old, or does not let this
        process ask.
        """
        try:
            self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
            self._hearing = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG
            )
            self._asking.settimeout(ANSWER_SECONDS)
            self._hearing.bind((0, _GROUPS_DESTROYED))
        except (AttributeError, OSError) as error:
            raise UnavailableError(f"the kernel does not tell of connections: {error}") from None

    def open(self) -> list[Connection]:
        """All connections that are not destroyed yet; `UnavailableError` where the kernel does not
        say.
        """
        try:
            return [
                each
                for family in (socket.AF_INET, socket.AF_INET6)
                for each in self._dumped(family)
            ]
        except OSError as error:
            raise UnavailableError(f"the kernel does not tell of connections: {error}") from None

    def destroyed(self) -> list[Connection]:
        """Those that were destroyed since the last call; when they are too many at once, some of
        them are missing.
        """
        found = list[Connection]()
        while True:
            try:
                found += [
                    connection
                    for _, connection in parsed(self._hearing.recv(RECEIVE_BYTES))
                    if connection
                ]
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    return found

    def close(self) -> None:
        """Let go."""
        self._asking.close()
        self._hearing.close()

    def _dumped(self, family: int) -> Iterator[Connection]:
        asked = struct.pack("=4BI48x", family, socket.IPPROTO_TCP, _WITH_INFO, 0, _STATES)
        self._asking.send(
            _HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + asked
        )
        done = False
        while not done:
            for kind, connection in parsed(self._asking.recv(RECEIVE_BYTES)):
                done = done or kind == _DONE
                if connection:
                    yield connection


def parsed(answer: bytes) -> Iterator[tuple[int, Connection | None]]:
    """Kind and connection of each netlink message; `OSError` where one says so."""
    start = 0
    while start + _HEADER.size <= len(answer):
        length, kind, _, _, _ = _HEADER.unpack_from(answer, start)
        message = answer[start + _HEADER.size : start + length]
        if kind == _ERROR and (code := -struct.unpack_from("=i", message)[0]):
            raise OSError(code, os.strerror(code))
        yield kind, _connection(message) if kind == _BY_FAMILY else None
        start += max(length + (-length % 4), _HEADER.size)


def _connection(message: bytes) -> Connection | None:
    """None where the kernel has no figures: of what is not a connection any more, or never was
    one.
    """
    family, _, _, _, _, _, local, remote, _, low, high, _, unread, _, _, inode = _DIAG.unpack_from(
        message
    )
    info = _attribute(message[_DIAG.size :], _INFO)
    if info is None or len(info) < _SENT.size:
        return None
    ip_bytes = IPV4_BYTES if family == socket.AF_INET or local.startswith(_MAPPED) else IPV6_BYTES
    options = TIMESTAMP_BYTES if _OPTIONS.unpack_from(info)[0] & _TIMESTAMPS else 0
    header = ETHERNET_BYTES + ip_bytes + TCP_BYTES + options
    received, segments_out, segments_in = _RECEIVED_AND_SEGMENTS.unpack_from(info)
    return Connection(
        cookie=high << 32 | low,
        inode=inode,
        local_port=_PORTS.unpack_from(message, 4)[0],
        loopback=local == remote,
        up_bytes=_SENT.unpack_from(info)[0] + header * segments_out,
        down_bytes=received - (unread if inode else 0) + header * segments_in,
    )


def _attribute(attributes: bytes, wanted: int) -> bytes | None:
    start = 0
    while start + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, start)
        if kind == wanted:
            return attributes[start + _ATTRIBUTE.size : start + length]
        start += max(length + (-length % 4), _ATTRIBUTE.size)
    return None
