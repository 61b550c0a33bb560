"""A model is tried on one sample before a run trains it."""

from typing import Any

import pytest
import torch

from node.model.build import build_model, named_parameters_once
from node.model.check import (
    check_model,
    check_shared_model,
    count_parameters,
    device_memory_bytes,
    require_memory,
)
from protocol.errors import SettingsError
from protocol.limits import CHUNK_ENTRIES
from protocol.planner.needs import FIXED_BYTES
from protocol.runfile import AlgorithmSpec, DataSpec, ModelSpec, RoundsSpec, RunSpec

torch.set_num_threads(1)

ENCODER = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA = ENCODER | {"num_key_value_heads": 2}
MIXTURE = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}


def _spec(model_type: str, config: dict[str, Any], length: int = 32, overlap: Any = 1) -> RunSpec:
    return RunSpec(
        model=ModelSpec(type=model_type, config=config),
        data=DataSpec(sequence_length=length),
        rounds=RoundsSpec(overlap=overlap),
    )


@pytest.mark.parametrize(
    "model_type",
    [
        *("roberta", "bert", "electra", "big_bird", "rembert", "roformer", "megatron-bert"),
        *("bert-generation", "camembert", "data2vec-text", "xlm-roberta", "roc_bert", "ernie"),
    ],
)
def test_a_type_that_sees_later_tokens_is_refused_with_the_field_that_cures_it(
    model_type: str,
) -> None:
    with pytest.raises(SettingsError) as error:
        check_model(_spec(model_type, ENCODER))
    assert f'model.type "{model_type}" sees later tokens' in str(error.value)
    assert "model.config.is_decoder = true makes it causal" in str(error.value)
    check_model(_spec(model_type, ENCODER | {"is_decoder": True}))


@pytest.mark.parametrize(
    ("model_type", "config", "cure"),
    [
        ("xlnet", {"n_layer": 1, "d_model": 64, "n_head": 2, "d_inner": 64}, 'attn_type = "uni"'),
        ("xlm", {"emb_dim": 64, "n_layers": 1, "n_heads": 2, "vocab_size": 257}, "causal = true"),
        ("cpmant", {"hidden_size": 64, "num_hidden_layers": 1}, "expected a causal type"),
    ],
)
def test_other_families_that_look_ahead_are_found_too(
    model_type: str, config: dict[str, Any], cure: str
) -> None:
    small = {"cpmant": {"num_attention_heads": 2, "dim_head": 32, "dim_ff": 64, "vocab_size": 257}}
    with pytest.raises(SettingsError, match="sees later tokens") as error:
        check_model(_spec(model_type, config | small.get(model_type, {"vocab_size": 257})))
    assert cure in str(error.value)


@pytest.mark.parametrize("length", [8, 9, 64, 100])
def test_a_look_ahead_is_found_at_every_length(length: int) -> None:
    with pytest.raises(SettingsError, match="sees later tokens"):
        check_model(_spec("roberta", ENCODER, length))
    check_model(_spec("llama", LLAMA, length))


def test_a_look_ahead_behind_a_gate_that_begins_at_zero_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gated(*arguments: Any) -> Any:
        model = build_model(*arguments)
        for name, parameter in model.named_parameters():
            if "attention.output.dense" in name:
                torch.nn.init.zeros_(parameter)
        return model

    monkeypatch.setattr("node.model.check.build_model", gated)
    with pytest.raises(SettingsError, match="sees later tokens"):
        check_model(_spec("roberta", ENCODER))


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", LLAMA),
        ("gpt2", {"vocab_size": 257, "n_embd": 64, "n_layer": 1, "n_head": 2}),
        ("mixtral", MIXTURE),
        ("bart", {"vocab_size": 257, "d_model": 64, "decoder_layers": 1, "decoder_ffn_dim": 64}),
        ("rwkv", {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 2}),
    ],
)
def test_a_causal_model_passes_and_its_parameters_are_counted(
    model_type: str, config: dict[str, Any]
) -> None:
    state = torch.get_rng_state()
    facts = check_model(_spec(model_type, config))
    model = build_model(model_type, config)
    assert facts.parameters == sum(p.numel() for p in named_parameters_once(model).values())
    assert facts.notes == ()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("model_type", "config", "fields"),
    [
        (
            "helium",
            ENCODER | {"head_dim": 32},
            "num_attention_heads 2 does not fit num_key_value_heads 20",
        ),
        ("exaone4", ENCODER, "num_attention_heads 2 does not fit num_key_value_heads 32"),
        ("seed_oss", ENCODER, "num_attention_heads 2 does not fit num_key_value_heads 8"),
        (
            "gptj",
            {"vocab_size": 257, "n_embd": 64, "n_layer": 1, "n_head": 2},
            "rotary_dim 64 does not fit heads of 64 / 2 entries",
        ),
        (
            "codegen",
            {"vocab_size": 257, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64},
            "rotary_dim 64 does not fit heads of 64 / 4 entries",
        ),
        ("qwen2", ENCODER | {"num_key_value_heads": 32}, "does not fit num_key_value_heads 32"),
        ("olmo", LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 3}, "hidden_size 64"),
    ],
)
def test_sizes_that_only_a_pass_compares_are_named_by_their_fields(
    model_type: str, config: dict[str, Any], fields: str
) -> None:
    with pytest.raises(SettingsError, match=rf"model\.config for type '{model_type}'") as error:
        check_model(_spec(model_type, config))
    assert fields in str(error.value)
    assert "\n" not in str(error.value)


def test_a_type_that_needs_an_input_of_its_own_is_refused() -> None:
    config = {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 96}
    with pytest.raises(SettingsError, match=r"cannot be trained.*language"):
        check_model(_spec("xmod", config | {"num_attention_heads": 2, "is_decoder": True}))


def test_positions_that_do_not_reach_are_refused_and_minus_one_is_no_bound() -> None:
    with pytest.raises(SettingsError, match=r"sequence_length = 256 positions, got 128"):
        check_model(_spec("llama", LLAMA, 256))
    config = {"n_layer": 1, "d_model": 64, "n_head": 2, "d_inner": 64, "vocab_size": 257}
    check_model(_spec("xlnet", config | {"attn_type": "uni"}))


@pytest.mark.parametrize(
    ("algorithm", "overlap", "own", "residual", "on_host"),
    [("demo", 0, 8, 4, 0), ("local_steps", 0, 10, 2, 4), ("local_steps", 1, 12, 2, 6)],
)
def test_memory_is_compared_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Any,
    overlap: int,
    own: int,
    residual: int,
    on_host: int,
) -> None:
    """In bytes a parameter, in bfloat16 where that can be; a GPU leaves some to the host."""
    spec = _spec("llama", LLAMA, overlap=overlap)
    spec = spec.model_copy(update={"algorithm": AlgorithmSpec(name=algorithm)})
    parameters = count_parameters(spec)
    chunks = -(-parameters // CHUNK_ENTRIES)
    least = FIXED_BYTES + own * parameters + residual * chunks * CHUNK_ENTRIES
    check_model(spec, memory_bytes=least)
    there = on_host and on_host * parameters + residual * chunks * CHUNK_ENTRIES
    require_memory(spec, parameters, least - FIXED_BYTES - there, "cuda")
    devices: list[str] = []

    def build(model_type: str, config: Any, device: str = "cpu") -> Any:
        devices.append(device)
        return build_model(model_type, config, device)  # type: ignore[arg-type]

    monkeypatch.setattr("node.model.check.build_model", build)
    with pytest.raises(SettingsError, match=rf"model has {parameters:,} parameters and needs at"):
        check_model(spec, memory_bytes=least - 1)
    assert devices == ["meta"]


def test_a_model_that_fits_ranks_together_alone_is_counted_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks on the CPUs of one machine share its memory, and each has a Python of its own."""
    spec = _spec("llama", LLAMA | {"vocab_size": 500_000})
    cpu, parameters = torch.device("cpu"), count_parameters(spec)
    least = FIXED_BYTES + 8 * parameters  # a third of it each, and more than half
    monkeypatch.setattr("node.model.check.device_memory_bytes", lambda _: least)
    with pytest.raises(SettingsError, match="of memory to train, this machine has"):
        check_model(spec)
    with pytest.raises(SettingsError, match=r"to train on each of 3 ranks, each has"):
        check_shared_model(spec, cpu, ranks=3, here=3)
    facts = check_shared_model(spec, cpu, ranks=3, here=1)
    assert facts.parameters == parameters
    assert facts.notes[-1].startswith("not tried on a sample before its ranks share it: model.con")
    long = spec.data.model_copy(update={"sequence_length": 2**20})
    with pytest.raises(SettingsError, match="sequence_length"):
        check_shared_model(spec.model_copy(update={"data": long}), cpu, ranks=3, here=1)


def test_a_model_far_beyond_any_machine_is_refused_in_a_moment() -> None:
    config = {"hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 200}
    with pytest.raises(SettingsError, match=r"of memory to train, this machine has"):
        check_model(_spec("llama", config))


def test_the_machine_has_some_memory() -> None:
    assert 2**28 < device_memory_bytes(torch.device("cpu")) < 2**50


def test_a_balance_loss_that_no_type_gives_is_refused() -> None:
    config = LLAMA | {"n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    extra = {
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "output_router_logits": True,
    }
    with pytest.raises(SettingsError, match=r"output_router_logits: expected a type that computes"):
        check_model(_spec("dots1", config | extra | {"n_shared_experts": 1}))


def test_a_weight_of_a_balance_that_is_never_asked_for_is_noted() -> None:
    facts = check_model(_spec("mixtral", MIXTURE | {"router_aux_loss_coef": 0.02}))
    assert (
        "router_aux_loss_coef has no effect without output_router_logits = true" in facts.notes[0]
    )
    asked = {"router_aux_loss_coef": 0.02, "output_router_logits": True}
    assert check_model(_spec("mixtral", MIXTURE | asked)).notes == ()


def test_what_describes_a_published_file_is_noted_and_left_out() -> None:
    published = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    facts = check_model(_spec("llama", LLAMA | published))
    assert [note.split(" is left out")[0] for note in facts.notes] == [
        "model.config.architectures",
        "model.config.torch_dtype = 'bfloat16'",
    ]


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"expected a finite loss on the first sample, got nan"):
        check_model(_spec("llama", LLAMA | {"rms_norm_eps": float("nan")}))
