"""A corpus at a URL."""

from pathlib import Path

import fsspec
import pytest

from node.data.corpus import Corpus
from node.data.publish import publish
from node.data.remote.reader import open_published
from protocol.errors import DataError, SettingsError, StorageError
from tests.support.tiny import tiny_corpus


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_corpus(tmp_path / "data")


def test_any_url_of_fsspec_will_do(directory: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = publish(directory, "memory://bucket/text", lambda *done: seen.append(done))
    assert fsspec.filesystem("memory").exists("/bucket/text/manifest.json")
    assert seen[-1] == (4, 4)
    remote = open_published("memory://bucket/text", manifest.digest.hex(), tmp_path / "k", 10**6)
    assert (remote.batch(0, 9, 32, 0) == Corpus.open(directory).batch(0, 9, 32, 0)).all()
    remote.close()


def test_damaged_data_are_not_published(directory: Path, tmp_path: Path) -> None:
    path = directory / "train-00000.sha"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(DataError, match=r"train-00000\.sha: expected SHA-256"):
        publish(directory, str(tmp_path / "out"))
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*train-00000\.sha"):
        publish(directory, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_address_that_cannot_be_written_to_is_said(directory: Path) -> None:
    with pytest.raises(SettingsError, match="expected a directory or a URL that fsspec can write"):
        publish(directory, "nonsense://a/b")
    with pytest.raises(StorageError, match="cannot publish to http://127"):
        publish(directory, "http://127.0.0.1:9/data")
