"""The snapshots from which a run has gone on, as an audit finds them.

An entry of the chain says that the state behind it is that of a checkpoint, named by its SHA-256.
An audit cannot make that state from the log: it needs the snapshot, from the directory of a node or
by name.
"""

from collections.abc import Iterable
from pathlib import Path

from lockstep.audit.records import Record
from node.replica.snapshot import file_sha256
from protocol.codec.chain import Restart, SignedEntry, open_entry
from protocol.codec.commits import SignedCommit, open_commit
from protocol.errors import DataError, RemoteProtocolError
from protocol.ids import Digest


def snapshot_directories(target: Path, payloads: Iterable[Path]) -> tuple[Path, ...]:
    """The directories of snapshots beside a coordinator's directory or in a demo's, and beside the
    directories of payloads.
    """
    found = [*target.glob("*/snapshots"), *target.absolute().parent.glob("*/snapshots")]
    return tuple(sorted({*found, *(path.parent / "snapshots" for path in payloads)}))


def snapshot_of(restart: Restart, directories: Iterable[Path]) -> Path:
    """The file of a restart's snapshot, verified; `DataError` when no directory has it."""
    for directory in directories:
        for path in sorted(directory.glob(f"*-{restart.sha256.hex()}")):
            if file_sha256(path) == restart.sha256:
                return path
    raise DataError(
        f"after round {restart.round} the run has gone on from a checkpoint: expected its snapshot "
        f"with SHA-256 {restart.sha256.hex()}, found none; name the file, as nodes keep it in "
        "snapshots/, with --from"
    )


async def names_restart(record: Record, sha256: Digest) -> bool:
    """Whether the run has gone on from the snapshot of this SHA-256. The audit verifies the chain
    itself: what is wrong with it ends the search, and is found again.
    """
    try:
        return await _names_restart(record, sha256)
    except RemoteProtocolError:
        return False


async def _names_restart(record: Record, sha256: Digest) -> bool:
    info, after = record.info, -1
    while True:
        reply = await record.commits(after)
        entries = [entry for row in reply.commits for entry in row.before]
        for each in (*entries, *reply.tail):
            signed = SignedEntry(each.body, each.signature)
            entry = open_entry(signed, info.coordinator_key, info.run_id)
            if isinstance(entry, Restart) and entry.sha256 == sha256:
                return True
        if not reply.commits:
            return False
        last = reply.commits[-1]
        before, key = after, info.coordinator_key
        after = open_commit(SignedCommit(last.body, last.signature), key).round
        if after <= before:
            return False
