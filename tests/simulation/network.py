"""The network between the parties: messages that are lost, late, doubled or out of order, and
streams that break.

    note      one message by itself (an offer, a request, a reply): delay, loss, doubling,
              reordering
    stream    an ordered sequence of messages that arrives whole up to the point where it breaks,
              as over TCP. A loss is a delay; a message that is cut off waits until one end gives
              up or the other is told.

Directions may be cut one by one, so links can be one-way. Parties are named by strings; a party
lives as long as its current process.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tests.simulation.world import Process, World

RETRANSMIT_MS = 200
"""Delay of a message of a stream that was lost once."""

STUCK_MS = 400
"""Pause after which a stream that is cut off tries again."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is."""

    delay_ms: tuple[int, int]
    """Shortest and longest time on the way; a wide range reorders."""
    loss: float
    """Share of the notes that never arrive."""
    doubled: float
    """Share of the notes that arrive twice."""
    corrupt: float
    """Share of the blobs in which a byte changes at their source."""
    broken: float
    """Share of the messages on streams with which the stream breaks."""


class Network:
    """The connections between parties at present, and their weather."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world, self.weather = world, weather
        self.cut: set[tuple[Hashable, Hashable]] = set()
        self.processes: dict[str, Process] = {}
        self.ends: dict[str, Any] = {}
        """Link servers that listen for peers, by party."""
        self.read_at: dict[str, float] = {}
        """Time at which each peer was last read from, in seconds."""
        self.counts: dict[str, int] = {"lost": 0, "doubled": 0, "corrupt": 0, "broken": 0}

    def runs(self, party: str) -> bool:
        """Whether the party has a process that is not dead."""
        process = self.processes.get(party)
        return process is not None and process.state != "dead"

    def chance(self, kind: str, probability: float) -> bool:
        """Draw whether it happens this time, and count it if so."""
        if probability and self.world.random.random() < probability:
            self.counts[kind] += 1
            return True
        return False

    def delay_ms(self) -> float:
        """Draw the time of one message on its way: most are quick, some are not."""
        shortest, longest = self.weather.delay_ms
        return shortest + (longest - shortest) * self.world.random.random() ** 3

    def note(self, sender: str, receiver: str, deliver: Callable[[], Any]) -> None:
        """Call `deliver` in the receiver's process after a while: once, twice or never."""
        for _ in range(2 if self.chance("doubled", self.weather.doubled) else 1):
            if not self.chance("lost", self.weather.loss) and (sender, receiver) not in self.cut:
                self.world.after(self.delay_ms(), lambda: self._arrive(sender, receiver, deliver))

    def _arrive(self, sender: str, receiver: str, deliver: Callable[[], Any]) -> None:
        process = self.processes.get(receiver)
        if process is not None and process.state != "dead" and (sender, receiver) not in self.cut:
            self.world.call_soon(deliver, context=process.context)


class Stream:
    """One direction of a connection between two processes."""

    def __init__(
        self, network: Network, sender: str, receiver: str, deliver: Callable[[Any], None]
    ) -> None:
        self._network, self._sender, self._receiver = network, sender, receiver
        self._process = network.processes[receiver]
        self._deliver = deliver
        self._waiting: list[Any] = []
        self._free_us = 0
        self._moving = False
        self.closed = False

    def send(self, message: Any) -> None:
        """Put a message behind those before it."""
        self._waiting.append(message)
        if not self._moving:
            self._moving = True
            self._move()

    def _move(self) -> None:
        world, network = self._network.world, self._network
        if self.closed:
            return
        if (self._sender, self._receiver) in network.cut:
            world.after(STUCK_MS, self._move)
            return
        while self._waiting:
            late_ms = RETRANSMIT_MS if network.chance("lost", network.weather.loss) else 0
            at_us = world.now_us + int(1000 * (network.delay_ms() + late_ms))
            self._free_us = max(self._free_us, at_us)
            message = self._waiting.pop(0)
            world.at(self._free_us, lambda message=message: self._arrive(message))
        self._moving = False

    def _arrive(self, message: Any) -> None:
        if not self.closed and self._process.state != "dead":
            self._network.world.call_soon(self._deliver, message, context=self._process.context)
