"""The parameters that a person names: verified, of this run and of its model."""

import json
from pathlib import Path

import pytest
import torch

from node.data.tokenizer import ByteTokenizer
from node.model.checkpoint import save_checkpoint
from node.replica.checkpoint_state import read_state
from node.replica.demo import DemoReplica
from node.replica.digest import canonical_sha256
from node.replica.snapshot import Snapshots
from protocol.errors import DataError, StorageError
from protocol.ids import RunId
from protocol.run_info import RunInfo
from tests.support.tiny import DEMO, tiny_spec

RUN = RunId("12" * 16)
INFO = RunInfo(tiny_spec(overlap=0, algorithm=DEMO), RUN, bytes(32))


@pytest.fixture(scope="module")
def replica() -> DemoReplica:
    torch.set_num_threads(1)
    return DemoReplica(INFO.spec, RUN, torch.device("cpu"), 2)


@pytest.fixture
def checkpoint(replica: DemoReplica, tmp_path: Path) -> Path:
    about = {"run_id": RUN, "round": 7, "state_digest": f"{replica.digest:016x}"}
    place = tmp_path / "checkpoint"
    save_checkpoint(place, replica.trainee.model, replica.committed, ByteTokenizer(), about)
    return place


def change(checkpoint: Path, **fields: object) -> None:
    path = checkpoint / "lockstep.json"
    document = json.loads(path.read_text())
    document["metadata"] |= fields
    path.write_text(json.dumps(document))


def test_a_checkpoint_and_a_snapshot_of_one_state_have_the_same_names(
    replica: DemoReplica, checkpoint: Path, tmp_path: Path
) -> None:
    snapshots = Snapshots(tmp_path / "snapshots")
    path = snapshots.path(snapshots.write(7, replica.committed))
    assert path is not None
    for source in (checkpoint, path):
        state = read_state(source, INFO)
        assert state.sha256 == canonical_sha256(replica.committed)
        assert (state.state_digest, state.round) == (replica.digest, 7)


def test_a_node_keeps_a_named_state_however_many_newer_snapshots_it_has(
    replica: DemoReplica, checkpoint: Path, tmp_path: Path
) -> None:
    snapshots = Snapshots(tmp_path / "snapshots")
    other = {name: tensor + 1 for name, tensor in replica.committed.items()}
    for round in (8, 9):
        snapshots.write(round, {name: tensor + round for name, tensor in other.items()})
    digest = snapshots.keep(7, read_state(checkpoint, INFO).parameters)
    assert snapshots.path(digest) is not None
    assert Snapshots(tmp_path / "snapshots").path(digest) is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"run_id": "34" * 16}, "expected a checkpoint of run 1212"),
        ({"state_digest": "0" * 16}, "is damaged: expected parameters with digest 0000"),
    ],
)
def test_a_checkpoint_that_is_not_what_it_says_is_refused(
    checkpoint: Path, fields: dict[str, str], words: str
) -> None:
    change(checkpoint, **fields)
    with pytest.raises((DataError, StorageError), match=words):
        read_state(checkpoint, INFO)


def test_a_file_that_is_no_snapshot_or_a_damaged_one_is_refused(
    replica: DemoReplica, tmp_path: Path
) -> None:
    path = tmp_path / "parameters.bin"
    path.write_bytes(b"?")
    for source in (path, tmp_path / "nothing"):
        with pytest.raises(DataError, match="expected a checkpoint's directory, or a snapshot"):
            read_state(source, INFO)
    snapshots = Snapshots(tmp_path / "snapshots")
    kept = snapshots.path(snapshots.write(7, replica.committed))
    assert kept is not None
    kept.write_bytes(kept.read_bytes()[:-1] + bytes([kept.read_bytes()[-1] ^ 1]))
    with pytest.raises(StorageError, match="its SHA-256 is not the one of its name"):
        read_state(kept, INFO)
