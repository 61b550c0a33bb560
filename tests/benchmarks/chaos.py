"""What faults cost: `python -m tests.benchmarks.chaos --minutes 10 --nodes 8 --seed 1 [--json PATH]`.

The same run twice, for equally long, in real processes on this machine: once left alone, once hurt by a schedule that
the seed decides before it begins.

    kill node, kill coordinator     SIGKILL; started again on the same directory
    stop node, stop coordinator     SIGSTOP, and SIGCONT some seconds later
    slow node                       SIGSTOP for four fifths of every half second, for some seconds
    cut node                        its line to the coordinator and the address it announces reset every connection
    corrupt                         one bit of the next payload part on the way to a node is flipped

A fault is over, and its target has recovered, when a commit holds the target's payload again that was made after the
fault was mended; for the coordinator, when there is any such commit. Seconds and rounds count from the blow, so the
length of a pause is in them. In the end nobody is hurt any more: everybody must recover, then leave, and every
checkpoint must be, bit for bit, what a replay of the log from genesis gives. Who does not leave when asked, and has to
be killed, did not recover. When anything is amiss the directory with all logs is kept, and the end says where.

Throughput is what commits hold: samples behind the payloads that were committed within the measured minutes, which
begin when all nodes have been counted once. What was trained and never committed does not count.
"""

import argparse
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from lockstep.audit.verify import Difference
from lockstep.cluster.local import ClusterSettings
from lockstep.commands.init import write_run_file
from lockstep.console import messages, output, write_json
from protocol.commits import Commit
from protocol.runfile import RetentionSpec, RunSpec
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
"""What may happen, and how often relative to the others."""

LASTING = {"stop node": (2, 9), "stop coordinator": (2, 6), "slow node": (4, 10), "cut node": (2, 9)}
"""Seconds, least and most, around the lease of six: some faults end before it does, some cost the membership."""

FIRST_S, LAST_S = 3.0, 15.0
"""No blow falls so soon after the beginning, or so shortly before the end."""

EVERY_S = 6.0
"""Between two blows, on the mean: one gap is from half of it to one and a half."""

PULSE_S, ASLEEP_S = 0.5, 0.4
"""Of a slow node: the length of a beat, and how much of it the process sleeps."""

HEAL_S = 150.0
"""After the measured time, for everybody to recover."""

POLL_S = 0.05

RESYNC_LINE = "resync ordered round="
"""In a node's log for each time it was told to discard its state."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One blow: `at_s` after the beginning, for `for_s`; `node` is None for the coordinator."""

    at_s: float
    kind: str
    node: int | None
    for_s: float = 0.0


@dataclass(slots=True)
class Wound:
    """A fault that was dealt, until its target has recovered."""

    fault: Fault
    struck_s: float
    round: int
    """Head of the log at the blow."""
    pid: int | None
    mended_round: int | None = None
    """Head of the log when nothing hurt the target any more."""
    asleep: bool = False


@dataclass(slots=True)
class Run:
    """What one of the two runs came to."""

    rounds: int = 0
    samples: int = 0
    skipped: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    recovery_s: list[float] = field(default_factory=list)
    recovery_rounds: list[int] = field(default_factory=list)
    unrecovered: int = 0
    stayed: list[str] = field(default_factory=list)
    """Nodes that did not leave when they were asked, and what each said last."""
    disputed: int = 0
    resyncs: int = 0
    replayed: int = 0
    differs: str = ""
    load: float = 0.0
    """Of the whole machine: mean number of threads that ran or wanted to, in the last five minutes of the run."""

    @property
    def divergences(self) -> int:
        """Rounds with two digests, nodes told to start over, and whether a replay differs from a checkpoint."""
        return self.disputed + self.resyncs + bool(self.differs)


def schedule(seed: int, nodes: int, seconds: float, every_s: float = EVERY_S) -> tuple[Fault, ...]:
    """All faults of a run, in order: the same for the same arguments."""
    draw, faults, at_s = random.Random(seed), list[Fault](), FIRST_S
    while at_s < seconds - LAST_S:
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        node = None if kind.endswith("coordinator") else draw.randrange(nodes)
        faults.append(Fault(at_s, kind, node, draw.uniform(*LASTING[kind]) if kind in LASTING else 0.0))
        at_s += draw.uniform(every_s / 2, every_s * 3 / 2)
    return tuple(faults)


class Storm:
    """Deals the faults of a schedule to a cluster and notices who has recovered. `look` moves it on."""

    def __init__(self, cluster: FaultyCluster, faults: Sequence[Fault], run: Run) -> None:
        self._cluster, self._waiting, self._run = cluster, list(faults), run
        self._started_s = time.monotonic()
        self.wounds: list[Wound] = []

    def look(self, commits: Sequence[Commit], head: int) -> None:
        """Strike what is due, mend what has lasted, and judge by the commits that are new."""
        now_s = time.monotonic() - self._started_s
        while self._waiting and self._waiting[0].at_s <= now_s:
            self._strike(self._waiting.pop(0), now_s, head)
        for wound in self.wounds:
            self._hurt_on(wound, now_s, head)
        for wound in [wound for wound in self.wounds if self._recovered(wound, commits)]:
            self.wounds.remove(wound)
            self._run.recovery_s.append(now_s - wound.struck_s)
            self._run.recovery_rounds.append(head - wound.round)

    def _strike(self, fault: Fault, now_s: float, head: int) -> None:
        cluster = self._cluster
        self._run.faults[fault.kind] += 1
        self.wounds.append(Wound(fault, now_s, head, cluster.target(fault.node).pid))
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

    def _hurt_on(self, wound: Wound, now_s: float, head: int) -> None:
        """Go on with what lasts, and end it in time."""
        fault, since_s = wound.fault, now_s - wound.struck_s
        if wound.mended_round is not None:
            return
        if since_s >= fault.for_s:
            wound.mended_round = head
            self._mend(fault, wound.pid)
        elif fault.kind == "slow node":
            asleep = since_s % PULSE_S < ASLEEP_S
            if asleep != wound.asleep and self._cluster.target(fault.node).pid == wound.pid:
                (self._cluster.pause if asleep else self._cluster.resume)(fault.node)
            wound.asleep = asleep

    def _mend(self, fault: Fault, pid: int | None) -> None:
        cluster, kind = self._cluster, fault.kind.split()[0]
        if kind in ("stop", "slow") and cluster.target(fault.node).pid == pid:
            cluster.resume(fault.node)
        elif kind == "cut" and fault.node is not None:
            cluster.lines[fault.node].mend()
            cluster.doors[fault.node].mend()

    def _recovered(self, wound: Wound, commits: Sequence[Commit]) -> bool:
        if wound.mended_round is None:
            return False
        later = [commit for commit in commits if commit.round > wound.mended_round]
        if wound.fault.node is None:
            return bool(later)
        peer = self._cluster.peer(wound.fault.node)
        return any(entry.author == peer for commit in later for entry in commit.entries)


def measured(directory: Path, nodes: int, seconds: float, faults: Sequence[Fault]) -> Run:
    """One run of so many seconds under these faults, to its end and its audit."""
    directory.mkdir(parents=True)
    write_run_file(directory / "run.toml", chaos_spec(nodes), force=True)
    settings = ClusterSettings(directory, directory / "run.toml", tiny_corpus(directory / "data"), nodes)
    run = Run()
    with running(FaultyCluster(settings)) as cluster:
        storm, ends_s = Storm(cluster, faults, run), time.monotonic() + seconds
        for commits in _rounds(cluster, storm, ends_s):
            run.rounds += len(commits)
            run.samples += sum(entry.samples for commit in commits for entry in commit.entries)
        cluster.resume_all()
        run.load = os.getloadavg()[1]
        for _ in _rounds(cluster, storm, time.monotonic() + HEAL_S, until_healed=True):
            pass
        run.unrecovered = len(storm.wounds)
        cluster.watch()
        status = cluster.coordinator.status
        run.skipped, run.disputed = status["steps"]["skipped"], status["digests"]["rounds_disputed"]
        run.resyncs = sum(node.log.read_text(errors="replace").count(RESYNC_LINE) for node in cluster.nodes)
        cluster.leave()
        run.stayed = [f"{node.name}: {node.last_words()}" for node in cluster.nodes if node.exit_status != 0]
        try:
            run.replayed = replayed(directory, [node.name for node in cluster.nodes if node.exit_status == 0]).replayed
        except Difference as error:
            run.differs = str(error)
    return run


def _rounds(
    cluster: FaultyCluster, storm: Storm, ends_s: float, *, until_healed: bool = False
) -> Iterator[Sequence[Commit]]:
    """The commits that come by, until that time or until nobody is hurt; the storm goes on meanwhile."""
    head = cluster.head()
    while time.monotonic() < ends_s and not (until_healed and not storm.wounds):
        for line in cluster.revive():
            messages.print(line, soft_wrap=True)
        if commits := cluster.commits(head):
            head = commits[-1].round
            yield commits
        storm.look(commits, head)
        time.sleep(POLL_S)


def chaos_spec(nodes: int) -> RunSpec:
    """A run without an end of a model so small that many nodes fit two cores."""
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


def document(arguments: argparse.Namespace, calm: Run, hurt: Run) -> dict[str, Any]:
    """Everything that is printed and a little more, as JSON."""
    return {
        "seed": arguments.seed,
        "nodes": arguments.nodes,
        "minutes": arguments.minutes,
        "mean_seconds_between_faults": arguments.every,
        "faults": dict(sorted(hurt.faults.items())),
        "rounds_committed": hurt.rounds,
        "rounds_committed_without_faults": calm.rounds,
        "rounds_skipped": hurt.skipped,
        "divergences": hurt.divergences + calm.divergences,
        "commits_replayed": hurt.replayed,
        "difference": hurt.differs or calm.differs,
        "unrecovered": hurt.unrecovered,
        "did_not_leave": calm.stayed + hurt.stayed,
        "recovery_rounds": spread(hurt.recovery_rounds),
        "recovery_seconds": spread(hurt.recovery_s),
        "samples_committed": hurt.samples,
        "samples_committed_without_faults": calm.samples,
        "throughput_kept": round(hurt.samples / calm.samples, 4) if calm.samples else None,
        "rounds_kept": round(hurt.rounds / calm.rounds, 4) if calm.rounds else None,
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": round(hurt.load, 1),
            "load_without_faults": round(calm.load, 1),
        },
    }


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile (nearest rank); None of nothing."""
    if not values:
        return {"median": None, "p95": None}
    ranked = sorted(values)
    return {"median": round(statistics.median(ranked), 2), "p95": round(ranked[-(-95 * len(ranked) // 100) - 1], 2)}


def table(found: dict[str, Any]) -> Table:
    """The document for a person, in 80 columns."""
    seconds, rounds = found["recovery_seconds"], found["recovery_rounds"]
    rows = {
        "faults": f"{sum(found['faults'].values())} in {found['minutes']:g} minutes on {found['nodes']} nodes",
        **{f"  {kind}": str(count) for kind, count in found["faults"].items()},
        "rounds committed": f"{found['rounds_committed']} ({found['rounds_committed_without_faults']} without faults)",
        "divergences": f"{found['divergences']} ({found['commits_replayed']} commits replayed)",
        "not recovered": str(found["unrecovered"]),
        "did not leave": str(len(found["did_not_leave"])),
        "time to recover": f"median {seconds['median']} s, p95 {seconds['p95']} s",
        "": f"median {rounds['median']} rounds, p95 {rounds['p95']} rounds",
        "throughput kept": "-" if found["throughput_kept"] is None else f"{100 * found['throughput_kept']:.1f} %",
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        grid.add_row(name, value)
    return grid


def main() -> int:
    """Both runs, the table, the document; 1 when a replica differed, or somebody did not recover or leave."""
    parser = argparse.ArgumentParser(description="what random faults cost a run of real processes")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of each of the two runs")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="decides what happens to whom, when, and for how long")
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS", help="mean time between two faults")
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
        messages.print(f"not as it should be: everybody's state and logs are in {place}", soft_wrap=True)
        return 1
    shutil.rmtree(place)
    return 0


def compared(arguments: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Both runs, each in a directory of its own in `place`, and what they came to."""
    seconds = 60 * arguments.minutes
    faults = schedule(arguments.seed, arguments.nodes, seconds, arguments.every)
    messages.print(f"without faults, {arguments.minutes:g} minutes, in {place}", soft_wrap=True)
    calm = measured(place / "calm", arguments.nodes, seconds, ())
    messages.print(f"with {len(faults)} faults, {arguments.minutes:g} minutes")
    hurt = measured(place / "hurt", arguments.nodes, seconds, faults)
    return document(arguments, calm, hurt)


if __name__ == "__main__":
    raise SystemExit(main())
