"""Traffic counters that nodes, relays and coordinator share: overhead, and counters that never
fall.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

Overhead: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Bytes up and down that transports and the operating system add to the given bytes up and down of
messages; None where they are not known."""


def unknown_overhead(up: int, down: int) -> None:
    """An `Overhead` for a machine whose kernel does not tell it."""
    return


class MonotonicCounters:
    """Keeps the highest value of each counter. Bytes in buffers make the overhead waver, and
    Prometheus takes a counter that falls for a restart.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def update(self, figures: Mapping[str, int | None]) -> Mapping[str, int]:
        """Take new figures; None stands for one that is not known now. Returns the highest value
        so far of every figure that was ever known.
        """
        for name, count in figures.items():
            if count is not None:
                self._highest[name] = max(count, self._highest.get(name, 0))
        return self._highest
