"""The coordinator's checkpoints on disk: what it takes, and what it computes from the files."""

import json
import struct
from pathlib import Path

import pytest
import torch

from coordinator.checkpoints import parameters
from coordinator.checkpoints.parameters import digests_of
from coordinator.checkpoints.store import CheckpointStore
from node.model.build import named_parameters_once
from node.replica.digest import canonical_sha256, state_digest
from protocol.border.checkpoint_files import (
    CARD_BYTES_MAX,
    CONFIGURATION_BYTES_MAX,
    INDEX_BYTES_MAX,
)
from protocol.errors import RemoteProtocolError
from protocol.limits import TOKENIZER_BYTES_MAX
from tests.support.checkpoints import saved_checkpoint

ROOM = 10_000_000


def sent(store: CheckpointStore, source: Path, part_bytes: int = 5000) -> None:
    store.begin(ROOM)
    for path in sorted(source.iterdir()):
        blob = path.read_bytes()
        for offset in range(0, len(blob), part_bytes):
            store.put(path.name, offset, blob[offset : offset + part_bytes])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    saved_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "README.md").write_text("a card")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mamba"])
def test_the_coordinator_computes_the_digests_of_the_nodes_without_torch(
    tmp_path: Path, model_type: str
) -> None:
    """Of tied weights too, which a file has under another name than the run."""
    model = saved_checkpoint(tmp_path / "saved", model_type)
    held = named_parameters_once(model)
    found = digests_of([tmp_path / "saved" / "model.safetensors"])
    assert found == (state_digest(held), canonical_sha256(held))


def test_rows_and_strips_of_any_length_give_the_same_digests(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    shapes = {"b.long": (3, 4096 * 257), "a.short": (5,), "c": (4096,), "d": ()}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    found = digests_of([tmp_path / "model.safetensors"])
    assert found == (state_digest(tensors), canonical_sha256(tensors))


def test_files_that_came_in_parts_are_checked_and_get_their_place(
    tmp_path: Path, checkpoint: Path
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    sent(store, checkpoint)
    digest, sha256, size = store.complete(7)
    place = tmp_path / "checkpoints" / f"7-{sha256.hex()[:16]}"
    names = {path.name for path in checkpoint.iterdir()}
    assert {path.name for path in place.iterdir()} == names
    assert size == sum(path.stat().st_size for path in checkpoint.iterdir())
    assert (digest, sha256) == digests_of([checkpoint / "model.safetensors"])


def test_older_ones_are_removed_and_those_to_keep_stay(tmp_path: Path, checkpoint: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    for round in (7, 9):
        sent(store, checkpoint)
        store.complete(round)
    (kept,) = [path.name for path in store.directory.iterdir() if path.name.startswith("9-")]
    store.keep([kept])
    assert [path.name for path in store.directory.iterdir()] == [kept]


def test_a_part_that_is_sent_again_is_taken_once_and_one_out_of_place_is_refused(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path)
    store.begin(ROOM)
    store.put("config.json", 0, b"{}")
    store.put("config.json", 0, b"{}")
    with pytest.raises(RemoteProtocolError, match="expected the part at 2"):
        store.put("config.json", 5, b"{}")
    assert (tmp_path / "incoming" / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    "name", ["../config.json", "modeling.py", "pytorch_model.bin", "", "a/README.md", "README.md\n"]
)
def test_no_program_no_pickle_and_no_path_is_stored(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.begin(ROOM)
    with pytest.raises(RemoteProtocolError, match="expected a file of a checkpoint"):
        store.put(name, 0, b"x")
    assert not list((tmp_path / "checkpoints" / "incoming").iterdir())


def test_more_bytes_than_the_room_are_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin(10)
    store.put("config.json", 0, b"12345678")
    with pytest.raises(RemoteProtocolError, match="expected at most 10 bytes"):
        store.put("README.md", 0, b"123")


def test_a_configuration_that_loads_programs_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    store = CheckpointStore(tmp_path / "checkpoints")
    sent(store, checkpoint)
    with pytest.raises(RemoteProtocolError, match="auto_map"):
        store.complete(7)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("config.json", CONFIGURATION_BYTES_MAX),
        ("tokenizer_config.json", CONFIGURATION_BYTES_MAX),
        ("tokenizer.json", TOKENIZER_BYTES_MAX),
        ("README.md", CARD_BYTES_MAX),
        ("model.safetensors.index.json", INDEX_BYTES_MAX),
    ],
)
def test_a_file_that_is_longer_than_its_kind_is_refused_as_it_comes(
    tmp_path: Path, name: str, most: int
) -> None:
    store = CheckpointStore(tmp_path)
    store.begin(2 * TOKENIZER_BYTES_MAX)
    store.put(name, 0, bytes(most))
    with pytest.raises(RemoteProtocolError, match=rf"{name}: expected at most {most:,} bytes"):
        store.put(name, most, b"x")
    assert (tmp_path / "incoming" / name).stat().st_size == most


def test_no_file_of_megabytes_is_parsed(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser holds the interpreter's lock: no thread helps."""
    parsed: list[int] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(len(text)) or loads(text))
    for name in ("tokenizer.json", "lockstep.json"):
        (checkpoint / name).write_bytes(b"[" + b"[]," * 1_000_000 + b"[]]")
    store = CheckpointStore(tmp_path / "checkpoints")
    sent(store, checkpoint, part_bytes=10**6)
    store.complete(7)
    assert parsed
    assert max(parsed) <= CONFIGURATION_BYTES_MAX


@pytest.mark.parametrize("missing", ["README.md", "config.json", "tokenizer.json"])
def test_a_checkpoint_that_lacks_a_file_is_refused(
    tmp_path: Path, checkpoint: Path, missing: str
) -> None:
    (checkpoint / missing).unlink()
    store = CheckpointStore(tmp_path / "checkpoints")
    sent(store, checkpoint)
    with pytest.raises(RemoteProtocolError, match=missing):
        store.complete(7)


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(first: int, last: int, **changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(last - first) // 4], "data_offsets": [first, last]} | changes


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xff" * 20,
        safetensors(b"[" * 10_000),
        safetensors([1]),
        safetensors({"a": tensor(0, 8)}, b"1234"),
        safetensors({"a": tensor(0, 8)}, b"12345678more"),
        safetensors({"a": tensor(0, 8, dtype="BF16")}, b"12345678"),
        safetensors({"a": tensor(0, 8, shape=[2, -1, -1])}, b"12345678"),
        safetensors({"a": tensor(0, 8, shape=[True, 2])}, b"12345678"),
        safetensors({"a": tensor(-8, 0)}, b"12345678"),
        safetensors({"a": tensor(0, 8, shape=[2] + [1] * 50)}, b"12345678"),
        safetensors({"a": tensor(0, 8), "b": {"shape": [0]}}, b"12345678"),
        safetensors({"a": tensor(0, 8, data_offsets=[0, 8, 8])}, b"12345678"),
    ],
)
def test_a_file_that_is_no_sound_safetensors_file_is_refused(tmp_path: Path, blob: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(blob)
    with pytest.raises(RemoteProtocolError, match=r"model\.safetensors"):
        digests_of([path])


def test_the_headers_of_all_files_have_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = [safetensors({f"tensor {number}": tensor(0, 4)}, b"1234") for number in range(3)]
    paths = [tmp_path / f"model-0000{number}-of-00003.safetensors" for number in range(3)]
    for path, blob in zip(paths, blobs, strict=True):
        path.write_bytes(blob)
    monkeypatch.setattr(parameters, "HEADERS_BYTES_MAX", sum(len(blob) - 12 for blob in blobs))
    digests_of(paths)
    monkeypatch.setattr(parameters, "HEADERS_BYTES_MAX", parameters.HEADERS_BYTES_MAX - 1)
    with pytest.raises(
        RemoteProtocolError, match=r"00002-of-00003\.safetensors: expected headers of"
    ):
        digests_of(paths)
