"""Delay, jitter and loss where the kernel has no netem: packets wait in this process.

    the stack --> eth0 egress  --redirect--> tap `up-eth0`   [tbf: rate] --> held here --> a raw socket on eth0
    the stack <-- tap `down-eth0` <-- held here <-- [tbf: rate] tap `down-eth0` <--redirect-- eth0 ingress

Each way of the link has a tap device, whose token bucket sets the rate before this process reads a
frame, holds it for the way's delay and lets it go. Up, it goes out by a packet socket past the
interface's egress hook, or it would come back here for ever. Down, the frame is written to the tap,
which has the interface's own hardware address, so the stack takes it as its own.

The process asks for a real-time priority: a line's delay does not depend on how busy the computer
behind it is."""

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
"""Per way: a second of 1.2 Gbit/s. More are dropped, as a full buffer does."""

READ_FRAMES_MAX = 64
"""Frames read from one tap before due ones are sent."""

GRAIN_S = (0.0002, 0.002)
"""Least and most time from one look to the next while frames flow, an eighth of the shortest delay
in between: to wake for each frame takes a core for a few busy lines. What came or fell due
meanwhile did so half of it ago, on the mean."""

_READ_BYTES = FRAME_BYTES_MAX + 4  # a VLAN tag
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20
_ETH_P_IP = 0x0800


def open_tap(name: str) -> int:
    """File descriptor of a new tap device in this network namespace; the device lives as long as it
    is open."""
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
    """A socket whose frames leave an interface at once, past its queueing discipline and egress
    hook."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    wire.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    wire.bind((interface, _ETH_P_IP))
    return wire


class DelayLane:
    """One way: a tap to read, what it holds, and where the frames go."""

    def __init__(self, tap: int, send: Callable[[bytes], object], course: PacketFate) -> None:
        self.tap = tap
        self.course = course
        self._send = send
        self._held: deque[tuple[float, bytes]] = deque()

    @property
    def due_s(self) -> float | None:
        """When the next frame leaves; None: nothing is held."""
        return self._held[0][0] if self._held else None

    def take(self, now_s: float) -> None:
        """Reads what waits in the tap, up to `READ_FRAMES_MAX` frames."""
        read, tap, held, arrival_s = os.read, self.tap, self._held, self.course.arrival_s
        with contextlib.suppress(BlockingIOError):
            for _ in range(READ_FRAMES_MAX):
                frame = read(tap, _READ_BYTES)
                leaves_s = arrival_s(now_s)
                if leaves_s is not None and len(held) < HELD_FRAMES_MAX:
                    held.append((leaves_s, frame))

    def release(self, now_s: float) -> None:
        """Lets go every frame that is due."""
        held, send = self._held, self._send
        while held and held[0][0] <= now_s:
            # An interface that is down, or a full buffer further on, loses the frame: so does a
            # real wire.
            with contextlib.suppress(OSError):
                send(held.popleft()[1])


class PacketDelay:
    """Both ways of one interface; taps are opened at once, frames flow in `run`."""

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
        """Another delay, jitter or loss from now on; what is held keeps its time."""
        for name, way in (("up", link.up), ("down", link.down)):
            if way and name in self._lanes:
                self._lanes[name].course = self._course(way)

    def carry(self, control: int | None, on_control: Callable[[], bool]) -> None:
        """Carries frames until `on_control`, called when descriptor `control` is readable, returns
        False."""
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
            unseen_s = max(
                0.0, grain_s / 2 - (now_s - looked_s)
            )  # what came while it slept, did so half a sleep ago
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
        """Removes the taps; what is held is lost."""
        for lane in self._lanes.values():
            os.close(lane.tap)
        self._lanes.clear()
        self._wire.close()

    def _grain_s(self) -> float:
        """How long not to look while frames flow."""
        least_s, most_s = GRAIN_S
        shortest_s = min((lane.course.way.delay_s for lane in self._lanes.values()), default=0.0)
        return min(most_s, max(least_s, shortest_s / 8))

    def _course(self, way: LinkDirection) -> PacketFate:
        return PacketFate(way, self._uniform)


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """Real-time priority for this thread, where that is allowed; processes that it starts do not
    have it."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
