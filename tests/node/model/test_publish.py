"""A checkpoint at a directory or at a URL of fsspec."""

from pathlib import Path

import fsspec
import pytest

from node.model.checkpoint import load_checkpoint
from node.model.publish import local_path, publish_directory
from protocol.errors import SettingsError, StorageError
from tests.support.checkpoints import ABOUT, saved_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    saved_checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_directory_is_replaced_as_a_whole_and_loads(
    tmp_path: Path, checkpoint: Path, scheme: str
) -> None:
    target = tmp_path / "public" / "model"
    target.mkdir(parents=True)
    (target / "old").write_text("x")
    publish_directory(checkpoint, f"{scheme}{target}")
    assert load_checkpoint(target).metadata == ABOUT
    assert not (target / "old").exists()


def test_a_url_gets_every_file_and_loses_the_shards_of_an_older_model(checkpoint: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/model/model-00002-of-00002.safetensors", b"old")
    memory.pipe_file("/bucket/model/notes.txt", b"the owner's")
    publish_directory(checkpoint, "memory://bucket/model")
    names = {path.rpartition("/")[2] for path in memory.ls("/bucket/model", detail=False)}
    assert names == {path.name for path in checkpoint.iterdir()} | {"notes.txt"}
    for path in checkpoint.iterdir():
        assert memory.cat_file(f"/bucket/model/{path.name}") == path.read_bytes()
    assert local_path("memory://bucket/model") is None


def test_a_place_without_files_need_not_exist_before(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket a directory is there once it has a file."""
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "makedirs", lambda *_, **__: None)
    publish_directory(checkpoint, "memory://bucket/fresh/model")
    assert memory.exists("/bucket/fresh/model/lockstep.json")


def test_an_address_that_no_backend_knows_is_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="nothing://there"):
        local_path("nothing://there")


def test_a_backend_that_fails_is_named_with_its_address(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("no token")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", refused)
    with pytest.raises(StorageError, match="cannot publish to memory://b: PermissionError"):
        publish_directory(checkpoint, "memory://b")
