"""Restart of a coordinator: `python -m tests.benchmarks.restart --rounds 100000 [--json PATH]`, and
of real processes with `--kills N`.

Writes a journal of real rounds of a machine with some members, then opens it as a restart does,
from the newest snapshot, and folds the same events from the first one beside it. Prints both times,
medians of several restarts with their spread, and their ratio. With `--kills` it kills real
processes instead, and prints what the seconds are made of until they count again
(`tests.benchmarks.outage`).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import Journal
from coordinator.machine.events.effects import CommitRound, Effect, RecordDigest
from coordinator.machine.events.inputs import Announced, Applied, Event, Holding, Joined, Ready
from coordinator.machine.machine import RunMachine
from coordinator.sequencer import SNAPSHOT_EVENTS, Sequencer
from coordinator.state_snapshot import encode_state
from protocol.codec.commits import SignedCommit, sign_commit
from protocol.ids import PeerId, RunId, sha256
from protocol.runfile import MembershipSpec, RunSpec, ScheduleSpec
from tests.benchmarks.outage import outages
from tests.benchmarks.spread import spread

RUN = RunId("0" * 32)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
ROUND_MS = 1000
BATCH_ROUNDS = 500


class Writer:
    """Drives a machine through rounds and journals its events, in large batches."""

    def __init__(self, journal: Journal, spec: RunSpec, members: int) -> None:
        self._journal, self._rounds = journal, RunMachine(spec, RUN)
        self._peers = [PeerId(f"{number:032x}") for number in range(members)]
        self._now_ms, self._unremembered = 0, 0
        self._events: list[tuple[int, Event]] = []
        self._effects: list[Effect] = []

    def write(self, rounds: int) -> None:
        for peer in self._peers:
            self._tell(Joined(peer, ("127.0.0.1:1",), "node", "cpu", "lockstep"))
        for peer in self._peers:
            self._tell(Ready(peer, -1, 0))
        for round in range(rounds):
            self._round(round)
            if round % BATCH_ROUNDS == BATCH_ROUNDS - 1:
                self._flush()
        self._flush()

    def _round(self, round: int) -> None:
        self._now_ms += ROUND_MS
        digests = {peer: sha256(f"{peer}{round}".encode()) for peer in self._peers}
        flight = self._rounds.undecided(round)
        assert flight is not None, f"round {round} is not open"
        for peer in self._peers:
            used = sum(share.count for share in flight.assignments[peer].shares)
            self._tell(Announced(peer, round, digests[peer], 1000, used, ROUND_MS, 2.5))
        for peer in self._peers:
            self._tell(
                Holding(
                    peer, round, tuple(digests[other] for other in self._peers if other != peer)
                )
            )
        for peer in self._peers:
            self._tell(Applied(peer, round, round, b""))

    def _tell(self, event: Event) -> None:
        self._effects += self._rounds.handle(event, self._now_ms)
        self._events.append((self._now_ms, event))

    def _flush(self) -> None:
        commits: list[tuple[int, SignedCommit, float]] = [
            (effect.commit.round, sign_commit(effect.commit, KEY), effect.loss)
            for effect in self._effects
            if isinstance(effect, CommitRound)
        ]
        digests = [effect for effect in self._effects if isinstance(effect, RecordDigest)]
        self._unremembered += len(self._events)
        state = encode_state(self._rounds.state) if self._unremembered >= SNAPSHOT_EVENTS else None
        self._journal.append(self._events, commits, digests, state)
        self._unremembered = 0 if state else self._unremembered
        self._events, self._effects = [], []


def main() -> None:
    """Write the journal, time both ways, print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=0, help="kills of real processes")
    parser.add_argument("--nodes", type=int, default=3, help="real nodes")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.kills:
        with tempfile.TemporaryDirectory() as directory:
            document = outages(Path(directory), arguments.nodes, arguments.kills)
    else:
        document = _of_journal(arguments)
    print(json.dumps(document, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))


def _of_journal(arguments: argparse.Namespace) -> dict[str, Any]:
    """The times of a coordinator's restart from its journal."""
    spec = RunSpec(
        schedule=ScheduleSpec(steps=arguments.rounds + 1),
        membership=MembershipSpec(start_members=arguments.members),
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.sqlite"
        journal = Journal(path)
        Writer(journal, spec, arguments.members).write(arguments.rounds)
        journal.close()
        document: dict[str, Any] = {
            "rounds": arguments.rounds,
            "members": arguments.members,
            "journal_bytes": path.stat().st_size,
            "restart_seconds": spread(
                [_seconds(lambda: restart(path, spec)) for _ in range(arguments.repeats)]
            ),
            "fold_seconds": _seconds(lambda: fold(path, spec)),
        }
    document["ratio"] = document["fold_seconds"] / document["restart_seconds"]["median"]
    return document


def restart(path: Path, spec: RunSpec) -> None:
    """The work of a coordinator before it listens."""
    journal = Journal(path)
    Sequencer(RunMachine(spec, RUN), journal, KEY, lambda outcome: None).recover()
    journal.close()


def fold(path: Path, spec: RunSpec) -> None:
    """Compute the same state from the first event."""
    journal, rounds = Journal(path), RunMachine(spec, RUN)
    for at_ms, event in journal.events():
        rounds.handle(event, at_ms)
    journal.close()


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
