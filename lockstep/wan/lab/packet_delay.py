"""Delay, jitter and loss where the kernel has no netem: packets wait in this process.

    up      stack --> eth0 egress --redirect--> tap up-eth0 [tbf: rate]
                  --> held here --> raw socket on eth0
    down    eth0 ingress --redirect--> tap down-eth0 [tbf: rate]
                  --> held here --> tap down-eth0 --> stack

Each direction of the link has a tap device, whose token bucket sets the rate. This process reads a
frame, holds it for the delay and lets it go. Up, the frame leaves by a packet socket past the
interface's egress hook, or it would come back here forever. Down, it is written to the tap, which
has the hardware address of the interface, so the stack accepts it.

The process asks for a real-time priority: the delay of a line does not depend on the load of the
computer behind it.
"""

import contextlib
import fcntl
import os
import random
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator

from lockstep.wan.lab.home_link import FRAME_BYTES_MAX, HomeLink, LinkDirection, PacketFate
from lockstep.wan.lab.tc_commands import tap_name

HELD_FRAMES_MAX = 100_000
"""Limit on the frames held in one direction: a second of 1.2 Gbit/s. Further ones are dropped, as
by a full buffer."""

READ_FRAMES_MAX = 64
"""Limit on the frames read from one tap before due ones are sent."""

GRAIN_S = (0.0002, 0.002)
"""Shortest and longest time from one look to the next while frames flow; between them it is an
eighth of the shortest delay. Waking for each frame would take a whole core for a few busy lines.
Frames that came or fell due meanwhile did so half of this time ago, on average."""

_READ_BYTES = FRAME_BYTES_MAX + 4  # a VLAN tag
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_ETH_P_IP = 0x0800


def open_tap(name: str) -> int:
    """Opens a new tap device in this network namespace; it lives as long as the descriptor is
    open.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(
            descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
        )
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_wire(interface: str) -> socket.socket:
    """Opens a socket whose frames leave an interface at once, past its queueing discipline and
    egress hook.
    """
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    wire.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    wire.bind((interface, _ETH_P_IP))
    return wire


class DelayLane:
    """One direction: a tap to read, the frames that are held, and the function that sends them."""

    def __init__(self, tap: int, send: Callable[[bytes], object], course: PacketFate) -> None:
        self.tap = tap
        self.course = course
        self._send = send
        self._held: deque[tuple[float, bytes]] = deque()

    @property
    def due_s(self) -> float | None:
        """Instant at which the next frame leaves; None: no frame is held."""
        return self._held[0][0] if self._held else None

    def take(self, now_s: float) -> None:
        """Reads the frames that wait in the tap, at most `READ_FRAMES_MAX`."""
        read, tap, held, arrival_s = os.read, self.tap, self._held, self.course.arrival_s
        with contextlib.suppress(BlockingIOError):
            for _ in range(READ_FRAMES_MAX):
                frame = read(tap, _READ_BYTES)
                leaves_s = arrival_s(now_s)
                if leaves_s is not None and len(held) < HELD_FRAMES_MAX:
                    held.append((leaves_s, frame))

    def release(self, now_s: float) -> None:
        """Sends every frame that is due."""
        held, send = self._held, self._send
        while held and held[0][0] <= now_s:
            # An interface that is down, or a full buffer further on, loses the frame, as on a real
            # wire.
            with contextlib.suppress(OSError):
                send(held.popleft()[1])


class PacketDelay:
    """Both directions of one interface; taps are opened at once, frames flow in `carry`."""

    def __init__(self, interface: str, link: HomeLink, seed: int) -> None:
        self._uniform = random.Random(seed).random
        self._lanes: dict[str, DelayLane] = {}
        self._wire = open_wire(interface)
        if link.up:
            self._lanes["up"] = DelayLane(
                open_tap(tap_name("up", interface)), self._wire.send, self._course(link.up)
            )
        if link.down:
            tap = open_tap(tap_name("down", interface))
            self._lanes["down"] = DelayLane(
                tap, lambda frame: os.write(tap, frame), self._course(link.down)
            )

    def change(self, link: HomeLink) -> None:
        """Sets delay, jitter and loss for frames from now on; held frames keep their instants."""
        for name, way in (("up", link.up), ("down", link.down)):
            if way and name in self._lanes:
                self._lanes[name].course = self._course(way)

    def carry(self, control: int | None, on_control: Callable[[], bool]) -> None:
        """Carries frames until `on_control`, called when descriptor `control` is readable, returns
        False.
        """
        lanes = list(self._lanes.values())
        taps = {lane.tap: lane for lane in lanes}
        watched = [*taps, *([] if control is None else [control])]
        clock, grain_s = time.monotonic, self._grain_s()
        while True:
            looked_s = clock()
            due = [lane.due_s for lane in lanes if lane.due_s is not None]
            readable, _, _ = select.select(
                watched, [], [], max(0.0, min(due) - looked_s) if due else None
            )
            now_s = clock()
            # Frames that came during the sleep did so half a sleep ago, on average.
            unseen_s = max(0.0, grain_s / 2 - (now_s - looked_s))
            for descriptor in readable:
                if descriptor in taps:
                    taps[descriptor].take(now_s - unseen_s)
                elif on_control():
                    grain_s = self._grain_s()
                else:
                    return
            for lane in lanes:
                lane.release(now_s + grain_s / 2)
            time.sleep(grain_s)

    def close(self) -> None:
        """Removes the taps; held frames are lost."""
        for lane in self._lanes.values():
            os.close(lane.tap)
        self._lanes.clear()
        self._wire.close()

    def _grain_s(self) -> float:
        """Time from one look to the next while frames flow."""
        least_s, most_s = GRAIN_S
        shortest_s = min((lane.course.way.delay_s for lane in self._lanes.values()), default=0.0)
        return min(most_s, max(least_s, shortest_s / 8))

    def _course(self, way: LinkDirection) -> PacketFate:
        return PacketFate(way, self._uniform)


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """Gives this thread real-time priority, where that is allowed; processes that it starts do not
    inherit it.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
