"""What the seconds after a kill are made of, in real processes: part of `tests.benchmarks.restart`.

A coordinator and some nodes with a tiny model; SIGKILL, one process after the other, each started
again at once on its directory. Moments are seconds since the signal: those of a start from the
process's log, all others from the journal as it stands on disk, which is read every `POLL_S`.

    coordinator   starting, started: its first and its last record of a start (imports, then
                  journal, keys and ports)
                  first_back, all_back: a node has a session again, all of them have
                  commit: the first one after the signal
                  all_counted: every node's payload is in commits since
    node          starting, started: as above
                  back, ready: its session, its word that it holds the head
                  announced: its first payload
                  counted: the first commit with it
"""

import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from lockstep.cluster.local import ClusterSettings
from lockstep.console import messages
from lockstep.run_file import write_run_file
from tests.benchmarks.chaos import NICENESS, chaos_spec
from tests.benchmarks.spread import spread
from tests.processes.faulty import FaultyCluster, running
from tests.support.tiny import tiny_corpus

POLL_S = 0.02

CALM_ROUNDS = 5
"""Rounds of all nodes before the next kill."""

COORDINATOR = ("starting", "started", "first_back", "all_back", "commit", "all_counted")
NODE = ("starting", "started", "back", "ready", "announced", "counted")
"""The moments of a restart, in their order."""

OF_EVENT = {"Joined": "back", "Ready": "ready", "Announced": "announced"}
"""The moments of a node that the journal's events tell."""

Moments = dict[str, float]


def outages(directory: Path, nodes: int, kills: int) -> dict[str, Any]:
    """Kill the coordinator and then one of the nodes, `kills` times, in the run of
    `tests.benchmarks.chaos`. The spread of each moment, and every single one.
    """
    write_run_file(directory / "run.toml", chaos_spec(nodes), force=True)
    corpus = tiny_corpus(directory / "data")
    cluster = FaultyCluster(ClusterSettings(directory, directory / "run.toml", corpus, nodes))
    for node in cluster.nodes:
        node.arguments += ("--nice", NICENESS)
    coordinator, node_kills = list[Moments](), list[Moments]()
    with running(cluster):
        for kill in range(kills):
            coordinator.append(_killed(cluster, None))
            node_kills.append(_killed(cluster, kill % nodes))
    return {
        "nodes": nodes,
        "load": round(os.getloadavg()[1], 1),
        "coordinator": _summary(COORDINATOR, coordinator),
        "node": _summary(NODE, node_kills),
    }


def _killed(cluster: FaultyCluster, who: int | None) -> Moments:
    """Kill one process of a calm run, and wait until all count again."""
    head, count = cluster.head(), len(cluster.nodes)

    def is_calm() -> bool:
        full = [each for each in cluster.commits(head) if len(each.entries) == count]
        return len(full) >= CALM_ROUNDS

    cluster.until(is_calm, watch=False)
    moments = _Watch(cluster, who).until_counted()
    words = ", ".join(f"{name} {moments[name]:.2f}" for name in moments)
    messages.print(f"{cluster.target(who).name}: {words}", soft_wrap=True)
    return moments


class _Watch:
    """One kill, and the moments until everybody concerned counts again."""

    def __init__(self, cluster: FaultyCluster, who: int | None) -> None:
        self._cluster, self._who = cluster, who
        self._peers = {cluster.peer(number) for number in range(len(cluster.nodes))}
        self._killed = cluster.peer(who) if who is not None else ""
        self._head = cluster.head()
        self._sequence = self._newest()
        self._log_bytes = cluster.target(who).log.stat().st_size
        self._began_s, self._moments = time.time(), Moments()
        self._back, self._counted = set[str](), set[str]()
        cluster.kill(who)

    def until_counted(self) -> Moments:
        """Start the process again, and read until it is over."""
        self._cluster.until(self._is_over, watch=False)
        self._read_log()
        return self._moments

    def _is_over(self) -> bool:
        self._cluster.revive()
        time.sleep(POLL_S)
        for kind, event in self._events():
            self._hear(kind, event)
        for commit in self._cluster.commits(self._head):
            self._head = commit.round
            self._take({entry.author for entry in commit.entries})
        return ("all_counted" if self._who is None else "counted") in self._moments

    def _hear(self, kind: str, event: dict[str, Any]) -> None:
        peer = event.get("peer", "")
        if self._who is not None:
            name = OF_EVENT.get(kind)
            if peer == self._killed and name and (name == "back" or "back" in self._moments):
                self._note(name)
        elif kind == "Joined":
            self._back.add(peer)
            self._note("first_back")
            if self._back == self._peers:
                self._note("all_back")

    def _take(self, authors: set[str]) -> None:
        if self._who is not None:
            if self._killed in authors and "announced" in self._moments:
                self._note("counted")
            return
        self._note("commit")
        self._counted |= authors
        if self._counted == self._peers:
            self._note("all_counted")

    def _note(self, moment: str) -> None:
        self._moments.setdefault(moment, time.time() - self._began_s)

    def _newest(self) -> int:
        return int(self._cluster.query("SELECT max(sequence) FROM events")[0][0] or 0)

    def _events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        sql = "SELECT sequence, kind, body FROM events WHERE sequence > ? ORDER BY sequence"
        for sequence, kind, body in self._cluster.query(sql, self._sequence):
            self._sequence = sequence
            event = msgspec.msgpack.decode(body)
            yield kind, event if isinstance(event, dict) else {}

    def _read_log(self) -> None:
        """The moments that only the process itself knows, from its log since the signal."""
        text = self._cluster.target(self._who).log.read_bytes()[self._log_bytes :]
        for line in text.decode(errors="replace").splitlines():
            words = line.split(maxsplit=5)
            if len(words) > 4 and words[4] in ("starting", "started"):
                at = datetime.strptime(f"{words[0]} {words[1]}", "%Y-%m-%d %H:%M:%S,%f")
                self._moments.setdefault(words[4], at.timestamp() - self._began_s)


def _summary(order: Sequence[str], found: Sequence[Moments]) -> dict[str, Any]:
    """Median, least and most of each moment, and of the part that leads to it."""
    moments = {name: [each[name] for each in found if name in each] for name in order}
    return {
        "kills": len(found),
        "seconds": {name: spread(values, 3) for name, values in moments.items() if values},
        "each": [{name: round(each[name], 3) for name in order if name in each} for each in found],
    }
