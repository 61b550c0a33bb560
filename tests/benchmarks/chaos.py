"""Faults and their cost: `python -m tests.benchmarks.chaos --minutes 10 --nodes 8 --seed 1`.

The same run twice, for equally long, in real processes on this machine: once undisturbed, once hurt
by a schedule that the seed decides in advance.

    kill node, kill coordinator     SIGKILL; started again on the same directory
    stop node, stop coordinator     SIGSTOP, and SIGCONT some seconds later
    slow node                       SIGSTOP for four fifths of every half second, for some seconds
    cut node                        its line to the coordinator and the address that it announces
                                    reset every connection
    corrupt                         one bit of the next payload part on the way to a node is flipped

A fault is over, and its target has recovered, when a commit holds the target's payload again that
was made after the fault was mended, by the successor of a killed process; for the coordinator, when
there is any such commit. Seconds and rounds count from the fault, so the length of a pause is in
them. At the end no target is hurt any more: all must recover, then leave, and every checkpoint must
be, bit for bit, what a replay of the log from genesis gives. A node that has to be killed because
it does not leave when asked did not recover. When anything is amiss the directory with all logs is
kept, and the last line names it.

Throughput is the samples behind payloads that were committed within the measured minutes, which
begin when all nodes have been counted once. Work that was never committed does not count.
Participation and loss are those of `tests.benchmarks.chaos_result`.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.audit.differences import Difference
from lockstep.cluster.local import ClusterSettings
from lockstep.console import messages, output, write_json
from lockstep.run_file import write_run_file
from protocol.codec.commits import Commit
from protocol.runfile import RunSpec
from protocol.sections.retention import RetentionSpec
from tests.benchmarks.chaos_result import Recovery, Run, document, participation, table
from tests.processes.faulty import FaultyCluster, replayed, running
from tests.support.tiny import tiny_corpus, tiny_spec

KINDS = {
    "kill node": 4,
    "kill coordinator": 2,
    "stop node": 2,
    "stop coordinator": 1,
    "slow node": 2,
    "cut node": 2,
    "corrupt": 2,
}
"""Kinds of faults, with their frequency relative to the others."""

LASTING = {
    "stop node": (2, 9),
    "stop coordinator": (2, 6),
    "slow node": (4, 10),
    "cut node": (2, 9),
}
"""Least and most seconds of a lasting fault, around the lease of six: some end before it does, some
cost the membership."""

FIRST_S, LAST_S = 3.0, 15.0
"""Seconds after the beginning and before the end without faults."""

EVERY_S = 6.0
"""Mean seconds between two faults: a gap is from half of it to one and a half."""

PULSE_S, ASLEEP_S = 0.5, 0.4
"""Length of a beat of a slow node, and the part of it in which the process is stopped."""

RECOVERY_S_MAX = 150.0
"""Seconds after the measured time for all to recover."""

NICENESS = "5"
"""Niceness of the nodes, which begins when one has started: a node that starts has three times as
much of a core as one that computes, as with `lockstep join`, whose default is more."""

UNDECIDED_MAX = 2
"""Rounds that may be open at once: they may count what a node announced before it was killed, which
is no recovery."""

POLL_S = 0.05

RESYNC_LINE = "resync ordered round="
"""Line in a node's log for each time it was told to discard its state."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `at_s` after the beginning, for `for_s`; `node` is None for the coordinator."""

    at_s: float
    kind: str
    node: int | None
    for_s: float = 0.0


@dataclass(slots=True)
class OpenFault:
    """A fault that has begun, until its target has recovered."""

    fault: Fault
    began_s: float
    round: int
    """Head of the log when the fault began."""
    pid: int | None
    mended_round: int | None = None
    """Newest round that may hold a payload from before the fault was mended."""
    asleep: bool = False
    started_s: float | None = None
    """Time at which the successor of a killed node could take part in rounds."""


def schedule(seed: int, nodes: int, seconds: float, every_s: float = EVERY_S) -> tuple[Fault, ...]:
    """All faults of a run, in order: the same for the same arguments."""
    draw, faults, at_s = random.Random(seed), list[Fault](), FIRST_S
    while at_s < seconds - LAST_S:
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        node = None if kind.endswith("coordinator") else draw.randrange(nodes)
        faults.append(
            Fault(at_s, kind, node, draw.uniform(*LASTING[kind]) if kind in LASTING else 0.0)
        )
        at_s += draw.uniform(every_s / 2, every_s * 3 / 2)
    return tuple(faults)


class FaultInjector:
    """Applies the faults of a schedule to a cluster and records recoveries, at each `advance`."""

    def __init__(self, cluster: FaultyCluster, faults: Sequence[Fault], run: Run) -> None:
        self._cluster, self._waiting, self._run = cluster, list(faults), run
        self._started_s = time.monotonic()
        self.open_faults: list[OpenFault] = []

    def advance(self, commits: Sequence[Commit], head: int) -> None:
        """Apply faults that are due, mend those that are over, and judge recoveries by new
        commits.
        """
        now_s = time.monotonic() - self._started_s
        while self._waiting and self._waiting[0].at_s <= now_s:
            self._inject(self._waiting.pop(0), now_s, head)
        for ongoing in self.open_faults:
            self._continue(ongoing, now_s, head)
        for ongoing in [
            ongoing for ongoing in self.open_faults if self._recovered(ongoing, commits)
        ]:
            self.open_faults.remove(ongoing)
            self._run.recoveries.append(_recovery(ongoing, now_s, head))

    def _inject(self, fault: Fault, now_s: float, head: int) -> None:
        cluster = self._cluster
        self._run.faults[fault.kind] += 1
        self.open_faults.append(OpenFault(fault, now_s, head, cluster.target(fault.node).pid))
        match fault.kind.split()[0]:
            case "kill":
                cluster.kill(fault.node)
            case "stop":
                cluster.pause(fault.node)
            case "cut":
                assert fault.node is not None, "a coordinator is not cut off, its nodes are"
                cluster.lines[fault.node].cut()
                cluster.doors[fault.node].cut()
            case "corrupt":
                assert fault.node is not None, "payloads go to nodes"
                cluster.doors[fault.node].corrupt()

    def _continue(self, ongoing: OpenFault, now_s: float, head: int) -> None:
        """Continue lasting faults, and end them in time."""
        fault, since_s = ongoing.fault, now_s - ongoing.began_s
        if fault.kind == "kill node" and ongoing.started_s is None and self._started(ongoing):
            ongoing.started_s = now_s
        if ongoing.mended_round is not None:
            return
        if since_s >= fault.for_s:
            died = fault.kind == "kill node"
            ongoing.mended_round = head + (UNDECIDED_MAX if died else 0)
            self._mend(fault, ongoing.pid)
        elif fault.kind == "slow node":
            asleep = since_s % PULSE_S < ASLEEP_S
            if asleep != ongoing.asleep and self._cluster.target(fault.node).pid == ongoing.pid:
                (self._cluster.pause if asleep else self._cluster.resume)(fault.node)
            ongoing.asleep = asleep

    def _mend(self, fault: Fault, pid: int | None) -> None:
        cluster, kind = self._cluster, fault.kind.split()[0]
        if kind in ("stop", "slow") and cluster.target(fault.node).pid == pid:
            cluster.resume(fault.node)
        elif kind == "cut" and fault.node is not None:
            cluster.lines[fault.node].mend()
            cluster.doors[fault.node].mend()

    def _started(self, ongoing: OpenFault) -> bool:
        """Whether a successor of a killed process has started, up to its first session."""
        child = self._cluster.target(ongoing.fault.node)
        note = child.note() if child.pid != ongoing.pid else None
        return bool(note and note["coordinator"])

    def _recovered(self, ongoing: OpenFault, commits: Sequence[Commit]) -> bool:
        if ongoing.mended_round is None:
            return False
        later = [commit for commit in commits if commit.round > ongoing.mended_round]
        if ongoing.fault.node is None:
            return bool(later)
        peer = self._cluster.peer(ongoing.fault.node)
        return any(entry.author == peer for commit in later for entry in commit.entries)


def _recovery(ongoing: OpenFault, now_s: float, head: int) -> Recovery:
    """A fault whose target has recovered now."""
    fault, began_s = ongoing.fault, ongoing.began_s
    started_s = ongoing.started_s and ongoing.started_s - began_s
    took_s, rounds = now_s - began_s, head - ongoing.round
    return Recovery(fault.kind, fault.node, began_s, took_s, rounds, started_s)


def measured(directory: Path, nodes: int, seconds: float, faults: Sequence[Fault]) -> Run:
    """One run of `seconds` seconds under these faults, to its end and its audit."""
    directory.mkdir(parents=True)
    write_run_file(directory / "run.toml", chaos_spec(nodes), force=True)
    settings = ClusterSettings(
        directory, directory / "run.toml", tiny_corpus(directory / "data"), nodes
    )
    run, counted = Run(), set[int]()
    cluster = FaultyCluster(settings)
    for node in cluster.nodes:
        node.arguments += ("--nice", NICENESS)
    with running(cluster):
        injector, ends_s = FaultInjector(cluster, faults, run), time.monotonic() + seconds
        for commits in _rounds(cluster, injector, ends_s):
            run.rounds += len(commits)
            counted.update(commit.round for commit in commits)
            run.samples += sum(entry.samples for commit in commits for entry in commit.entries)
        cluster.resume_all()
        run.load = os.getloadavg()[1]
        for _ in _rounds(
            cluster, injector, time.monotonic() + RECOVERY_S_MAX, until_recovered=True
        ):
            pass
        run.unrecovered = len(injector.open_faults)
        cluster.watch()
        status = cluster.coordinator.status
        run.skipped, run.disputed = status["steps"]["skipped"], status["digests"]["rounds_disputed"]
        run.resyncs = sum(
            node.log.read_text(errors="replace").count(RESYNC_LINE) for node in cluster.nodes
        )
        run.losses = [loss for round, loss in cluster.losses() if round in counted]
        cluster.leave()
        run.contributors, run.live = participation(
            cluster.coordinator.directory, chaos_spec(nodes), counted
        )
        run.stayed = [
            f"{node.name}: {node.last_words()}" for node in cluster.nodes if node.exit_status != 0
        ]
        try:
            run.replayed = replayed(
                directory, [node.name for node in cluster.nodes if node.exit_status == 0]
            ).replayed
        except Difference as error:
            run.differs = str(error)
    return run


def _rounds(
    cluster: FaultyCluster, injector: FaultInjector, ends_s: float, *, until_recovered: bool = False
) -> Iterator[Sequence[Commit]]:
    """New commits, until that time or until all targets have recovered; advances the injector."""
    head = cluster.head()
    while time.monotonic() < ends_s and not (until_recovered and not injector.open_faults):
        for line in cluster.revive():
            messages.print(line, soft_wrap=True)
        if commits := cluster.commits(head):
            head = commits[-1].round
            yield commits
        injector.advance(commits, head)
        time.sleep(POLL_S)


def chaos_spec(nodes: int) -> RunSpec:
    """A run without an end of a model small enough for many nodes on two cores."""
    return tiny_spec(
        steps=1_000_000,
        members=nodes,
        quorum=nodes // 2,
        lease_ms=6_000,
        compute_ms=2_000,
        publish_ms=1_500,
        exchange_ms=3_000,
        batch_samples_max=100 * nodes,
        share_samples_first=100,
    ).model_copy(update={"retention": RetentionSpec(log_rounds=1_000_000, snapshot_every=50)})


def main() -> int:
    """Both runs, the table, the document; 1 when a replica differed, or a node did not recover or
    leave.
    """
    parser = argparse.ArgumentParser(description="what random faults cost a run of real processes")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of each run")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="decides all faults")
    parser.add_argument("--every", type=float, default=EVERY_S, help="mean seconds between faults")
    parser.add_argument("--json", default="", help="write the document there; - prints it")
    arguments = parser.parse_args()
    if arguments.every <= 0:
        parser.error(f"--every: expected more than 0 seconds, found {arguments.every:g}")
    place = Path(tempfile.mkdtemp(prefix="lockstep-chaos-"))
    found = compared(arguments, place)
    if arguments.json != "-":
        output.print(table(found))
    if arguments.json:
        write_json(arguments.json, found)
    if found["divergences"] or found["unrecovered"] or found["did_not_leave"]:
        messages.print(f"not as it should be: all states and logs are in {place}", soft_wrap=True)
        return 1
    shutil.rmtree(place)
    return 0


def compared(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Make both runs, each in a directory of its own in `place`."""
    seconds = 60 * arguments.minutes
    faults = schedule(arguments.seed, arguments.nodes, seconds, arguments.every)
    messages.print(f"without faults, {arguments.minutes:g} minutes, in {place}", soft_wrap=True)
    calm = measured(place / "calm", arguments.nodes, seconds, ())
    messages.print(f"with {len(faults)} faults, {arguments.minutes:g} minutes")
    hurt = measured(place / "hurt", arguments.nodes, seconds, faults)
    return document(arguments, calm, hurt)


if __name__ == "__main__":
    raise SystemExit(main())
