"""Reads the rounds of a journal without the coordinator: it may be at work, or stopped."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.journal_file import reading
from coordinator.machine.decided_rounds import DecidedRound
from coordinator.machine.events.inputs import Evaluated
from protocol.codec.commits import Commit, with_author_list

_ROUNDS = """
SELECT commits.body, commits.author_list, commits.loss, digests.state_digest, rounds.*
FROM rounds LEFT JOIN commits USING (round) LEFT JOIN digests USING (round)
ORDER BY round
"""


@dataclass(frozen=True, slots=True)
class LoggedRound:
    """A decided round; losses in nats per token."""

    decided: DecidedRound
    commit: Commit | None
    """None: it was skipped."""
    loss: float | None = None
    state_digest: bytes | None = None
    """The digest that most members reported after it."""
    validation_loss: float | None = None
    """That of the state after it, where a member has measured it."""

    @property
    def samples(self) -> int:
        """Samples that its contributors have trained."""
        return sum(entry.samples for entry in self.commit.entries) if self.commit else 0

    @property
    def payload_bytes(self) -> int:
        """Bytes of its payloads."""
        return sum(entry.payload_bytes for entry in self.commit.entries) if self.commit else 0

    @property
    def result_bytes(self) -> int:
        """Bytes of the sums that nodes fetched in place of its payloads; 0: they fetched these."""
        return self.commit.result_bytes if self.commit else 0


def read_rounds(journal: Path) -> Iterator[LoggedRound]:
    """The decided rounds, oldest first. Raises `StorageError` for a journal that cannot be read."""
    with reading(journal) as file:
        measured = _measured(file)
        for body, authors, loss, digest, *row in file.execute(_ROUNDS):
            decided = DecidedRound(*row)
            commit = commit_in(body, authors) if body else None
            yield LoggedRound(decided, commit, loss, digest, measured.get(decided.round))


def commit_in(body: bytes, author_list: bytes) -> Commit:
    """A commit of one's own journal, whose signature is not checked."""
    commit = msgspec.msgpack.decode(body, type=Commit)
    return with_author_list(commit, author_list) if author_list else commit


def _measured(file: sqlite3.Connection) -> dict[int, float]:
    """The validation losses by round; a journal has the word of members that were drawn alone."""
    found = file.execute("SELECT body FROM events WHERE kind = 'Evaluated' ORDER BY sequence")
    said = (msgspec.msgpack.decode(body, type=Evaluated) for (body,) in found)
    return {each.round: each.loss for each in said if not each.failure}
