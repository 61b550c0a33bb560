"""Promises of tensors on disk."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from node.model.checkpoint import safetensors_errors
from node.replica.state_file import load_tensors, save_tensors
from node.system import files
from protocol.errors import ShortageError, StorageError
from protocol.shortage import Patience
from tests.support.checkpoints import disk_full
from tests.support.shortage import no_descriptors

torch.set_num_threads(1)


def test_parameters_of_any_dtype_come_back_with_what_was_said(tmp_path: Path) -> None:
    tensors = {
        "momentum": torch.randn(3, 4, 5),
        "transposed": torch.randn(6, 2).T,
        "half": torch.randn(3).bfloat16(),
        "steps": torch.tensor(2**40),
        "nothing": torch.zeros(0, 3),
    }
    save_tensors(
        tmp_path / "deep" / "state.safetensors", tensors, {"round": 3, "list": [1, "x", None]}
    )
    loaded, metadata = load_tensors(tmp_path / "deep" / "state.safetensors")
    assert metadata == {"round": 3, "list": [1, "x", None]}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    whole = torch.randn(4, 3)
    save_tensors(tmp_path / "state", {"whole": whole, "head": whole[:2], "again": whole}, {})
    loaded, _ = load_tensors(tmp_path / "state")
    assert torch.equal(loaded["head"], whole[:2])
    assert torch.equal(loaded["again"], whole)


def test_older_parameters_survive_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"a": torch.ones(2)}, {"round": 1})
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(
        StorageError, match=r"disk is full.*state\.safetensors, which needs 16 bytes"
    ):
        save_tensors(path, {"a": torch.zeros(4)}, {"round": 2})
    assert load_tensors(path)[1] == {"round": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("blob", [None, b"", b"\x10" + bytes(30)])
def test_missing_or_damaged_parameters_are_a_storage_error(
    tmp_path: Path, blob: bytes | None
) -> None:
    path = tmp_path / "state.safetensors"
    if blob is not None:
        path.write_bytes(blob)
    with pytest.raises(StorageError, match=r"expected saved parameters"):
        load_tensors(path)


def test_a_file_of_another_program_is_not_ours(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    with pytest.raises(StorageError, match=r"foreign is damaged: expected saved parameters"):
        load_tensors(tmp_path / "foreign")


def test_a_state_is_saved_and_read_when_descriptors_are_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waits = tmp_path / "state", list[float]()
    save_tensors(path, {"a": torch.zeros(2)}, {})

    for work in (
        lambda: save_tensors(path, {"a": torch.ones(2)}, {}),
        lambda: load_tensors(path),
    ):
        with no_descriptors() as release:
            patience = Patience(lambda pause, free=release: (waits.append(pause), free()), str)
            monkeypatch.setattr(files, "_patience", patience)
            work()
    assert len(waits) == 2
    assert load_tensors(path)[0]["a"].tolist() == [1, 1]


def test_a_lack_that_safetensors_meets_is_no_broken_disk(tmp_path: Path) -> None:
    with (
        no_descriptors(),
        pytest.raises(ShortageError, match="Too many open files"),
        safetensors_errors(tmp_path / "state", 8),
    ):
        save_file({"a": torch.zeros(2)}, tmp_path / "state")
