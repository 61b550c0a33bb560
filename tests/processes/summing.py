"""Runs of real processes in which summers add."""

import subprocess
import sys
from typing import Any

from coordinator.journal import JOURNAL_NAME, Journal, RecordedCommit
from lockstep.cluster.local import Cluster
from lockstep.service.keys import load_or_create_key
from protocol.codec.commits import Commit, open_commit
from protocol.handshake import public_bytes
from protocol.planner.sums import SUMMED
from protocol.runfile import AlgorithmSpec, RunSpec
from tests.processes.watching import PATIENCE_S
from tests.support.tiny import tiny_spec

SUMS = 3


def summing_spec(**changes: Any) -> RunSpec:
    """A tiny run with sums, whose authors send what those of a large crowd do."""
    algorithm = AlgorithmSpec(name="local_steps", local_samples=2, **SUMMED)
    return tiny_spec(
        quorum=2, overlap=0, batch_samples_max=24, sums=SUMS, algorithm=algorithm, **changes
    )


def recorded(cluster: Cluster) -> list[RecordedCommit]:
    """The commits of a run, with what summers have signed."""
    journal = Journal(cluster.coordinator.directory / JOURNAL_NAME)
    try:
        return journal.commits(-1, 10_000, for_audit=True)
    finally:
        journal.close()


def commits_of(cluster: Cluster) -> list[Commit]:
    """The commits of a run, opened."""
    key = public_bytes(load_or_create_key(cluster.coordinator.directory))
    return [open_commit(row.signed, key) for row in recorded(cluster)]


def added_again(cluster: Cluster) -> "subprocess.CompletedProcess[str]":
    """What `lockstep verify` says that adds all ranges of a run again."""
    directory = cluster.coordinator.directory.parent
    return subprocess.run(
        [sys.executable, "-m", "lockstep", "verify", f"{directory}", "--sums"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
