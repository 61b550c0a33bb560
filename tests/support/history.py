"""A run's history of commits, made by its key without a run."""

from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol import wire_pb2 as wire
from protocol.codec.commits import (
    Commit,
    Entry,
    SignedCommit,
    commit_digest,
    genesis_digest,
    sign_commit,
)
from protocol.codec.heads import Head, head_of
from protocol.ids import PeerId, RunId, sha256

ENTRY = Entry(PeerId("cd" * 16), sha256(b"payload"), 100, 1, 8)


class History:
    """Commits of the first `rounds` rounds, none skipped; other values of `decay_bits` from step
    `fork` on make another history.
    """

    def __init__(
        self, key: Ed25519PrivateKey, run_id: RunId, rounds: int, fork: int | None = None
    ) -> None:
        self.signed: list[tuple[Commit, SignedCommit]] = []
        previous = genesis_digest(run_id)
        for step in range(rounds):
            bits = 2 if fork is None or step < fork else 3
            commit = Commit(run_id, step, step, (ENTRY,), 1, bits, previous)
            previous = commit_digest(commit)
            self.signed.append((commit, sign_commit(commit, key)))

    def head(self, step: int) -> Head:
        """The head of a step."""
        return head_of(*self.signed[step])

    def welcome(self, **fields: Any) -> wire.Welcome:
        """The greeting of a coordinator with this history."""
        if not self.signed:
            return wire.Welcome(decided_round=-1, head_round=-1)
        newest = self.head(len(self.signed) - 1)
        return wire.Welcome(
            decided_round=newest.round, head_round=newest.round, head=newest.message, **fields
        )

    async def fetch(self, after_round: int) -> wire.Commits:
        """What its coordinator answers to GetCommits."""
        return wire.Commits(commits=_told(self.signed[after_round + 1 :]))


def _told(signed: Sequence[tuple[Commit, SignedCommit]]) -> list[wire.Committed]:
    return [wire.Committed(body=each.body, signature=each.signature) for _, each in signed]
