"""The network, built from a run file's words."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

from node.model.build import build_model, named_parameters_once, require_fits
from protocol.errors import SettingsError
from tests.node.model.small import GPT2, LLAMA

torch.set_num_threads(1)


@pytest.mark.parametrize(("model_type", "config"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_a_built_model_is_float32_trains_and_leaves_the_random_state(
    model_type: str, config: dict[str, Any]
) -> None:
    state = torch.get_rng_state()
    model = build_model(model_type, config)
    assert model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(torch.get_rng_state(), state)


def test_building_prints_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        build_model("gpt2", GPT2)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_special_tokens_of_a_foreign_vocabulary_are_dropped_and_given_ones_kept() -> None:
    assert build_model("gpt2", GPT2).config.eos_token_id is None
    assert build_model("gpt2", GPT2 | {"eos_token_id": 31}).config.eos_token_id == 31


def test_an_unknown_type_names_the_field_and_what_is_close() -> None:
    with pytest.raises(SettingsError, match=r"model\.type: expected .*\bllama\b.*, got 'lama'"):
        build_model("lama", {})


def test_a_type_without_causal_language_model_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'vit'"):
        build_model("vit", {})


def test_an_unknown_field_is_named_with_its_likely_spelling() -> None:
    with pytest.raises(SettingsError, match=r"model\.config\.hiden_size: expected .*hidden_size"):
        build_model("llama", {"hiden_size": 3})


def test_a_field_of_the_wrong_type_is_named() -> None:
    with pytest.raises(SettingsError, match=r"hidden_size.*expected int, got str"):
        build_model("llama", LLAMA | {"hidden_size": "large"})


def test_fields_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'gpt2'.*divisible"):
        build_model("gpt2", GPT2 | {"n_embd": 15})


@pytest.mark.parametrize(
    "field",
    ["attn_implementation", "_attn_implementation", "auto_map", "quantization_config", "dtype"],
)
def test_a_run_file_cannot_ask_for_foreign_code_or_another_precision(field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        build_model("llama", LLAMA | {field: "someone/kernel"})


def test_parameters_come_sorted_and_tied_ones_once(model: nn.Module) -> None:
    names = list(named_parameters_once(model))
    assert names == sorted(names)
    assert "lm_head.weight" in names
    assert "model.embed_tokens.weight" not in names
    assert len(names) == len(list(model.parameters()))


def test_frozen_parameters_are_not_listed(model: nn.Module) -> None:
    model.lm_head.weight.requires_grad_(False)
    assert "lm_head.weight" not in named_parameters_once(model)


def test_a_model_that_is_too_small_for_the_data_is_refused(model: nn.Module) -> None:
    require_fits(model, 32, 16)
    with pytest.raises(SettingsError, match=r"vocab_size: expected at least 33.*got 32"):
        require_fits(model, 33, 16)
    with pytest.raises(SettingsError, match=r"sequence_length = 17 positions, got 16"):
        require_fits(model, 32, 17)
