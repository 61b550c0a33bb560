"""Result of the chaos benchmark: what the faults of a run cost, as numbers, a document and a table.

recovery         from a fault to the first commit that counts its target again
participation    contributors of all commits over the members that were live when each was made
loss             mean training loss of the last commits of the measured minutes, and of the
                 commits before the last round that both runs have reached
"""

import argparse
import os
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.machine.events.effects import CommitRound
from coordinator.machine.machine import RunMachine
from protocol.ids import RunId
from protocol.runfile import RunSpec

LOSS_COMMITS = 20
"""Commits whose mean is a loss in the table: one commit is of few samples."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One fault whose target has recovered, in seconds after the beginning and in rounds."""

    kind: str
    node: int | None
    began_s: float
    seconds: float
    rounds: int
    start_seconds: float | None = None
    """Part of `seconds` until the successor of a killed node had started: imports, run file, data,
    model. It depends on the processor's other work, and not on the run."""


@dataclass(slots=True)
class Run:
    """Result of one of the two runs."""

    rounds: int = 0
    samples: int = 0
    losses: list[float] = field(default_factory=list)
    """Training loss of every commit of the measured time, in nats per token."""
    contributors: int = 0
    """Payloads in those commits."""
    live: int = 0
    """Members with a session at those commits, added up."""
    skipped: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: list[Recovery] = field(default_factory=list)
    unrecovered: int = 0
    stayed: list[str] = field(default_factory=list)
    """Nodes that did not leave when they were asked, each with its last words."""
    disputed: int = 0
    resyncs: int = 0
    replayed: int = 0
    differs: str = ""
    load: float = 0.0
    """Load of the whole machine: mean number of threads that ran or wanted to, in the last five
    minutes of the run."""

    @property
    def divergences(self) -> int:
        """Rounds with two digests, nodes told to resync, and whether a replay differs from a
        checkpoint.
        """
        return self.disputed + self.resyncs + bool(self.differs)


def document(arguments: argparse.Namespace, calm: Run, hurt: Run) -> dict[str, Any]:
    """Everything that is printed and a little more, as JSON."""
    reached = min(len(calm.losses), len(hurt.losses))
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
        "recovery_rounds": spread([each.rounds for each in hurt.recoveries]),
        "recovery_seconds": spread([each.seconds for each in hurt.recoveries]),
        "recovery_by_kind": {
            kind: {
                "count": len(those),
                "seconds": spread([each.seconds for each in those]),
                "rounds": spread([each.rounds for each in those]),
            }
            for kind in sorted(hurt.faults)
            for those in [[each for each in hurt.recoveries if each.kind == kind]]
        },
        "restart": _restart(hurt.recoveries),
        "recoveries": [asdict(each) for each in hurt.recoveries],
        "participation": _ratio(hurt.contributors, hurt.live),
        "participation_without_faults": _ratio(calm.contributors, calm.live),
        "loss": _mean(hurt.losses),
        "loss_without_faults": _mean(calm.losses),
        "loss_at_equal_rounds": _mean(hurt.losses[:reached]),
        "loss_at_equal_rounds_without_faults": _mean(calm.losses[:reached]),
        "samples_committed": hurt.samples,
        "samples_committed_without_faults": calm.samples,
        "throughput_kept": _ratio(hurt.samples, calm.samples),
        "rounds_kept": _ratio(hurt.rounds, calm.rounds),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": round(hurt.load, 1),
            "load_without_faults": round(calm.load, 1),
        },
    }


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile (nearest rank); None for no values."""
    if not values:
        return {"median": None, "p95": None}
    ranked = sorted(values)
    return {
        "median": round(statistics.median(ranked), 2),
        "p95": round(ranked[-(-95 * len(ranked) // 100) - 1], 2),
    }


def table(found: dict[str, Any]) -> Table:
    """The document as a table of 80 columns."""
    seconds, rounds = found["recovery_seconds"], found["recovery_rounds"]
    faults, undisturbed = sum(found["faults"].values()), found["rounds_committed_without_faults"]
    rows = {
        "faults": f"{faults} in {found['minutes']:g} minutes on {found['nodes']} nodes",
        **{f"  {kind}": _words(by) for kind, by in found["recovery_by_kind"].items()},
        "rounds committed": f"{found['rounds_committed']} ({undisturbed} without faults)",
        "divergences": f"{found['divergences']} ({found['commits_replayed']} commits replayed)",
        "not recovered": str(found["unrecovered"]),
        "did not leave": str(len(found["did_not_leave"])),
        "time to recover": f"median {seconds['median']} s, p95 {seconds['p95']} s",
        "": f"median {rounds['median']} rounds, p95 {rounds['p95']} rounds",
        "  killed node: start": _seconds(found["restart"]["start"]),
        "  then until counted": _seconds(found["restart"]["after"]),
        "participation": _against(found, "participation", _percent),
        "loss, nats per token": _against(found, "loss", _number),
        "  at equal rounds": _against(found, "loss_at_equal_rounds", _number),
        "throughput kept": _percent(found["throughput_kept"]),
    }
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        grid.add_row(name, value)
    return grid


def _restart(recoveries: Sequence[Recovery]) -> dict[str, dict[str, float | None]]:
    """Recovery of killed nodes in two parts: the start of the process, and the rest."""
    known = [(each.start_seconds, each.seconds) for each in recoveries if each.start_seconds]
    start, after = [start for start, _ in known], [whole - start for start, whole in known]
    return {"start": spread(start), "after": spread(after)}


def _seconds(found: dict[str, float | None]) -> str:
    return f"median {found['median']} s, p95 {found['p95']} s"


def _words(by: dict[str, Any]) -> str:
    """Recoveries from faults of one kind."""
    seconds, rounds = by["seconds"], by["rounds"]
    return (
        f"{by['count']}: median {seconds['median']} s, {rounds['median']} rounds; "
        f"p95 {seconds['p95']} s, {rounds['p95']} rounds"
    )


def _against(found: dict[str, Any], name: str, words: Callable[[float | None], str]) -> str:
    """A number of the hurt run beside that of the undisturbed one."""
    return f"{words(found[name])} ({words(found[f'{name}_without_faults'])} without faults)"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _mean(losses: Sequence[float]) -> float | None:
    """Mean of the last `LOSS_COMMITS`."""
    last = losses[-LOSS_COMMITS:]
    return round(statistics.fmean(last), 4) if last else None


def participation(directory: Path, spec: RunSpec, rounds: Collection[int]) -> tuple[int, int]:
    """(Contributors, live members), each added up over the commits of `rounds`, from the journal
    of a stopped coordinator: its events are handled again, and the machine is asked at each commit
    which members have a session.
    """
    journal = Journal(directory / JOURNAL_NAME)
    machine, contributors, live = RunMachine(spec, RunId("0" * 32)), 0, 0
    try:
        for at_ms, event in journal.events():
            for effect in machine.handle(event, at_ms):
                if isinstance(effect, CommitRound) and effect.commit.round in rounds:
                    contributors += len(effect.commit.entries)
                    live += sum(member.connected for member in machine.members)
    finally:
        journal.close()
    return contributors, live
