"""The snapshots from which a run has gone on, as an audit finds them.

An entry of the chain says that the state behind it is that of a checkpoint, named by its SHA-256.
An audit cannot make that state from the log: it needs the snapshot, from the directory of a node or
by name.
"""

from collections.abc import Iterable
from pathlib import Path

from lockstep.audit.records import RunRecord
from node.replica.checkpoint_state import read_state
from node.replica.snapshot import Snapshots, file_sha256
from protocol.codec.chain import Restart, SignedEntry, open_entry
from protocol.codec.commits import SignedCommit, open_commit
from protocol.errors import DataError, RemoteProtocolError
from protocol.ids import Digest
from protocol.run_info import RunInfo


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
        f"with SHA-256 {restart.sha256.hex()}, found none; name it with --from: the checkpoint, or "
        "the file that nodes keep in snapshots/"
    )


def snapshot_file(source: Path, info: RunInfo, directory: Path) -> Path:
    """The snapshot that a person names: a file, or a checkpoint of the run, which is written into
    `directory` as one.

    Raises `DataError` for a checkpoint of another run, `StorageError` for a damaged one.
    """
    if not source.is_dir():
        return source
    state, snapshots = read_state(source, info), Snapshots(directory)
    path = snapshots.path(snapshots.keep(state.round, state.parameters))
    assert path is not None, "it was written just now"
    return path


async def names_restart(record: RunRecord, sha256: Digest) -> bool:
    """Whether the run has gone on from the snapshot of this SHA-256. The audit verifies the chain
    itself: what is wrong with it ends the search, and is found again.
    """
    try:
        return await _names_restart(record, sha256)
    except RemoteProtocolError:
        return False


async def _names_restart(record: RunRecord, sha256: Digest) -> bool:
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
