"""Parameters on disk, and what a checkpoint can do."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from node.data.corpus import Corpus
from node.data.prepare import prepare
from node.data.tokenizer import ByteTokenizer, SubwordTokenizer
from node.model.checkpoint import (
    evaluate_checkpoint,
    generate,
    load_checkpoint,
    load_parameters,
    save_checkpoint,
    save_parameters,
)
from node.model.training import TrainingModel, build_model, named_parameters_once
from node.replica.digest import canonical_sha256
from node.replica.genesis import fill
from protocol.errors import DataError, LocalProtocolError, StorageError, VersionError

torch.set_num_threads(1)

TINY: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 257,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    },
    "gpt2": {"vocab_size": 257, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "mamba": {"vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
}
ABOUT = {"run": "0" * 32, "round": 7, "digest": "ab"}


def _model(model_type: str = "llama", seed: int = 1) -> nn.Module:
    model = build_model(model_type, TINY[model_type])
    fill(model, seed, 0.3)
    return model


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.detach().clone() for name, parameter in named_parameters_once(model).items()
    }


def _saved(directory: Path, model_type: str = "llama", seed: int = 1) -> nn.Module:
    model = _model(model_type, seed)
    save_checkpoint(directory, model, _copy(model), ByteTokenizer(), ABOUT)
    return model


def _same(model: nn.Module, parameters: dict[str, Tensor]) -> bool:
    return canonical_sha256(named_parameters_once(model)) == canonical_sha256(parameters)


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("model_type", TINY)
def test_transformers_loads_the_same_bits_and_gives_the_same_answers(
    tmp_path: Path, model_type: str
) -> None:
    model = _saved(tmp_path / "checkpoint", model_type)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert _same(loaded, _copy(model))
    tokens = torch.arange(20)[None]
    assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)


def test_the_tokenizer_loads_too_and_knows_its_document_end(tmp_path: Path) -> None:
    _saved(tmp_path / "checkpoint")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer("naïve")["input_ids"] == list("naïve".encode())
    assert tokenizer.eos_token_id == 256
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").generation_config.eos_token_id
        == 256
    )


def test_the_given_parameters_are_saved_and_not_those_of_the_model(tmp_path: Path) -> None:
    model = _model(seed=1)
    committed = _copy(_model(seed=2))
    save_checkpoint(tmp_path / "checkpoint", model, committed, ByteTokenizer(), ABOUT)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, committed)
    assert not _same(model, committed)


def test_parameters_may_be_views_of_one_buffer(tmp_path: Path) -> None:
    model = _model()
    committed = _copy(model)
    flat = torch.cat([parameter.flatten() for parameter in committed.values()])
    pieces = flat.split([parameter.numel() for parameter in committed.values()])
    views = {
        name: piece.view_as(committed[name]) for piece, name in zip(pieces, committed, strict=True)
    }
    save_checkpoint(tmp_path / "checkpoint", model, views, ByteTokenizer(), ABOUT)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, committed)
    save_parameters(tmp_path / "state", views, {})
    assert canonical_sha256(load_parameters(tmp_path / "state")[0]) == canonical_sha256(committed)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    _saved(tmp_path / "checkpoint")
    model = load_checkpoint(tmp_path / "checkpoint").model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert (tmp_path / "checkpoint" / "model.safetensors").stat().st_size < size + 4096


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    _saved(tmp_path / "checkpoint")
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.metadata == ABOUT
    assert checkpoint.tokenizer.to_json() == ByteTokenizer().to_json()
    assert not checkpoint.model.training


def test_a_newer_checkpoint_replaces_the_older(tmp_path: Path) -> None:
    for seed in (1, 2):
        model = _saved(tmp_path / "checkpoint", seed=seed)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, _copy(model))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_an_older_checkpoint_survives_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _saved(tmp_path / "checkpoint", seed=1)
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(
        StorageError, match=r"disk is full.*checkpoint, which needs \d\d,\d\d\d bytes"
    ):
        _saved(tmp_path / "checkpoint", seed=2)
    assert _same(load_checkpoint(tmp_path / "checkpoint").model, _copy(model))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_parameters_of_another_model_are_our_mistake(tmp_path: Path) -> None:
    model = _model()
    wrong = _copy(model)
    wrong["extra"] = wrong.pop("lm_head.weight")
    with pytest.raises(LocalProtocolError, match=r"extra.*lm_head"):
        save_checkpoint(tmp_path / "checkpoint", model, wrong, ByteTokenizer(), ABOUT)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected a checkpoint with lockstep\.json"):
        load_checkpoint(tmp_path / "nowhere")


def test_a_damaged_checkpoint_is_a_storage_error(tmp_path: Path) -> None:
    _saved(tmp_path / "checkpoint")
    weights = tmp_path / "checkpoint" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(StorageError, match="cannot load the checkpoint"):
        load_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1, "tokenizer": 5, "metadata": {}}'])
def test_a_damaged_description_is_a_storage_error(tmp_path: Path, text: str) -> None:
    _saved(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "lockstep.json").write_text(text)
    with pytest.raises(StorageError, match=r"lockstep\.json is damaged"):
        load_checkpoint(tmp_path / "checkpoint")


def test_a_checkpoint_of_another_version_says_so(tmp_path: Path) -> None:
    _saved(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "lockstep.json").write_text('{"version": 9}')
    with pytest.raises(VersionError, match="expected version 1, got 9"):
        load_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("model_type", TINY)
def test_the_likeliest_text_is_what_reading_everything_anew_gives(
    tmp_path: Path, model_type: str
) -> None:
    model = _saved(tmp_path / "checkpoint", model_type).eval()
    tokens, expected = [256, *b"def "], []
    for _ in range(20):  # stays within the 32 positions
        token = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
        if token == 256:
            break
        tokens.append(token)
        expected.append(token)
    pieces = list(generate(tmp_path / "checkpoint", "def ", max_tokens=20, temperature=0))
    assert "".join(pieces) == ByteTokenizer().decode(expected)


@pytest.mark.parametrize("model_type", TINY)
def test_text_goes_on_beyond_the_positions_the_model_knows(tmp_path: Path, model_type: str) -> None:
    _saved(tmp_path / "checkpoint", model_type)
    text = "".join(generate(tmp_path / "checkpoint", "def " * 20, max_tokens=100, seed=2))
    again = "".join(generate(tmp_path / "checkpoint", "def " * 20, max_tokens=100, seed=2))
    assert text == again
    assert text != "".join(generate(tmp_path / "checkpoint", "def " * 20, max_tokens=100, seed=3))


def test_an_empty_prompt_begins_a_document(tmp_path: Path) -> None:
    _saved(tmp_path / "checkpoint")
    assert list(generate(tmp_path / "checkpoint", "", max_tokens=0)) == []
    assert "".join(generate(tmp_path / "checkpoint", "", max_tokens=5, temperature=0)) != ""


def test_text_streams_in_whole_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _saved(tmp_path / "checkpoint")
    tokens = [*"aé🙂".encode(), 0xC3, 256, 98]
    monkeypatch.setattr("node.model.checkpoint._continuation", lambda *_: iter(tokens))
    assert list(generate(tmp_path / "checkpoint", "")) == ["a", "é", "🙂", "\ufffd"]
    assert "".join(generate(tmp_path / "checkpoint", "", max_tokens=3)) == "aé"


def test_a_checkpoint_is_evaluated_on_fixed_validation_windows(tmp_path: Path) -> None:
    model = _saved(tmp_path / "checkpoint")
    documents = [(f"document-{number}", f"text number {number} " * 9) for number in range(100)]
    prepare(documents, tmp_path / "data", ByteTokenizer(), source="tests")
    corpus = Corpus.open(tmp_path / "data")
    loss = evaluate_checkpoint(tmp_path / "checkpoint", corpus, samples=5, sequence_length=16)
    assert loss == pytest.approx(TrainingModel(model).evaluate(corpus.validation(5, 16)), rel=1e-6)
    tokenizer = SubwordTokenizer.trained([text for _, text in documents], 270)
    prepare(documents, tmp_path / "other", tokenizer, source="tests")
    with pytest.raises(DataError, match="expected the tokenizer of"):
        evaluate_checkpoint(
            tmp_path / "checkpoint", Corpus.open(tmp_path / "other"), samples=5, sequence_length=16
        )


def test_parameters_of_any_dtype_come_back_with_what_was_said(tmp_path: Path) -> None:
    tensors = {
        "momentum": torch.randn(3, 4, 5),
        "transposed": torch.randn(6, 2).T,
        "half": torch.randn(3).bfloat16(),
        "steps": torch.tensor(2**40),
        "nothing": torch.zeros(0, 3),
    }
    save_parameters(
        tmp_path / "deep" / "state.safetensors", tensors, {"round": 3, "list": [1, "x", None]}
    )
    loaded, metadata = load_parameters(tmp_path / "deep" / "state.safetensors")
    assert metadata == {"round": 3, "list": [1, "x", None]}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    whole = torch.randn(4, 3)
    save_parameters(tmp_path / "state", {"whole": whole, "head": whole[:2], "again": whole}, {})
    loaded, _ = load_parameters(tmp_path / "state")
    assert torch.equal(loaded["head"], whole[:2])
    assert torch.equal(loaded["again"], whole)


def test_older_parameters_survive_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    save_parameters(path, {"a": torch.ones(2)}, {"round": 1})
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(
        StorageError, match=r"disk is full.*state\.safetensors, which needs 16 bytes"
    ):
        save_parameters(path, {"a": torch.zeros(4)}, {"round": 2})
    assert load_parameters(path)[1] == {"round": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("blob", [None, b"", b"\x10" + bytes(30)])
def test_missing_or_damaged_parameters_are_a_storage_error(
    tmp_path: Path, blob: bytes | None
) -> None:
    path = tmp_path / "state.safetensors"
    if blob is not None:
        path.write_bytes(blob)
    with pytest.raises(StorageError, match=r"expected saved parameters"):
        load_parameters(path)


def test_a_file_of_another_program_is_not_ours(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "foreign")
    with pytest.raises(StorageError, match=r"foreign is damaged: expected saved parameters"):
        load_parameters(tmp_path / "foreign")
