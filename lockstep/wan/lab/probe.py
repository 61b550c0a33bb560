"""Measures a link with two UDP sockets, one at each end, both held by this process.

    echo     small packets below the rate, sent back by the far end: round trip, loss by direction
    flood    large packets above the rate: the rate at which they arrive is the link's

There is one clock and one thread: no clocks to compare, nothing to install at either end. The
sockets may live in different network namespaces (`namespaces.inside`).
"""

import contextlib
import select
import socket
import statistics
import struct
import time
from dataclasses import dataclass

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from protocol.errors import UnavailableError

HEADER_BYTES = 42
"""Size of the headers of Ethernet, IPv4 and UDP: a link's rate counts whole frames."""

FLOOD_PACKET_BYTES = 1400
"""Content of one packet of a flood."""

FLOOD_S = 0.8
"""Duration of a flood."""

FLOOD_EXCESS = 1.15
"""Offered rate over asked rate: enough to fill the link, without loading the machine much more."""

UNLIMITED_BIT_S = 500_000_000
"""Offered rate of a direction without a rate."""

ECHO_PACKET_BYTES = 32
"""Content of one echo packet."""

ECHO_S = 1.0
"""Time in which echo packets are sent."""

ECHO_SHARE = 0.4
"""Share of the slower direction's rate that echo packets take: no queue may form."""

ECHO_PACKETS_PER_S_MAX = 1000
"""Limit on the rate of echo packets on a fast link."""

DRAIN_S = 0.5
"""Wait for packets that are still on their way, beyond the asked delay."""

BUFFER_BYTES = 8_000_000
"""Receive buffer of a socket: other processes may delay the reader."""

_SO_RCVBUFFORCE = 33
_STAMP = struct.Struct("!Id")  # number, instant of sending


@dataclass(frozen=True, slots=True)
class ProbedLine:
    """The measurement of one link."""

    up_bit_s: float
    """Rate from the home, in bits per second of whole frames."""

    down_bit_s: float
    """Rate to the home, in bits per second of whole frames."""

    rtt_s: float
    """Median round trip of small packets."""

    loss_up: float
    """Share of the small packets that did not reach the far end."""

    loss_down: float
    """Share of their echoes that did not come back."""

    packets: int
    """Number of small packets sent, on which the two shares rest."""


def udp_socket(address: str) -> socket.socket:
    """A non-blocking socket with a large buffer, bound to a free port."""
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    endpoint.setblocking(False)
    with contextlib.suppress(PermissionError):
        endpoint.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
    endpoint.bind((address, 0))
    return endpoint


def measure(home: socket.socket, far: socket.socket, link: HomeLink) -> ProbedLine:
    """Measures the link between two sockets of `udp_socket`; `link` holds the asked figures.

    Raises `UnavailableError` when nothing crosses it.
    """
    up, down = link.up or LinkDirection(), link.down or LinkDirection()
    echo = _Echo(home, far, link)
    echo.exchange()
    if not echo.trips_s:
        raise UnavailableError(
            f"nothing crosses the link between {home.getsockname()[0]} and {far.getsockname()[0]}"
        )
    return ProbedLine(
        up_bit_s=_flood(home, far, far.getsockname(), up, link.rtt_s),
        down_bit_s=_flood(far, home, echo.home_address, down, link.rtt_s),
        rtt_s=statistics.median(echo.trips_s),
        loss_up=1 - echo.arrived / echo.sent,
        loss_down=1 - len(echo.trips_s) / echo.arrived,
        packets=echo.sent,
    )


class _Echo:
    def __init__(self, home: socket.socket, far: socket.socket, link: HomeLink) -> None:
        slower = min(
            way.rate_bit_s or UNLIMITED_BIT_S
            for way in (link.up or LinkDirection(), link.down or LinkDirection())
        )
        packets_per_s = ECHO_SHARE * slower / 8 / (ECHO_PACKET_BYTES + HEADER_BYTES)
        self.sent = 0
        self.arrived = 0
        self.trips_s: list[float] = []
        self.home_address: tuple[str, int] = home.getsockname()
        """Address at which the far end sees the home; a router may have translated it."""
        self._home, self._far = home, far
        self._wait_s = link.rtt_s + DRAIN_S
        self._every_s = 1 / min(packets_per_s, ECHO_PACKETS_PER_S_MAX)

    def exchange(self) -> None:
        begin_s = time.monotonic()
        target = self._far.getsockname()
        end_s = begin_s + ECHO_S
        while (now_s := time.monotonic()) < end_s + self._wait_s and not (
            now_s > end_s and self._complete()
        ):
            next_s = begin_s + self.sent * self._every_s
            if now_s < end_s and now_s >= next_s:
                self._home.sendto(
                    _STAMP.pack(self.sent, now_s).ljust(ECHO_PACKET_BYTES, b"\0"), target
                )
                self.sent += 1
                continue
            wait_s = next_s - now_s if now_s < end_s else end_s + self._wait_s - now_s
            if select.select([self._home, self._far], [], [], max(0.0, wait_s))[0]:
                self._drain()

    def _complete(self) -> bool:
        return len(self.trips_s) == self.sent

    def _drain(self) -> None:
        for packet, source in _received(self._far, ECHO_PACKET_BYTES):
            self.arrived += 1
            self.home_address = source
            self._far.sendto(packet, source)
        for packet, _ in _received(self._home, ECHO_PACKET_BYTES):
            self.trips_s.append(time.monotonic() - _STAMP.unpack_from(packet)[1])


def _flood(
    sender: socket.socket,
    receiver: socket.socket,
    target: tuple[str, int],
    way: LinkDirection,
    rtt_s: float,
) -> float:
    """Floods one direction; returns the bits per second that arrive, counting whole frames."""
    frame_bits = 8 * (FLOOD_PACKET_BYTES + HEADER_BYTES)
    every_s = frame_bits / (FLOOD_EXCESS * (way.rate_bit_s or UNLIMITED_BIT_S))
    packet = bytes(FLOOD_PACKET_BYTES)
    arrivals_s: list[float] = []
    begin_s, sent = time.monotonic(), 0
    end_s = begin_s + FLOOD_S
    quiet_s = end_s + rtt_s + 8 * way.queue_bytes / (way.rate_bit_s or UNLIMITED_BIT_S) + 0.1

    def drain() -> None:
        now_s = time.monotonic()
        arrivals_s.extend(now_s for _ in _received(receiver, FLOOD_PACKET_BYTES))

    while (now_s := time.monotonic()) < quiet_s:
        due = int((min(now_s, end_s) - begin_s) / every_s)
        with contextlib.suppress(BlockingIOError):
            for _ in range(min(due - sent, 64)):
                sender.sendto(packet, target)
                sent += 1
        drain()
        if due <= sent:
            select.select([receiver], [], [], min(every_s, 0.001) if now_s < end_s else 0.02)
    if len(arrivals_s) < 2:
        raise UnavailableError(
            f"of {sent} packets to {target[0]}, sent at the link's rate, {len(arrivals_s)} arrived"
        )
    return frame_bits * (len(arrivals_s) - 1) / (arrivals_s[-1] - arrivals_s[0])


def _received(endpoint: socket.socket, size: int) -> list[tuple[bytes, tuple[str, int]]]:
    """Takes the packets of one size that wait in a socket; late packets of the other measurement
    have another size and are dropped.
    """
    packets = []
    with contextlib.suppress(BlockingIOError):
        while True:
            packets.append(endpoint.recvfrom(2048))
    return [packet for packet in packets if len(packet[0]) == size]
