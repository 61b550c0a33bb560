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
    publish_directory(checkpoint, f"{scheme}{target}")
    (target / "model-00002-of-00002.safetensors").write_text("x")
    publish_directory(checkpoint, f"{scheme}{target}")
    assert load_checkpoint(target).metadata == ABOUT
    assert not (target / "model-00002-of-00002.safetensors").exists()


@pytest.mark.parametrize("names", [["thesis.tex"], ["config.json"], ["lockstep.json", ".git"]])
def test_a_directory_with_anything_of_its_owner_s_is_refused_and_left_as_it_is(
    tmp_path: Path, checkpoint: Path, names: list[str]
) -> None:
    (target := tmp_path / "documents").mkdir()
    for name in names:
        (target / name).write_text("mine")
    with pytest.raises(SettingsError, match=r"documents has .*: name another directory"):
        publish_directory(checkpoint, str(target))
    assert {path.name: path.read_text() for path in target.iterdir()} == dict.fromkeys(
        names, "mine"
    )


def test_a_file_is_no_place_for_a_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    (target := tmp_path / "letter").write_text("mine")
    with pytest.raises(SettingsError, match="letter is a file"):
        publish_directory(checkpoint, str(target))
    assert target.read_text() == "mine"


def test_a_url_keeps_the_shards_of_a_model_that_is_not_ours(checkpoint: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/theirs/model-00002-of-00002.safetensors", b"theirs")
    publish_directory(checkpoint, "memory://bucket/theirs")
    assert memory.cat_file("/bucket/theirs/model-00002-of-00002.safetensors") == b"theirs"


def test_a_url_gets_every_file_and_loses_the_shards_of_an_older_model(checkpoint: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/model/model-00002-of-00002.safetensors", b"old")
    memory.pipe_file("/bucket/model/lockstep.json", b"old")
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
