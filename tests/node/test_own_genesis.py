"""A run that begins from a published checkpoint: fetched once, and only if it is the right one."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.model.build import named_parameters_once
from node.own_genesis import genesis_of
from node.replica.digest import canonical_sha256
from node.replica.factory import replica_for
from protocol.errors import DataError, SettingsError
from protocol.ids import RunId
from protocol.runfile import RunSpec, parse_run_json, run_json
from tests.support.checkpoints import saved_checkpoint
from tests.support.tiny import tiny_spec

RUN = RunId("12" * 16)


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, RunSpec]:
    """A checkpoint of the run's model, and the run file that begins from it."""
    from node.data.tokenizer import ByteTokenizer
    from node.model.build import build_model
    from node.model.checkpoint import save_checkpoint
    from node.replica.genesis import fill

    spec = tiny_spec()
    model = build_model(spec.model.type, spec.model.config)
    fill(model, 77, 0.3)
    parameters = {name: each.detach() for name, each in named_parameters_once(model).items()}
    save_checkpoint(tmp_path / "public", model, parameters, ByteTokenizer(), {})
    about = {
        "genesis": str(tmp_path / "public"),
        "genesis_sha256": canonical_sha256(parameters).hex(),
    }
    return tmp_path / "public", parse_run_json(run_json(spec.model_copy(update=about)), "test")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def at(spec: RunSpec, source: str) -> RunSpec:
    return spec.model_copy(update={"genesis": source})


def test_the_replica_begins_and_is_reset_to_the_published_parameters(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    _, spec = published
    genesis = genesis_of(spec, tmp_path / "kept")
    replica = replica_for(spec, RUN, torch.device("cpu"), 2, genesis=genesis)
    assert canonical_sha256(replica.committed).hex() == spec.genesis_sha256
    with torch.no_grad():
        next(iter(replica.committed.values())).add_(1)
    replica.reset()
    assert canonical_sha256(replica.committed).hex() == spec.genesis_sha256


def test_it_is_fetched_from_a_web_server_once_and_then_kept(
    tmp_path: Path, published: tuple[Path, RunSpec], server: str
) -> None:
    source, spec = published
    path = genesis_of(at(spec, f"{server}/public"), tmp_path / "kept")
    assert path
    (source / "model.safetensors").unlink()
    assert genesis_of(at(spec, f"{server}/public"), tmp_path / "kept") == path
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot fetch it"):
        genesis_of(at(spec, f"{server}/public"), tmp_path / "kept")


def changed(source: Path, **changes: Tensor) -> None:
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | changes, source / "model.safetensors")


def test_shards_half_precision_and_other_names_of_tied_weights_are_understood(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    source, spec = published
    tensors = load_file(source / "model.safetensors")
    assert "lm_head.weight" not in tensors, "the layout of transformers"
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    names = sorted(halves)
    (source / "model.safetensors").unlink()
    for number, part in enumerate((names[:2], names[2:]), 1):
        path = source / f"model-0000{number}-of-00002.safetensors"
        save_file({name: halves[name] for name in part}, path)
    index = {
        name: f"model-0000{1 if name in names[:2] else 2}-of-00002.safetensors" for name in names
    }
    import json

    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(DataError, match="expected parameters with SHA-256") as refused:
        genesis_of(spec, tmp_path / "kept")
    got = str(refused.value).partition(", got ")[2][:64]
    rounded = spec.model_copy(update={"genesis_sha256": got})
    assert genesis_of(rounded, tmp_path / "kept")


def test_damaged_parameters_are_refused_and_nothing_is_kept(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    source, spec = published
    name, tensor = next(iter(load_file(source / "model.safetensors").items()))
    changed(source, **{name: tensor + 1})
    with pytest.raises(DataError, match="it is damaged, or another checkpoint"):
        genesis_of(spec, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    (source / "model.safetensors").write_bytes(b"nonsense of some length")
    with pytest.raises(DataError, match="damaged"):
        genesis_of(spec, tmp_path / "kept")


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    _, spec = published
    saved_checkpoint(tmp_path / "other")
    with pytest.raises(DataError, match="it is of another model"):
        genesis_of(at(spec, str(tmp_path / "other")), tmp_path / "kept")


@pytest.mark.parametrize(
    "source",
    ["file:///etc", "ftp://a/b", "zip://x::http://a/b", "simplecache::http://a", "memory://x"],
)
def test_no_other_kind_of_address_is_opened_on_the_word_of_a_run_file(
    tmp_path: Path, published: tuple[Path, RunSpec], source: str
) -> None:
    with pytest.raises(DataError, match="expected a directory or a URL of"):
        genesis_of(at(published[1], source), tmp_path / "kept")


def test_more_bytes_than_the_model_can_have_are_not_fetched(
    tmp_path: Path, published: tuple[Path, RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.own_genesis.INDEX_BYTES_MAX", 0)
    source, spec = published
    changed(source, filler=torch.zeros(10**6))
    with pytest.raises(DataError, match="larger than the run's model can be"):
        genesis_of(spec, tmp_path / "kept")


def test_source_and_sha256_belong_together() -> None:
    with pytest.raises(SettingsError, match="belong together"):
        parse_run_json(run_json(tiny_spec().model_copy(update={"genesis": "x"})), "test")


def test_a_run_without_one_begins_from_its_seed(tmp_path: Path) -> None:
    assert genesis_of(tiny_spec(), tmp_path / "kept") is None
