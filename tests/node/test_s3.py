"""Data, checkpoints and genesis in a bucket: s3fs against a server of S3 on loopback."""

from collections.abc import Iterator
from pathlib import Path

import fsspec.config
import pytest

from node.data.corpus import Corpus
from node.data.publish import publish
from node.data.remote.reader import open_published
from node.model.checkpoint import load_checkpoint
from node.model.publish import publish_directory
from node.own_genesis import genesis_of
from node.replica.digest import canonical_sha256
from node.replica.snapshot import file_sha256
from protocol.errors import DataError, StorageError
from protocol.runfile import ModelSpec
from tests.support.bucket import SECRET, BucketServer, serving_bucket
from tests.support.checkpoints import ABOUT, TINY, copied, saved_checkpoint
from tests.support.tiny import tiny_corpus, tiny_spec

WITHOUT = "needs s3fs and moto: pip install s3fs 'moto[server]'"

pytest.importorskip("moto.server", reason=WITHOUT)
s3fs = pytest.importorskip("s3fs", reason=WITHOUT)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with serving_bucket() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield server
        s3fs.S3FileSystem.clear_instance_cache()


def names_at(url: str) -> set[str]:
    files = s3fs.S3FileSystem(skip_instance_cache=True).ls(url, detail=False)
    return {path.rpartition("/")[2] for path in files}


@pytest.mark.usefixtures("server")
def test_published_data_are_read_by_ranges_as_they_were(tmp_path: Path) -> None:
    directory = tiny_corpus(tmp_path / "data")
    manifest = publish(directory, "s3://bucket/text")
    remote = open_published("s3://bucket/text", manifest.digest.hex(), tmp_path / "k", 10**6)
    assert (remote.batch(0, 9, 32, 0) == Corpus.open(directory).batch(0, 9, 32, 0)).all()
    remote.close()


@pytest.mark.usefixtures("server")
def test_a_checkpoint_is_put_where_nothing_was_and_then_in_place_of_the_older_one(
    tmp_path: Path,
) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    written = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    publish_directory(tmp_path / "checkpoint", "s3://bucket/winter/model")
    assert names_at("s3://bucket/winter/model") == written
    old = "model-00002-of-00002.safetensors"
    s3fs.S3FileSystem(skip_instance_cache=True).pipe_file(f"bucket/winter/model/{old}", b"old")
    publish_directory(tmp_path / "checkpoint", "s3://bucket/winter/model")
    assert names_at("s3://bucket/winter/model") == written
    s3fs.S3FileSystem().get("bucket/winter/model", str(tmp_path / "fetched"), recursive=True)
    assert load_checkpoint(tmp_path / "fetched").metadata == ABOUT


@pytest.mark.usefixtures("server")
def test_a_run_begins_from_a_checkpoint_in_a_bucket(tmp_path: Path) -> None:
    model, spec = saved_checkpoint(tmp_path / "checkpoint"), tiny_spec()
    publish_directory(tmp_path / "checkpoint", "s3://bucket/winter")
    about = {
        "model": ModelSpec(config=TINY["llama"]),
        "genesis": "s3://bucket/winter",
        "genesis_sha256": canonical_sha256(copied(model)).hex(),
    }
    found = genesis_of(spec.model_copy(update=about), tmp_path / "kept")
    assert found
    assert file_sha256(found).hex() == about["genesis_sha256"]


def test_a_bucket_that_does_not_let_in_is_said_and_its_password_is_not(
    tmp_path: Path, server: BucketServer
) -> None:
    directory = tiny_corpus(tmp_path / "data")
    server.refuse_strangers()
    with pytest.raises(StorageError, match="cannot publish to s3://bucket/text") as written:
        publish(directory, "s3://bucket/text")
    with pytest.raises(DataError, match="expected a file of the run") as read:
        open_published("s3://bucket/text", "", tmp_path / "kept", 10**6)
    assert SECRET not in f"{written.value} {read.value}"


@pytest.mark.usefixtures("server")
def test_nothing_at_an_address_is_not_waited_for(tmp_path: Path) -> None:
    publish(tiny_corpus(tmp_path / "data"), "s3://bucket/text")
    for url in ("s3://bucket/other", "s3://elsewhere/text"):
        with pytest.raises(DataError, match="expected a file of the run"):
            open_published(url, "", tmp_path / "kept", 10**6)


@pytest.mark.usefixtures("server")
def test_missing_credentials_are_a_wrong_setting_and_not_a_server_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tiny_corpus(tmp_path / "data")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(DataError, match="expected credentials in the environment"):
        open_published("s3://bucket/text", "", tmp_path / "kept", 10**6)
    with pytest.raises(StorageError, match="credentials"):
        publish(directory, "s3://bucket/text")


@pytest.mark.usefixtures("server")
def test_a_public_bucket_is_read_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publish(tiny_corpus(tmp_path / "data"), "s3://bucket/text")
    s3fs.S3FileSystem().chmod("bucket/text", acl="public-read", recursive=True)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": "true"})  # FSSPEC_S3_ANON=true
    remote = open_published("s3://bucket/text", manifest.digest.hex(), tmp_path / "kept", 10**6)
    assert remote.manifest == manifest
    remote.close()
