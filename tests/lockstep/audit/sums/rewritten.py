"""The record of a finished run as if summers had added all of its rounds."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from lockstep.audit.records import RecordInFiles
from lockstep.service.keys import load_or_create_key
from node.replica.factory import replica_for
from protocol import wire_pb2 as wire
from protocol.codec.commits import (
    Commit,
    SignedCommit,
    commit_digest,
    genesis_digest,
    open_commit,
    sign_commit,
)
from tests.support.summed import SummedRound, summed

RANGES = 4


def rewrite(record: Path) -> list[SummedRound]:
    """Replace payloads by parts, lists and results, in the directory of node 0 alone, and the
    commits by those that name them.
    """
    source = RecordInFiles(record, ())
    info, key = source.info, load_or_create_key(record / "coordinator")
    node = replica_for(info.spec, info.run_id, torch.device("cpu"), 1)
    kept = record / "node-0" / "payloads"
    rounds, head = list[SummedRound](), genesis_digest(info.run_id)
    for commit in (opened(row, info.coordinator_key) for row in source._commits(-1).commits):
        payloads = {each.author: source._read(commit.round, each) for each in commit.entries}
        made = summed(
            info.run_id,
            commit.round,
            payloads,
            node.shape,
            info.spec.algorithm,
            (commit.learning_rate_bits, commit.decay_bits),
            ranges=RANGES,
            samples={each.author: each.weight for each in commit.entries},
        )
        entries = made.commit.entries
        decided = replace(commit, entries=entries, sums=made.commit.sums, previous=head)
        head = commit_digest(decided)
        rounds.append(replace(made, commit=decided))
        state = node.apply(decided, made.results)
        signed = sign_commit(decided, key)
        with journal(record) as database:
            write(database, commit.round, signed)
            found = state.to_bytes(8), commit.round
            database.execute("UPDATE digests SET state_digest = ? WHERE round = ?", found)
        for directory in record.glob("*/payloads"):
            shutil.rmtree(directory / str(commit.round), ignore_errors=True)
        (kept / str(commit.round)).mkdir()
        for digest, blob in made.blobs.items():
            (kept / str(commit.round) / digest.hex()).write_bytes(blob)
    source._opened.close()
    shutil.rmtree(record / "checkpoint")
    return rounds


def write(database: sqlite3.Connection, round: int, signed: SignedCommit) -> None:
    """Put another commit in the place of that of a round."""
    row = (signed.body, signed.signature, signed.author_list, round)
    changes = "body = ?, signature = ?, author_list = ?"
    database.execute(f"UPDATE commits SET {changes} WHERE round = ?", row)


def opened(row: wire.Committed, key: bytes) -> Commit:
    return open_commit(SignedCommit(row.body, row.signature, row.author_list), key)


def journal(record: Path) -> closing[sqlite3.Connection]:
    path = record / "coordinator" / "journal.sqlite"
    return closing(sqlite3.connect(path, isolation_level=None))
