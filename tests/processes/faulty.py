"""A cluster whose processes and wires take faults, and two ways to judge the result.

    node-1 --line--> coordinator    one proxy per node in front of the coordinator
    node-2 --door--> node-1         one proxy in front of each node; the node announces its address

While it runs the judge is the journal as it stands on disk: the commits in order, and the rounds
that all nodes reported with one digest. Afterwards it is a replay of the log from genesis, compared
with every checkpoint.
"""

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coordinator.journal import JOURNAL_NAME
from lockstep.audit.findings import Findings
from lockstep.audit.published import PublishedCheckpoint
from lockstep.audit.records import RecordInFiles
from lockstep.audit.verify import EvidenceCheck, replay
from lockstep.audit.walk import LogWalk
from lockstep.cluster.child import Child
from lockstep.cluster.local import STOP_S, Cluster, ClusterSettings
from lockstep.service.keys import KEY_NAME, load_or_create_key
from node.replica.replica import Replica
from protocol.codec.commits import Commit, SignedCommit, open_commit
from protocol.handshake import public_bytes
from protocol.ids import peer_id
from tests.processes.proxy import Proxy

PATIENCE_S = 150
"""Longer than a process needs to start on a machine that others use too; a test that waits this
long has failed."""

POLL_S = 0.03

NODE_FLAGS = ("--device", "cpu", "--threads", "1", "--nice", "0", "--micro-batch", "8")


class FaultyCluster(Cluster):
    """A coordinator and nodes, each reached through proxies. Numbers name nodes; None names the
    coordinator.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        super().__init__(settings)
        self.directory, self.data = settings.directory, settings.data
        self.left = False
        self._asleep: set[int | None] = set()
        self.lines = [Proxy() for _ in self.nodes]
        self.doors = [Proxy() for _ in self.nodes]
        self.coordinator = self._child("coordinator", "coordinator", str(settings.run_file))
        self.nodes = [self._node(number) for number in range(settings.nodes)]

    def _node(self, number: int) -> Child:
        """A node that listens on the port of its door, at another address of this machine, which
        nobody else has.
        """
        door = self.doors[number]
        door.target = (f"127.0.1.{number + 1}", door.port)
        listen = f"{door.target[0]}:{door.port}"
        return self.child(f"node-{number}", "--listen", listen, "--advertise", door.address)

    def child(self, name: str, *flags: str) -> Child:
        """A node's process in a directory of its name; not started."""
        return self._child(
            name, "join", "--data", str(self.data), "--name", name, *NODE_FLAGS, *flags
        )

    def _child(self, name: str, *words: str) -> Child:
        directory = self.directory / name
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
        environment = {
            **kept,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return Child(
            name,
            directory,
            [*words, "--directory", str(directory), "--admin", "127.0.0.1:0"],
            environment,
        )

    # ---- from start to stop

    def start(self) -> None:
        """Start the coordinator, then the nodes."""
        self.coordinator.start("--listen", "127.0.0.1:0")
        self.address = self.wait_for_coordinator()
        host, _, port = self.address.rpartition(":")
        for node, line in zip(self.nodes, self.lines, strict=True):
            line.target = (host, int(port))
            node.start(line.address)

    def watch(self) -> list[str]:
        """Start again what died, and take the newest status of whoever can say it."""
        happened = self.revive()
        for number in (None, *range(len(self.nodes))):
            if number not in self._asleep:
                self.target(number).refresh()
        return happened

    def revive(self) -> list[str]:
        """Start again what died, each node at its own line; what it died of, in words."""
        happened = []
        addresses = [("--listen", self.address), *((line.address,) for line in self.lines)]
        for child, where in zip((self.coordinator, *self.nodes), addresses, strict=True):
            if child.exit_status not in (None, 0):
                happened.append(
                    f"{child.name} ended with {child.exit_status}: {child.last_words()}"
                )
                child.restarts = 0  # the test killed it: a restart would not repeat the cause
                child.restart(*where)
        return happened

    def leave(self) -> None:
        """Asks the nodes, then the coordinator, to leave; each node keeps a checkpoint.

        A process that leaves finishes its round first, and on a busy machine the slots of rounds
        stretch.
        """
        self.left = True
        self.stop(PATIENCE_S)

    def stop(self, patience_s: float = STOP_S) -> None:
        """End every process and every proxy."""
        self.resume_all()
        try:
            super().stop(patience_s)
        finally:
            for proxy in (*self.lines, *self.doors):
                proxy.close()
            self.lines, self.doors = [], []

    def until(self, condition: Callable[[], object], *, watch: bool = True) -> None:
        """Watch until the condition holds; fails with everybody's last words. Without `watch`, what
        dies stays dead.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.last_words()
            if watch:
                self.watch()
            time.sleep(POLL_S)

    def last_words(self) -> str:
        """What each process said last, and what it thinks of the run."""
        said = []
        for child in (self.coordinator, *self.nodes):
            phase = f"{child.status.get('phase')}, round {child.status.get('round')}"
            said.append(f"{child.name} ({child.exit_status}): {phase}; {child.last_words()}")
        return "\n".join(said)

    # ---- faults

    def target(self, number: int | None) -> Child:
        """The node of this number, or the coordinator."""
        return self.coordinator if number is None else self.nodes[number]

    def kill(self, number: int | None) -> None:
        """SIGKILL; returns when the process is gone, and its last status with it."""
        self._asleep.discard(number)
        child = self.target(number)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.wait(time.monotonic() + PATIENCE_S)
        child.status = {}

    def pause(self, number: int | None) -> None:
        """SIGSTOP: the machine sleeps, its sockets stay open."""
        self._asleep.add(number)
        self._signal(self.target(number), signal.SIGSTOP)

    def resume(self, number: int | None) -> None:
        """SIGCONT."""
        self._asleep.discard(number)
        self._signal(self.target(number), signal.SIGCONT)

    def resume_all(self) -> None:
        """Nothing sleeps any more."""
        for number in list(self._asleep):
            self.resume(number)

    def _signal(self, child: Child, number: signal.Signals) -> None:
        if child.pid is not None and child.exit_status is None:
            os.kill(child.pid, number)

    # ---- what is on disk

    @property
    def journal(self) -> Path:
        """The coordinator's."""
        return self.coordinator.directory / JOURNAL_NAME

    def query(self, sql: str, *arguments: Any) -> list[Any]:
        """Rows of the journal, as far as it is written; none before there is one."""
        if not self.journal.exists():
            return []
        with contextlib.closing(
            sqlite3.connect(f"{self.journal.absolute().as_uri()}?mode=ro", uri=True)
        ) as database:
            return database.execute(sql, arguments).fetchall()

    def signed(self, after: int = -1) -> list[SignedCommit]:
        """Commits of rounds after `after`, in order, as nodes are told them."""
        sql = "SELECT body, signature, author_list FROM commits WHERE round > ? ORDER BY round"
        return [SignedCommit(*row) for row in self.query(sql, after)]

    def commits(self, after: int = -1) -> list[Commit]:
        """The same, opened."""
        key = public_bytes(load_or_create_key(self.coordinator.directory))
        return [open_commit(signed, key) for signed in self.signed(after)]

    def losses(self) -> list[tuple[int, float]]:
        """Round and training loss of every commit, in order."""
        return self.query("SELECT round, loss FROM commits ORDER BY round")

    def head(self) -> int:
        """Round of the newest commit; -1 before the first."""
        newest = self.query("SELECT round FROM commits ORDER BY round DESC LIMIT 1")
        return int(newest[0][0]) if newest else -1

    def agreed(self, after: int, reports: int) -> bool:
        """Whether `reports` nodes reported one digest, and no node another, for a round after
        `after`.
        """
        sql = "SELECT 1 FROM digests WHERE round > ? AND reports >= ? AND dissent = 0 LIMIT 1"
        return bool(self.query(sql, after, reports))

    def peer(self, number: int) -> str:
        """The node's name in commits, from its key; empty before it has one."""
        directory = self.nodes[number].directory
        return (
            peer_id(public_bytes(load_or_create_key(directory)))
            if (directory / KEY_NAME).exists()
            else ""
        )

    def counted(self, after: int, *numbers: int) -> bool:
        """Do commits of rounds after this one hold a payload of each of these nodes?"""
        authors = {entry.author for commit in self.commits(after) for entry in commit.entries}
        return authors.issuperset(self.peer(number) for number in numbers)


def replayed(directory: Path, nodes: Sequence[str]) -> Findings:
    """Replay the log that a stopped cluster left, from genesis, and compare every node's
    checkpoint, byte for byte, with the parameters at its round; raises
    `lockstep.audit.differences.Difference` naming the first round that differs.
    """
    return asyncio.run(_replayed(directory, nodes))


async def _replayed(directory: Path, nodes: Sequence[str]) -> Findings:
    record = RecordInFiles(directory / "coordinator", ())
    try:
        findings = Findings(record.info.run_id)
        each = [
            PublishedCheckpoint(directory / name / "checkpoint", findings.run_id) for name in nodes
        ]
        every: Any = _Every(each)
        walk = LogWalk(record, findings, published=every)
        nothing = EvidenceCheck((), walk.payloads, record.info.spec, None)
        await replay(record, walk, findings, nothing, None, lambda *_: None)
        return findings
    finally:
        await record.close()


class _Every:
    """Several checkpoints compared in one replay."""

    def __init__(self, each: Sequence[PublishedCheckpoint]) -> None:
        self._each = each

    def compare(self, round: int, replica: Replica) -> None:
        for published in self._each:
            published.compare(round, replica)

    def require_compared(self, first: int, last: int) -> None:
        for published in self._each:
            published.require_compared(first, last)

    @property
    def verdict(self) -> str:
        return "; ".join(published.verdict for published in self._each)


@contextlib.contextmanager
def running(cluster: FaultyCluster) -> Iterator[FaultyCluster]:
    """The cluster, once every node's payload counts; stopped afterwards."""
    try:
        cluster.start()
        cluster.until(lambda: cluster.counted(-1, *range(len(cluster.nodes))))
        yield cluster
    finally:
        cluster.stop()
