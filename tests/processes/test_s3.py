"""A run whose data, genesis and model lie in buckets: real processes, s3fs, and a server of S3 on
loopback. Its password stands in no file that they write.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from node.model.publish import publish_directory
from node.replica.digest import canonical_sha256
from protocol.runfile import ModelSpec
from tests.processes.watching import watch_until
from tests.support.bucket import SECRET, BucketServer, serving_bucket
from tests.support.checkpoints import TINY, copied, saved_checkpoint
from tests.support.tiny import tiny_corpus, tiny_spec

WITHOUT = "needs s3fs and moto: pip install s3fs 'moto[server]'"

pytest.importorskip("moto.server", reason=WITHOUT)
s3fs = pytest.importorskip("s3fs", reason=WITHOUT)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
STEPS = 6
DATA, GENESIS, MODEL = "s3://bucket/text", "s3://bucket/winter", "s3://bucket/spring/model"


@pytest.fixture
def bucket() -> Iterator[BucketServer]:
    with pytest.MonkeyPatch.context() as patch, serving_bucket() as server:
        for name, value in server.variables.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield server


def published_data(directory: Path) -> str:
    """The digest that the command prints for the run file."""
    data = str(tiny_corpus(directory / "data"))
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "data", "publish", data, DATA],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r'manifest_sha256 = "(\w{64})"', done.stdout)
    assert found, done.stdout
    assert SECRET not in done.stdout + done.stderr
    return found[1]


def run_file(directory: Path) -> tuple[Path, str]:
    """A run whose data and genesis are in the bucket, and the SHA-256 of its genesis."""
    model, spec = saved_checkpoint(directory / "winter"), tiny_spec(steps=STEPS)
    publish_directory(directory / "winter", GENESIS)
    sha256 = canonical_sha256(copied(model)).hex()
    own = {"url": DATA, "manifest_sha256": published_data(directory)}
    changes: dict[str, Any] = {
        "model": ModelSpec(config=TINY["llama"]),
        "data": spec.data.model_copy(update=own),
        "genesis": GENESIS,
        "genesis_sha256": sha256,
    }
    path = directory / "run.toml"
    write_run_file(path, spec.model_copy(update=changes), force=True)
    return path, sha256


@pytest.mark.usefixtures("bucket")
def test_data_and_genesis_come_from_buckets_and_the_model_goes_to_one(tmp_path: Path) -> None:
    path, genesis = run_file(tmp_path)
    place = tmp_path / "cluster"
    place.mkdir()
    with Cluster(ClusterSettings(place, path, tmp_path / "data", nodes=2)) as cluster:
        for node in cluster.nodes:
            words = [*node.arguments]
            at = words.index("--data")
            node.arguments = (*words[:at], *words[at + 2 :])
        cluster.nodes[0].arguments += ("--publish", MODEL)
        cluster.start()
        watch_until(cluster, lambda: cluster.finished, "the end of the run", PATIENCE_S)
        cluster.wait()
        assert {node.status["data"]["from"] for node in cluster.nodes} == {DATA}
        assert {node.exit_status for node in cluster.nodes} == {0}
        log = cluster.nodes[0].log.read_text()
    assert list(place.rglob(f"0-{genesis}")), "nodes keep the genesis that they fetched"
    assert "checkpoint published" in log, log
    files = s3fs.S3FileSystem(skip_instance_cache=True)
    about = json.loads(files.cat_file(f"{MODEL}/lockstep.json"))["metadata"]
    assert about["round"] == STEPS - 1
    assert files.exists(f"{MODEL}/model.safetensors")
    assert files.exists(f"{MODEL}/README.md")
    shown = [file for file in place.rglob("*") if file.is_file()]
    assert [file for file in shown if SECRET.encode() in file.read_bytes()] == []
