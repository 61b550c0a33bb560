"""A world in one thread: a clock that jumps from action to action, and a network that one seed makes bad.

Everything random is drawn from one `random.Random(seed)`, and simultaneous actions run in the order in which they
were planned, so a seed is a history. Nothing here knows what a coordinator or a node is.
"""

import heapq
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass

Action = Callable[[], None]

ACTIONS_PER_INSTANT_MAX = 10_000
"""More than this at one instant is a loop in which time stands still."""


class World:
    """Clock, heap of planned actions, the only source of randomness, and the log of what happened."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.log: list[str] = []
        self._planned: list[tuple[int, int, Action]] = []
        self._sequence = 0

    def after(self, delay_ms: int, action: Action) -> None:
        """Plan an action; among those of one instant the first planned runs first."""
        self._sequence += 1
        heapq.heappush(self._planned, (self.now_ms + delay_ms, self._sequence, action))

    def run_until(self, done: Callable[[], bool], limit_ms: int) -> None:
        """Run planned actions until `done()` or until the clock would pass `limit_ms`."""
        at_once = 0
        while self._planned and not done() and self._planned[0][0] <= limit_ms:
            at_ms, _, action = heapq.heappop(self._planned)
            at_once = at_once + 1 if at_ms == self.now_ms else 0
            if at_once > ACTIONS_PER_INSTANT_MAX:
                raise RuntimeError(f"time stands still: {at_once} actions at {at_ms}")
            self.now_ms = at_ms
            action()

    def say(self, line: str) -> None:
        """Write a line of history."""
        self.log.append(f"{self.now_ms - 1_000_000:>8} {line}")


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is."""

    delay_ms: tuple[int, int]
    """Shortest and longest time on the way; a wide range reorders."""

    loss: float
    """Part of the messages that never arrive."""

    doubled: float
    """Part of the messages that arrive twice."""


CALM = Weather((1, 30), 0.0, 0.0)
STORM = Weather((1, 900), 0.10, 0.10)


class Network:
    """Carries actions between named parties under the present weather; a party that is cut off neither sends nor
    receives."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.weather = weather
        self.cut_off: set[Hashable] = set()
        self._world = world

    def carry(self, sender: Hashable, receiver: Hashable, deliver: Action) -> None:
        """Let `deliver` happen at the receiver after a while: once, twice or never."""
        chance, weather = self._world.random, self.weather
        for _ in range(2 if chance.random() < weather.doubled else 1):
            delay_ms = chance.randint(*weather.delay_ms)
            if chance.random() >= weather.loss and sender not in self.cut_off:
                self._world.after(delay_ms, lambda: self._arrive(receiver, deliver))

    def _arrive(self, receiver: Hashable, deliver: Action) -> None:
        if receiver not in self.cut_off:
            deliver()
