"""One method on one kind of link: the laboratory, its processes, and the bytes on its lines.

    N homes on one profile -> the method's processes, one per home -> notes of their steps
                           -> the kernel's counters of every line, about twice a second

Bytes of a step are read from the counters at the instants that the notes name.

Slow motion: eight nodes on two cores wait for each other where eight homes would not. A trial that
is slowed four times has lines of a fourth of the rate and four times the delay, and sleeps four
times as long for its computation. The arithmetic of all nodes, which shares the cores, then takes
the part of the whole that it would take on machines of their own.
"""

import bisect
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.cluster.names import COORDINATOR
from lockstep.run_file import write_run_file
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.topology import LabHome, Plan
from lockstep.wan.profiles import read_profiles
from protocol.runfile import (
    DataSpec,
    MembershipSpec,
    ModelSpec,
    RetentionSpec,
    RoundsSpec,
    RunSpec,
    ScheduleSpec,
)
from tests.benchmarks.wan.methods import (
    CROWD,
    METHODS,
    MIXING,
    STEPS_UNTIL_MEAN,
    Method,
    algorithm_of,
)
from tests.benchmarks.wan.model import CONFIGS, StepNote, read_notes
from tests.benchmarks.wan.node import VARIABLE, StandIn
from tests.benchmarks.wan.ranks import MATCHMAKING_S, Rank
from tests.benchmarks.wan.slow_motion import slow_motion
from tests.support.tiny import tiny_corpus

POLL_S = 0.5
ROOT = Path(__file__).parents[3]

COMPUTE_S = 2.0
"""Seconds of a forward and backward pass by default."""

ROUND_MS = 600_000
"""Latest instant of every part of a round: rounds here end when all have announced, never by
time."""

PAYLOAD_BYTES_MAX = 128 * 1024**2
"""Room for the parameters of the larger network in float32, which that mean would send."""

Rates = Callable[[int, float, float], tuple[float, float]]
"""(node, from, until) on the monotonic clock -> bytes up and down on its line."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement to make."""

    profile: str
    method: str
    """Name in `METHODS`."""
    nodes: int = 8
    size: str = "20m"
    compute_s: float = COMPUTE_S
    steps: int = 4
    matchmaking_s: float = MATCHMAKING_S
    averaging_s: float = 120.0
    """Seconds after which hivemind gives up an averaging."""
    limit_s: float = 900.0
    """Seconds after which the trial has failed."""
    slowed: int = 1
    """Factor by which lines and computation are slower than life."""

    @property
    def how(self) -> Method:
        """The method's settings."""
        return (METHODS | MIXING | CROWD)[self.method]

    @property
    def rounds(self) -> int:
        """Rounds of a run of Lockstep, the last one whole."""
        return -(-self.steps // self.how.round_steps)

    @property
    def name(self) -> str:
        """Unique among the trials of a report, and a file name."""
        card = card_suffix(self.compute_s)
        return f"{self.profile}-{self.method}{card}" + (
            f"-slowed{self.slowed}" if self.slowed > 1 else ""
        )


def card_suffix(compute_s: float) -> str:
    """Suffix of file names for a pass that does not take the usual time."""
    return "" if compute_s == COMPUTE_S else f"-compute{compute_s:g}"


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations of a trial."""

    notes: tuple[list[StepNote], ...]
    """Notes of each node."""
    crossed: Rates
    facts: dict[str, Any]
    """Other facts to keep."""


class Meter:
    """The counters of every node's line, over time."""

    def __init__(self, laboratory: Laboratory, nodes: int) -> None:
        self._laboratory, self._nodes = laboratory, nodes
        self._times: list[list[float]] = [[] for _ in range(nodes)]
        self._counts: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]

    def take(self) -> None:
        """Reads all counters."""
        self._laboratory.check()
        for node in range(self._nodes):
            counters = self._laboratory.counters(f"node-{node}")
            self._times[node].append(time.monotonic())
            self._counts[node].append((counters.up_bytes, counters.down_bytes))

    def crossed(self, node: int, from_s: float, until_s: float) -> tuple[float, float]:
        """Bytes up and down between two instants, along straight lines between readings."""
        first, last = self._at(node, from_s), self._at(node, until_s)
        return last[0] - first[0], last[1] - first[1]

    def _at(self, node: int, time_s: float) -> tuple[float, float]:
        return interpolated(self._times[node], self._counts[node], time_s)


def interpolated(
    times: Sequence[float], counts: Sequence[tuple[int, int]], time_s: float
) -> tuple[float, float]:
    """Both counts at an instant, from readings in order; outside of them the first or last
    reading.
    """
    after = bisect.bisect_left(times, time_s)
    if after == 0 or after == len(times):
        up, down = counts[min(after, len(times) - 1)]
        return float(up), float(down)
    share = (time_s - times[after - 1]) / (times[after] - times[after - 1])
    before, then = counts[after - 1], counts[after]
    return before[0] + share * (then[0] - before[0]), before[1] + share * (then[1] - before[1])


@contextmanager
def laboratory_of(profile: str, nodes: int, slowed: int = 1) -> Iterator[Laboratory]:
    """A home per node on this profile, and a coordinator on a line without limits."""
    link = slow_motion(read_profiles().profile(profile).link(), slowed)
    homes = [LabHome(f"node-{number}", link) for number in range(nodes)]
    with Laboratory(Plan((*homes, LabHome(COORDINATOR)))) as laboratory:
        yield laboratory


def run(trial: Trial, directory: Path) -> Seen:
    """Make the measurement; `directory` takes notes, logs and state. Raises a dead process's last
    words.
    """
    with laboratory_of(trial.profile, trial.nodes, trial.slowed) as laboratory:
        meter = Meter(laboratory, trial.nodes)
        run_method = _run_lockstep if trial.how.kind == "lockstep" else _run_ranks
        facts = run_method(trial, directory, laboratory, meter)
        facts["shaped_by"] = laboratory.mechanism
    facts["congestion_control"] = (
        Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    )
    facts["load"] = round(os.getloadavg()[0], 1)
    until = trial.steps + 1 if trial.how.topology else None  # whose runs go on
    notes = tuple(
        read_notes(_notes_path(directory, number))[:until] for number in range(trial.nodes)
    )
    return Seen(notes, meter.crossed, facts)


def _notes_path(directory: Path, number: int) -> Path:
    return directory / f"node-{number}.jsonl"


# ---- the others


def _run_ranks(
    trial: Trial, directory: Path, laboratory: Laboratory, meter: Meter
) -> dict[str, Any]:
    """Run one process per home until all have ended."""
    rank = Rank(
        method=trial.method,
        rank=0,
        ranks=trial.nodes,
        address="",
        master=laboratory.address("node-0"),
        size=trial.size,
        steps=trial.steps,
        compute_s=trial.slowed * trial.compute_s,
        matchmaking_s=trial.matchmaking_s,
        averaging_s=trial.averaging_s,
        directory=str(directory),
    )
    processes = []
    try:
        for number in range(trial.nodes):
            name = f"node-{number}"
            told = replace(rank, rank=number, address=laboratory.address(name))
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.wan.ranks",
                msgspec.json.encode(told).decode(),
            ]
            with (directory / f"{name}.log").open("wb") as log:
                processes.append(
                    laboratory.start(
                        name,
                        command,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment(),
                        cwd=ROOT,
                    )
                )
        _until(trial, meter, lambda: _ended(processes, directory))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {"groups": group_sizes(directory)} if trial.method == "hivemind" else {}


def _ended(processes: Sequence["subprocess.Popen[Any]"], directory: Path) -> bool:
    """Whether all ended well; raises the last words of one that did not."""
    for number, process in enumerate(processes):
        if process.poll():
            words = (
                (directory / f"node-{number}.log").read_text(errors="replace").splitlines()[-15:]
            )
            raise RuntimeError(
                f"node-{number} ended with {process.returncode}:\n" + "\n".join(words)
            )
    return all(process.poll() == 0 for process in processes)


def group_sizes(directory: Path) -> dict[str, int]:
    """Number of averagings in hivemind's logs by kind and peers, and of failed ones."""
    found: dict[str, int] = {}
    for path in sorted(directory.glob("node-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            _, known, rest = line.partition("Averaged ")
            if known:
                what = f"{rest.split()[0]}, {rest.partition('with ')[2].split()[0]} peers"
                found[what] = found.get(what, 0) + 1
            elif "roceeding with local gradients" in line:
                found["failed"] = found.get("failed", 0) + 1
    return found


def environment() -> dict[str, str]:
    """This process's environment with one thread and this tree's modules, without Lockstep's
    settings.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {
        **kept,
        **pools,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _until(trial: Trial, meter: Meter, done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + trial.limit_s
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{trial.name}: expected its end within {trial.limit_s:g} s")
        meter.take()
        time.sleep(POLL_S)
    meter.take()


# ---- Lockstep


class OtherNode(Child):
    """`lockstep join` by another module, which has words of its own before those of the command."""

    module: tuple[str, ...] = ("tests.benchmarks.wan.node",)

    def _spawn(self, command: Sequence[str], log: Any) -> "subprocess.Popen[bytes]":
        python, _, _, *words = command
        return super()._spawn([python, "-m", *self.module, *words], log)


class StandInCluster(WanCluster):
    """The product's coordinator and nodes, each behind its line."""

    def __init__(self, settings: ClusterSettings, laboratory: Laboratory, trial: Trial) -> None:
        super().__init__(settings, laboratory)
        self.nodes = [
            self._standing_in(node, number, trial) for number, node in enumerate(self.nodes)
        ]

    def _standing_in(self, node: Child, number: int, trial: Trial) -> Child:
        notes = str(_notes_path(node.directory.parent, number))
        told = StandIn(trial.slowed * trial.compute_s, number, notes, trial.slowed)
        more = {VARIABLE: msgspec.json.encode(told).decode()}
        arguments = [*node.arguments, "--save-every", str(10 * trial.steps)]
        return OtherNode(
            node.name, node.directory, arguments, environment() | more, self.laboratory.inside
        )


def run_spec(trial: Trial) -> RunSpec:
    """The run of a trial: one sample per node and step, one step per round or H local ones."""
    share = trial.how.round_steps
    return RunSpec(
        name="wan",
        model=ModelSpec(config=CONFIGS[trial.size]),
        data=DataSpec(corpus="tiny", sequence_length=64),
        algorithm=algorithm_of(trial.how),
        schedule=ScheduleSpec(
            steps=trial.rounds + (STEPS_UNTIL_MEAN if trial.how.topology else 0),
            learning_rate=0.0005,
            warmup_steps=0,
        ),
        rounds=RoundsSpec(
            compute_ms=ROUND_MS * share,  # all could train the whole batch: equal shares
            publish_ms=ROUND_MS,
            exchange_ms=ROUND_MS,
            stretch=1,
            overlap=trial.how.overlap,
            batch_samples_max=trial.nodes * share,
            share_samples_first=share,
            quorum=trial.nodes,
            sums=trial.how.sums,
            payload_bytes_max=PAYLOAD_BYTES_MAX,
        ),
        membership=MembershipSpec(start_members=trial.nodes, lease_ms=60_000, heartbeat_ms=2_000),
        retention=RetentionSpec(snapshot_every=1000),
    )


def _run_lockstep(
    trial: Trial, directory: Path, laboratory: Laboratory, meter: Meter
) -> dict[str, Any]:
    """Train the whole run, to its last round."""
    write_run_file(directory / "run.toml", run_spec(trial))
    data = tiny_corpus(directory / "data")
    settings = ClusterSettings(
        directory, directory / "run.toml", data, trial.nodes, links=(trial.how.transport,)
    )
    with StandInCluster(settings, laboratory, trial) as cluster:
        cluster.start()
        _until(trial, meter, lambda: _trained(cluster, trial.rounds))
        status = cluster.coordinator.status
    return {
        "rounds": status["steps"]["committed"],
        "skipped": status["steps"]["skipped"],
        "digests_agreed": status["digests"]["agreed"],
        "digests_checked": status["digests"]["rounds_checked"],
        "payload_bytes": round(
            status["traffic"]["payload_bytes"] / max(1, status["traffic"]["payloads"])
        ),
    }


def _trained(cluster: Cluster, rounds: int) -> bool:
    """Whether the run is over, or every node has noted these rounds and one more; raises the last
    words of a process that died.
    """
    for child in cluster.children:
        if child.exit_status not in (None, 0):
            raise RuntimeError(f"{child.name} ended with {child.exit_status}: {child.last_words()}")
    cluster.coordinator.refresh()
    status = cluster.coordinator.status
    return cluster.finished or status.get("steps", {}).get("committed", 0) > rounds + 1
