"""A run that begins from a published checkpoint: fetched once, and only if it is the right one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.data.remote import source
from node.model.build import named_parameters_once
from node.own_genesis import SINGLE, genesis_of
from node.replica.digest import canonical_sha256
from node.replica.factory import replica_for
from protocol.errors import DataError, SettingsError
from protocol.ids import RunId
from protocol.runfile import RunSpec, parse_run_json, run_json
from tests.support.checkpoints import saved_checkpoint
from tests.support.data_server import (
    DRIPS,
    DataServer,
    Misbehaviour,
    compressed,
    cut_once,
    dripping,
    endless,
    redirecting,
    serving,
    too_long,
)
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
def server(published: tuple[Path, RunSpec]) -> Iterator[DataServer]:
    with serving(published[0]) as served:
        yield served


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


@pytest.mark.parametrize("ranges", [True, False])
def test_it_is_fetched_from_a_web_server_once_and_then_kept(
    tmp_path: Path, published: tuple[Path, RunSpec], server: DataServer, ranges: bool
) -> None:
    server.knows_ranges = ranges
    spec = at(published[1], server.url)
    path = genesis_of(spec, tmp_path / "kept")
    assert path
    (published[0] / "model.safetensors").unlink()
    assert genesis_of(spec, tmp_path / "kept") == path
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"index\.json: expected a file of the run, got status 404"):
        genesis_of(spec, tmp_path / "kept")


def test_a_connection_that_breaks_is_taken_up(
    tmp_path: Path, published: tuple[Path, RunSpec], server: DataServer
) -> None:
    server.misbehaves = cut_once
    assert genesis_of(at(published[1], server.url), tmp_path / "kept")
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("misbehaviour", "expected"),
    [
        (endless, r"model\.safetensors: expected at most [\d,]+ bytes, got more"),
        (too_long, r"model\.safetensors: expected at most [\d,]+ bytes, got more"),
        (compressed, "got them as gzip"),
        (dripping, "expected 4,096 bytes a second, got less"),
        (redirecting, "it redirects without an end"),
    ],
)
def test_a_server_cannot_take_the_memory_nor_the_time_of_a_node(
    tmp_path: Path,
    published: tuple[Path, RunSpec],
    server: DataServer,
    misbehaviour: Misbehaviour,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "ANSWER_S", 0.5)
    server.misbehaves = misbehaviour
    with pytest.raises(DataError, match=f"^genesis http.*{expected}"):
        genesis_of(at(published[1], server.url), tmp_path / "kept")
    assert server.sent_bytes < (DRIPS if misbehaviour is dripping else 32 * 1024**2)
    assert not list((tmp_path / "kept").iterdir())


def changed(place: Path, **changes: Tensor) -> None:
    tensors = load_file(place / "model.safetensors")
    save_file(tensors | changes, place / "model.safetensors")


def test_shards_half_precision_and_other_names_of_tied_weights_are_understood(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    place, spec = published
    tensors = load_file(place / "model.safetensors")
    assert "lm_head.weight" not in tensors, "the layout of transformers"
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    names = sorted(halves)
    (place / "model.safetensors").unlink()
    for number, part in enumerate((names[:2], names[2:]), 1):
        path = place / f"model-0000{number}-of-00002.safetensors"
        save_file({name: halves[name] for name in part}, path)
    index = {
        name: f"model-0000{1 if name in names[:2] else 2}-of-00002.safetensors" for name in names
    }
    import json

    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(DataError, match="expected parameters with SHA-256") as refused:
        genesis_of(spec, tmp_path / "kept")
    got = str(refused.value).partition(", got ")[2][:64]
    rounded = spec.model_copy(update={"genesis_sha256": got})
    assert genesis_of(rounded, tmp_path / "kept")


def test_damaged_parameters_are_refused_and_nothing_is_kept(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    place, spec = published
    name, tensor = next(iter(load_file(place / "model.safetensors").items()))
    changed(place, **{name: tensor + 1})
    with pytest.raises(DataError, match="it is damaged, or another checkpoint"):
        genesis_of(spec, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    (place / "model.safetensors").write_bytes(b"nonsense of some length")
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
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    place, spec = published
    changed(place, filler=torch.zeros(10**6))
    with pytest.raises(
        DataError, match=r"model\.safetensors: expected at most [\d,]+ bytes, got more"
    ):
        genesis_of(spec, tmp_path / "kept")


def test_an_index_is_no_longer_than_the_model_has_parameters(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    place, spec = published
    (place / "model.safetensors").unlink()
    index = place / "model.safetensors.index.json"
    index.write_bytes(b"[" + b"[]," * 10**6 + b"[]]")
    with pytest.raises(DataError, match=r"index\.json: expected at most [\d,]+ bytes, got more"):
        genesis_of(spec, tmp_path / "kept")
    index.write_bytes(b"[" + b"[]," * 10**3 + b"[]]")
    with pytest.raises(DataError, match=r"index\.json: expected the files of all tensors"):
        genesis_of(spec, tmp_path / "kept")


def test_a_header_is_no_longer_than_the_model_has_parameters(
    tmp_path: Path, published: tuple[Path, RunSpec]
) -> None:
    place, spec = published
    save_file({f"{number:030}": torch.zeros(1) for number in range(2000)}, place / SINGLE)
    with pytest.raises(DataError, match="expected a header of at most"):
        genesis_of(spec, tmp_path / "kept")


def test_source_and_sha256_belong_together() -> None:
    with pytest.raises(SettingsError, match="belong together"):
        parse_run_json(run_json(tiny_spec().model_copy(update={"genesis": "x"})), "test")


def test_a_run_without_one_begins_from_its_seed(tmp_path: Path) -> None:
    assert genesis_of(tiny_spec(), tmp_path / "kept") is None
