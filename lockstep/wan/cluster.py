"""A cluster whose processes live in a laboratory, each on a computer of its own."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.cluster.names import COORDINATOR, RELAY
from lockstep.wan.faults import Break, LineFault, Mend, Schedule
from lockstep.wan.lab.laboratory import Counters, Laboratory

PORTS = {COORDINATOR: 50700, RELAY: 50710}
"""Listening ports of the processes that others dial; each has a computer to itself."""

LinkKind: TypeAlias = dict[str, str | bool]
"""Fixed facts of an open link: its transport, whether libp2p relays it, whether the node dialled
it."""


class WanCluster(Cluster):
    """Each process runs on the computer of its name; faults strike lines and processes."""

    def __init__(
        self, settings: ClusterSettings, laboratory: Laboratory, faults: Sequence[LineFault] = ()
    ) -> None:
        super().__init__(settings, laboratory.inside)
        self.laboratory = laboratory
        self.usage = {node.name: LineUse(laboratory.counters(node.name)) for node in self.nodes}
        self.link_kinds: dict[str, dict[str, LinkKind]] = {node.name: {} for node in self.nodes}
        """Kind of each node's newest link to each other process, by their names."""
        self.happened: list[str] = []
        """Everything that happened, in words with the time."""
        self._schedule = Schedule(faults)
        self._opened_s: float | None = None

    def listens(self, name: str) -> str:
        return f"{self.laboratory.address(name)}:{PORTS[name]}"

    def watch(self) -> list[str]:
        """Also begins and ends faults that are due, and counts the traffic of the lines."""
        happened = [*super().watch(), *self._break_and_mend()]
        self.laboratory.check()
        self.count_lines()
        self._note_link_kinds()
        seconds = time.monotonic() - self._opened_s if self._opened_s else 0.0
        self.happened += [f"{seconds:.1f} s: {text}" for text in happened]
        return happened

    def wait(self) -> None:
        """Also counts the traffic of the lines until the end."""
        super().wait()
        self.count_lines()

    def count_lines(self) -> None:
        """Reads the counters of every node's line."""
        for name, usage in self.usage.items():
            usage.count(self.laboratory.counters(name))

    def _note_link_kinds(self) -> None:
        names = {child.status.get("peer_id"): child.name for child in (*self.relays, *self.nodes)}
        for node in self.nodes:
            for link in node.status.get("links", {}).get("open", ()):
                peer = names.get(link["peer"], link["peer"])
                self.link_kinds[node.name][peer] = link_kind(link)

    def _break_and_mend(self) -> list[str]:
        status = self.coordinator.status
        if self._opened_s is None:
            if not _opened(status):
                return []
            self._opened_s = time.monotonic()
        due = self._schedule.take_due(
            time.monotonic() - self._opened_s, int(status.get("round", -1))
        )
        for change in due:
            self._apply(change)
        return [_in_words(change) for change in due]

    def _apply(self, change: Break | Mend) -> None:
        fault, laboratory = change.fault, self.laboratory
        match change, fault.kind:
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


def link_kind(link: Mapping[str, Any]) -> LinkKind:
    """The facts of an open link in a node's status that do not change while it is open."""
    return {name: link[name] for name in ("transport", "relayed", "dialled")}


class LineUse:
    """Traffic of a line: total bytes and recent rates."""

    def __init__(self, first: Counters) -> None:
        self.total = Counters(0, 0)
        """Bytes since the first count."""
        self.up_bit_s = self.down_bit_s = 0.0
        """Rates between the last two counts."""
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


def _in_words(change: Break | Mend) -> str:
    return f"{'fault' if isinstance(change, Break) else 'mended'} {change.fault}"
