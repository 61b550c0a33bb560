"""Replay a finished cluster's log in a process of its own: `replay.py DIRECTORY THREADS
forwards|backwards`.

Prints how many commits were applied and the digest that they lead to. "backwards" hands each
commit's payloads over in reverse order, which must not matter.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch

from coordinator.journal import Journal
from lockstep.run_file import read_run_file
from lockstep.service.keys import load_or_create_key
from node.gossip.payload_log import PayloadLog
from node.replica.factory import replica_for
from protocol.codec.commits import check_link, commit_digest, genesis_digest, open_commit
from protocol.handshake import public_bytes
from protocol.runfile import run_id


def main(directory: Path, threads: int, order: int) -> None:
    torch.set_num_threads(threads)
    spec = read_run_file(directory / "run.toml")
    key = public_bytes(load_or_create_key(directory / "coordinator"))
    run = run_id(spec, key)
    journal = Journal(directory / "coordinator" / "journal.sqlite")
    payloads = PayloadLog(
        directory / "node-0" / "payloads", spec.retention.log_rounds, spec.retention.log_bytes_max
    )
    replica = replica_for(spec, run, torch.device("cpu"), 1)
    head, head_round, count = genesis_digest(run), -1, 0
    for row in journal.commits(-1, 1000):
        commit = open_commit(row.signed, key)
        check_link(commit, run, head, head_round)
        head, head_round, count = commit_digest(commit), commit.round, count + 1
        shuffled = dataclasses.replace(commit, entries=commit.entries[::order])
        blobs = [payloads.get(entry.digest) for entry in shuffled.entries]
        assert all(blob is not None for blob in blobs), (
            f"round {commit.round}: a payload is missing"
        )
        replica.apply(shuffled, [blob for blob in blobs if blob is not None])
    journal.close()
    print(
        json.dumps(
            {
                "commits": count,
                "digest": f"{replica.digest:016x}",
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), -1 if sys.argv[3] == "backwards" else 1)
