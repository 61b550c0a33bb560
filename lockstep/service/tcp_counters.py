"""Byte counters of every TCP connection of this computer, read from the kernel over netlink
(sock_diag, as `ss -i` does).

    dump                 all open connections, now
    a group's messages   each connection once more when it is destroyed: its last figures, or zeros
                         if its process reset it (closed it with a linger time of 0)

The bytes of a connection's frames follow from its `tcp_info`: all bytes sent, retransmissions
included, and for each segment, acknowledgements too, an Ethernet, an IP and a TCP header. Not seen,
and small: the first answer of the computer that was called, some options of first segments and of
selective acknowledgements, and content that arrived twice.

No privilege is needed. The two messages are unpacked here and not by pyroute2, which can parse them
too: its import loads 163 modules in some 0.2 s of CPU time, in every node. Sources:
linux/sock_diag.h, inet_diag.h, tcp.h (a tcp_info with `tcpi_bytes_sent`: Linux 4.19).
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
_STATES = 0xFFF & ~(1 << 6 | 1 << 7 | 1 << 10)  # TIME_WAIT, CLOSE, LISTEN have no figures
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
"""Bytes of the headers in a segment's frame; nearly all connections have timestamps."""

RECEIVE_BYTES = 1 << 16
"""Size of the read buffer: no netlink message is larger."""

ANSWER_S = 2.0
"""Longest wait for the kernel; it needs milliseconds, even for ten thousand connections."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection, seen from one of its ends."""

    cookie: int
    """The kernel's name of the connection, unique until a restart of the machine."""

    inode: int
    """Inode of the socket's file descriptors; 0: closed by its process, or destroyed."""

    local_port: int

    loopback: bool
    """Both ends have the same address: nothing leaves the machine."""

    up_bytes: int
    """Bytes of the frames sent."""

    down_bytes: int
    """Bytes of the frames received, without content that the process has not read yet."""

    ends: tuple[bytes, bytes]
    """Address and port of this end, and of the other: 6 bytes over IPv4, 18 over IPv6."""

    @property
    def far_host(self) -> bytes:
        """Address of the other end."""
        return self.ends[1][:-2]


class TcpCounters:
    """Sockets to the kernel, for the network namespace in which they are made."""

    def __init__(self) -> None:
        """Raises `UnavailableError` when the system is not Linux, or does not let this process
        ask.
        """
        try:
            self._asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
            self._hearing = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG
            )
            self._asking.settimeout(ANSWER_S)
            self._hearing.bind((0, _GROUPS_DESTROYED))
        except (AttributeError, OSError) as error:
            raise UnavailableError(f"the kernel does not list TCP connections: {error}") from None

    def read_open(self) -> list[Connection]:
        """Reads all connections that are not destroyed; `UnavailableError` when the kernel does not
        answer.
        """
        try:
            return [
                each
                for family in (socket.AF_INET, socket.AF_INET6)
                for each in self._dumped(family)
            ]
        except OSError as error:
            raise UnavailableError(f"the kernel does not list TCP connections: {error}") from None

    def take_destroyed(self) -> list[Connection]:
        """Takes the connections that were destroyed since the last call; the kernel drops some when
        they are too many at once.
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
        """Closes both sockets."""
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
    """Kind and connection of each netlink message; `OSError` for a message that reports one."""
    start = 0
    while start + _HEADER.size <= len(answer):
        length, kind, _, _, _ = _HEADER.unpack_from(answer, start)
        message = answer[start + _HEADER.size : start + length]
        if kind == _ERROR and (code := -struct.unpack_from("=i", message)[0]):
            raise OSError(code, os.strerror(code))
        yield kind, _connection(message) if kind == _BY_FAMILY else None
        start += max(length + (-length % 4), _HEADER.size)


def _connection(message: bytes) -> Connection | None:
    """The connection of one message; None for one without figures, such as an unconnected
    socket.
    """
    family, _, _, _, _, _, local, remote, _, low, high, _, unread, _, _, inode = _DIAG.unpack_from(
        message
    )
    info = _attribute(message[_DIAG.size :], _INFO)
    if info is None or len(info) < _SENT.size:
        return None
    local, remote = _address(family, local), _address(family, remote)
    ip_bytes = IPV4_BYTES if len(local) == 4 else IPV6_BYTES
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
        ends=(local + message[4:6], remote + message[6:8]),
    )


def _address(family: int, words: bytes) -> bytes:
    """The 4 or 16 bytes of an address; a socket for both kinds has IPv4's within IPv6's."""
    if family == socket.AF_INET:
        return words[:4]
    return words.removeprefix(_MAPPED)


def _attribute(attributes: bytes, wanted: int) -> bytes | None:
    start = 0
    while start + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, start)
        if kind == wanted:
            return attributes[start + _ATTRIBUTE.size : start + length]
        start += max(length + (-length % 4), _ATTRIBUTE.size)
    return None
