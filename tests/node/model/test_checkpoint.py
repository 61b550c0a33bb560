"""Promises of published checkpoints."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from node.data.tokenizer import ByteTokenizer
from node.model.build import named_parameters_once
from node.model.checkpoint import load_checkpoint, save_checkpoint
from node.replica.digest import canonical_sha256
from node.replica.state_file import load_tensors, save_tensors
from protocol.errors import DataError, LocalProtocolError, StorageError, VersionError
from tests.support.checkpoints import ABOUT, TINY, copied, disk_full, saved_checkpoint, tiny_model

torch.set_num_threads(1)


def _same(model: nn.Module, parameters: dict[str, Tensor]) -> bool:
    return canonical_sha256(named_parameters_once(model)) == canonical_sha256(parameters)


@pytest.mark.parametrize("model_type", TINY)
def test_transformers_loads_the_same_bits_and_gives_the_same_answers(
    tmp_path: Path, model_type: str
) -> None:
    model = saved_checkpoint(tmp_path / "checkpoint", model_type)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert _same(loaded, copied(model))
    tokens = torch.arange(20)[None]
    assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)


def test_the_tokenizer_loads_too_and_knows_its_document_end(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer("naïve")["input_ids"] == list("naïve".encode())
    assert tokenizer.eos_token_id == 256
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").generation_config.eos_token_id
        == 256
    )


@pytest.mark.parametrize(
    ("model_type", "positions"), [("llama", 32), ("gpt2", 32), ("mamba", None)]
)
def test_texts_of_unlike_length_are_read_in_one_batch_as_alone(
    tmp_path: Path, model_type: str, positions: int | None
) -> None:
    saved_checkpoint(tmp_path / "checkpoint", model_type)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (256, 256)
    assert tokenizer.model_max_length == (positions or VERY_LARGE_INTEGER)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").eval()
    texts = ["a", "a longer text", "x" * 40]
    batch = tokenizer(texts, padding=True, truncation=positions is not None, return_tensors="pt")
    assert batch["input_ids"].shape == (3, positions or 40)
    together = model(**batch).logits
    for row, text in enumerate(texts):
        alone = model(tokenizer(text, truncation=True, return_tensors="pt")["input_ids"]).logits[0]
        assert torch.allclose(together[row, : len(alone)], alone, atol=1e-5)


def test_the_given_parameters_are_saved_and_not_those_of_the_model(tmp_path: Path) -> None:
    model = tiny_model(seed=1)
    committed = copied(tiny_model(seed=2))
    save_checkpoint(tmp_path / "checkpoint", model, committed, ByteTokenizer(), ABOUT)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, committed)
    assert not _same(model, committed)


def test_parameters_may_be_views_of_one_buffer(tmp_path: Path) -> None:
    model = tiny_model()
    committed = copied(model)
    flat = torch.cat([parameter.flatten() for parameter in committed.values()])
    pieces = flat.split([parameter.numel() for parameter in committed.values()])
    views = {
        name: piece.view_as(committed[name]) for piece, name in zip(pieces, committed, strict=True)
    }
    save_checkpoint(tmp_path / "checkpoint", model, views, ByteTokenizer(), ABOUT)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, committed)
    save_tensors(tmp_path / "state", views, {})
    assert canonical_sha256(load_tensors(tmp_path / "state")[0]) == canonical_sha256(committed)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    model = load_checkpoint(tmp_path / "checkpoint").model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert (tmp_path / "checkpoint" / "model.safetensors").stat().st_size < size + 4096


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.metadata == ABOUT
    assert checkpoint.tokenizer.to_json() == ByteTokenizer().to_json()
    assert not checkpoint.model.training


def test_a_newer_checkpoint_replaces_the_older(tmp_path: Path) -> None:
    for seed in (1, 2):
        model = saved_checkpoint(tmp_path / "checkpoint", seed=seed)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, copied(model))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_an_older_checkpoint_survives_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_checkpoint(tmp_path / "checkpoint", seed=1)
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(
        StorageError, match=r"disk is full.*checkpoint, which needs \d\d,\d\d\d bytes"
    ):
        saved_checkpoint(tmp_path / "checkpoint", seed=2)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, copied(model))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_parameters_of_another_model_are_our_mistake(tmp_path: Path) -> None:
    model = tiny_model()
    wrong = copied(model)
    wrong["extra"] = wrong.pop("lm_head.weight")
    with pytest.raises(LocalProtocolError, match=r"extra.*lm_head"):
        save_checkpoint(tmp_path / "checkpoint", model, wrong, ByteTokenizer(), ABOUT)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected a checkpoint with lockstep\.json"):
        load_checkpoint(tmp_path / "nowhere")


def test_a_damaged_checkpoint_is_a_storage_error(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    weights = tmp_path / "checkpoint" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(StorageError, match="cannot load the checkpoint"):
        load_checkpoint(tmp_path / "checkpoint")


BULKY = (
    '{"version": 1, "tokenizer": {"kind": "bytes"}, "metadata": {"a": [' + "[]," * 30_000 + "[]]}}"
)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 1, "tokenizer": 5, "metadata": {}}', BULKY]
)
def test_a_damaged_description_is_a_storage_error(tmp_path: Path, text: str) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "lockstep.json").write_text(text)
    with pytest.raises(StorageError, match=r"lockstep\.json is damaged"):
        load_checkpoint(tmp_path / "checkpoint")


def test_a_checkpoint_of_another_version_says_so(tmp_path: Path) -> None:
    saved_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "lockstep.json").write_text('{"version": 9}')
    with pytest.raises(VersionError, match="expected version 1, got 9"):
        load_checkpoint(tmp_path / "checkpoint")
