"""A cluster whose processes live in a laboratory, each on its own computer."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.cluster.names import COORDINATOR, RELAY
from lockstep.wan.faults import Break, Fault, Mend, Schedule
from lockstep.wan.lab.laboratory import Counters, Laboratory

PORTS = {COORDINATOR: 50700, RELAY: 50710}
"""Each has a computer to itself."""

Way: TypeAlias = dict[str, str | bool]
"""How a link goes: its transport, whether libp2p relays it, and whether the node dialled it
itself."""


class WanCluster(Cluster):
    """Each process on the computer of its name, and what happens to their lines."""

    def __init__(
        self, settings: ClusterSettings, laboratory: Laboratory, faults: Sequence[Fault] = ()
    ) -> None:
        super().__init__(settings, laboratory.inside)
        self.laboratory = laboratory
        self.usage = {node.name: LineUse(laboratory.counters(node.name)) for node in self.nodes}
        self.ways: dict[str, dict[str, Way]] = {node.name: {} for node in self.nodes}
        """How each node's newest link to each other process went, by their names."""
        self.happened: list[str] = []
        """Everything that broke and healed, in words with the time."""
        self._schedule = Schedule(faults)
        self._opened_s: float | None = None

    def listens(self, name: str) -> str:
        """On its computer's own address."""
        return f"{self.laboratory.address(name)}:{PORTS[name]}"

    def watch(self) -> list[str]:
        """As of any cluster; and the faults that are due by what it saw, and what crossed the
        lines."""
        happened = [*super().watch(), *self._break_and_mend()]
        self.laboratory.check()
        self.count_lines()
        self._note_ways()
        seconds = time.monotonic() - self._opened_s if self._opened_s else 0.0
        self.happened += [f"{seconds:.1f} s: {text}" for text in happened]
        return happened

    def wait(self) -> None:
        """As of any cluster; and what crossed the lines until then."""
        super().wait()
        self.count_lines()

    def count_lines(self) -> None:
        """Takes the counters of every node's line."""
        for name, usage in self.usage.items():
            usage.count(self.laboratory.counters(name))

    def _note_ways(self) -> None:
        names = {child.status.get("peer_id"): child.name for child in (*self.relays, *self.nodes)}
        for node in self.nodes:
            for link in node.status.get("links", {}).get("open", ()):
                self.ways[node.name][names.get(link["peer"], link["peer"])] = way(link)

    def _break_and_mend(self) -> list[str]:
        status = self.coordinator.status
        if self._opened_s is None:
            if not _opened(status):
                return []
            self._opened_s = time.monotonic()
        due = self._schedule.take_due(
            time.monotonic() - self._opened_s, int(status.get("round", -1))
        )
        for what in due:
            self._do(what)
        return [_in_words(what) for what in due]

    def _do(self, what: Break | Mend) -> None:
        fault, laboratory = what.fault, self.laboratory
        match what, fault.kind:
            case Mend(), _:
                laboratory.restore(fault.target)
            case Break(), "kill":
                children = {child.name: child for child in self.children}
                with contextlib.suppress(ProcessLookupError):
                    os.kill(children[fault.target].pid or 0, signal.SIGKILL)
            case Break(), "slow":
                laboratory.slow(fault.target, 1 / fault.divisor)
            case Break(), "cut-up":
                laboratory.cut(fault.target, "up")
            case Break(), "cut-down":
                laboratory.cut(fault.target, "down")
            case _:
                laboratory.cut(fault.target)


def way(link: Mapping[str, Any]) -> Way:
    """Of an open link in a node's status, what does not change while it is open."""
    return {name: link[name] for name in ("transport", "relayed", "dialled")}


class LineUse:
    """What crossed a line, in all and lately."""

    def __init__(self, first: Counters) -> None:
        self.total = Counters(0, 0)
        """Bytes since the beginning."""
        self.up_bit_s = self.down_bit_s = 0.0
        """Rates between the two last counts."""
        self._first = self._last = first
        self._last_s = time.monotonic()

    def count(self, now: Counters) -> None:
        """Takes the counters as they are now."""
        now_s = time.monotonic()
        passed_s = max(now_s - self._last_s, 1e-3)
        self.up_bit_s = 8 * (now.up_bytes - self._last.up_bytes) / passed_s
        self.down_bit_s = 8 * (now.down_bytes - self._last.down_bytes) / passed_s
        self.total = Counters(
            now.up_bytes - self._first.up_bytes, now.down_bytes - self._first.down_bytes
        )
        self._last, self._last_s = now, now_s


def _opened(status: Mapping[str, Any]) -> bool:
    return int(status.get("round", -1)) >= 0


def _in_words(what: Break | Mend) -> str:
    return f"{'fault' if isinstance(what, Break) else 'mended'} {what.fault}"
