"""A run file's and a published file's words about a model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from node.model.build import build_model
from node.model.configuration import model_config, read_published
from protocol.errors import SettingsError

torch.set_num_threads(1)

QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.03,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 257,
}


def _published(directory: Path, values: Any, encoding: str = "utf-8") -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(values), encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_published_configuration_becomes_a_model_that_a_run_file_can_hold(
    tmp_path: Path, encoding: str
) -> None:
    published = read_published(_published(tmp_path, QWEN3_MOE, encoding))
    assert (published.type, published.init_std) == ("qwen3_moe", 0.03)
    assert not {"architectures", "torch_dtype", "rope_scaling"} & published.config.keys()
    assert len(published.notes) >= 3
    model = build_model(published.type, published.config)
    assert model.get_parameter("model.layers.0.self_attn.q_proj.weight").shape == (32, 64)


def test_a_pasted_configuration_is_taken_as_it_is() -> None:
    pasted = {name: value for name, value in QWEN3_MOE.items() if value is not None}
    assert model_config("qwen3_moe", pasted).head_dim == 16


def test_a_field_that_only_the_models_code_reads_is_taken_and_a_misspelt_one_is_not() -> None:
    fields = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    assert model_config("mixtral", fields | {"head_dim": 16}).head_dim == 16
    with pytest.raises(SettingsError, match=r"model\.config\.head_dimm: expected a field"):
        model_config("mixtral", fields | {"head_dimm": 16})


def test_null_is_written_as_a_word_where_the_default_is_another(tmp_path: Path) -> None:
    values = {"model_type": "mistral", "sliding_window": None, "hidden_size": 64}
    published = read_published(_published(tmp_path, values))
    assert published.config == {"sliding_window": "null", "hidden_size": 64}
    assert model_config("mistral", published.config).sliding_window is None
    assert model_config("mistral", {"hidden_size": 64}).sliding_window is not None


def test_a_field_that_nothing_reads_is_left_out_with_a_note(tmp_path: Path) -> None:
    published = read_published(_published(tmp_path, {"model_type": "llama", "use_mrope": False}))
    assert published.config == {}
    assert published.notes == (
        "model.config.model_type is left out: it describes a published file",
        "model.config.use_mrope is left out: type 'llama' does not read it",
    )


def test_rotary_fields_of_older_files_are_understood() -> None:
    older = {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = model_config("llama", older).rope_parameters
    assert (rope["rope_theta"], rope["rope_type"], rope["factor"]) == (500000.0, "linear", 2.0)
    with pytest.raises(SettingsError, match=r"rope_theta: expected a field of GPT2Config"):
        model_config("gpt2", older)


def test_nulls_inside_a_value_are_left_out(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "factor": None}
    published = read_published(
        _published(tmp_path, {"model_type": "llama", "rope_parameters": rope})
    )
    assert published.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert "null inside it" in published.notes[-1]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"hidden_size": 64}, "object with the field model_type"),
        ([1], "object with the field model_type"),
        ({"model_type": "nonesuch"}, r"expected a model type of transformers"),
        ({"model_type": "llama", "auto_map": {"AutoModel": "x.y"}}, r"auto_map: expected a field"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, r"quantization_config"),
        ({"model_type": "llama", "torch_dtype": "float8"}, r"torch_dtype"),
    ],
)
def test_what_no_run_file_may_say_is_refused(tmp_path: Path, values: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        read_published(_published(tmp_path, values))


def test_a_file_that_is_longer_than_a_run_file_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"[" + b"[]," * 100_000)
    with pytest.raises(
        SettingsError, match=r"config\.json: expected at most 262,144 bytes, got more"
    ):
        read_published(tmp_path / "config.json")


def test_a_file_that_is_no_json_or_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*config\.json"):
        read_published(tmp_path / "config.json")
    for blob in (b"{", b"\xff\xfe{\0", b"[" * 100_000):
        (tmp_path / "config.json").write_bytes(blob)
        with pytest.raises(SettingsError, match=r"config\.json: expected the JSON of a config"):
            read_published(tmp_path / "config.json")


def test_a_type_in_the_fields_must_be_the_type() -> None:
    assert model_config("llama", {"model_type": "llama"}).model_type == "llama"
    with pytest.raises(SettingsError, match=r"model_type: expected model\.type 'llama'"):
        model_config("llama", {"model_type": "gpt2"})


@pytest.mark.parametrize("model_type", ["cwm", "modernbert-decoder"])
def test_special_tokens_that_must_be_numbers_stay_though_the_vocabulary_is_small(
    model_type: str,
) -> None:
    assert model_config(model_type, {"vocab_size": 257}).vocab_size == 257


def test_a_type_whose_own_defaults_are_invalid_is_refused_in_words() -> None:
    with pytest.raises(SettingsError, match=r"gemma4_assistant"):
        model_config("gemma4_assistant", {"vocab_size": 257})


@pytest.mark.parametrize(
    "inside",
    [
        {"attn_implementation": "x"},
        {"_attn_implementation": "x"},
        {"auto_map": {"AutoModel": "x.y"}},
        {"quantization_config": {"bits": 4}},
        {"dtype": "int8"},
        {"deeper": [{"torch_dtype": "int8"}]},
    ],
)
def test_a_field_that_loads_code_or_leaves_float32_is_refused_at_every_depth(
    inside: dict[str, Any],
) -> None:
    with pytest.raises(SettingsError, match=r"model\.config\.rope_parameters\..*expected no"):
        model_config("llama", {"rope_parameters": inside})


def test_a_precision_inside_is_left_out_as_at_the_top() -> None:
    inside = {"rope_type": "default", "rope_theta": 10_000.0, "dtype": "bfloat16"}
    config = model_config("llama", {"rope_parameters": inside, "dtype": "bfloat16"})
    assert "dtype" not in config.rope_parameters
