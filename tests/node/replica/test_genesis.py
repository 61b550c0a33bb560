"""Exact initial weights."""

import hashlib
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from node.model.build import build_model, build_undrawn, named_parameters_once
from node.replica.digest import canonical_sha256, state_digest
from node.replica.genesis import fill
from protocol.errors import SettingsError

torch.set_num_threads(1)

LLAMA = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": {"vocab_size": 257, "n_embd": 64, "n_layer": 3, "n_head": 2, "n_positions": 32},
    "gpt_neox": LLAMA | {"tie_word_embeddings": False},
    "qwen2": LLAMA | {"num_key_value_heads": 2},
    "mamba": {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 3, "state_size": 4},
    "opt": {
        "vocab_size": 257,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "ffn_dim": 64,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 64,
        "max_position_embeddings": 32,
    },
}


def _filled(
    model_type: str = "llama", seed: int = 7, init_std: float = 0.02, **changes: Any
) -> nn.Module:
    model = build_model(model_type, TINY[model_type] | changes)
    fill(model, seed, init_std)
    return model


def _digest(model: nn.Module) -> str:
    return canonical_sha256(named_parameters_once(model)).hex()


GOLDEN = {
    "llama": "86edd4d64adfdaa4c7f7587e5078a6bb037a70c8274a57be0b1ba580e60b6017",
    "gpt2": "05f4e47a8cc2ae8e9b90f7d599d8db4481be8efd68b438558794745b0be317dc",
    "gpt_neox": "2de3791a3dd6b37c0d2b81b05c8f87073fb62b853305a6993b8a859f37e2f2b1",
    "qwen2": "a28bad71e000540b27040d3a82de2f5f4d7ccbed898c982e042b5ef4610c928e",
    "mamba": "f50592282b66cf6d4b217a93f80d4785c04253ce0bd6b003adc78c1a04358295",
    "opt": "3783d4ee9dbc9ea1081ad98f0154b56b370bb3fa27abf90931f834ce6053a075",
}
STRUCTURED = ("A_log", "dt_proj.bias")


@pytest.mark.parametrize("model_type", TINY)
def test_the_bits_of_a_known_seed_never_change(model_type: str) -> None:
    assert _digest(_filled(model_type)) == GOLDEN[model_type]


@pytest.mark.parametrize("model_type", TINY)
def test_noise_that_nobody_drew_makes_the_same_bits(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.model.undrawn.LARGE", 2)
    model, noise = build_undrawn(model_type, TINY[model_type])
    assert len(noise) > 10
    with torch.no_grad():
        for name in noise:  # as memory is that nobody has touched
            model.get_parameter(name).zero_()
    fill(model, 7, 0.02, noise=noise)
    assert _digest(model) == GOLDEN[model_type]


def test_another_process_with_other_threads_and_torch_seed_makes_the_same_bits() -> None:
    script = (
        "import torch; torch.set_num_threads(2); torch.manual_seed(99)\n"
        "from tests.node.replica.test_genesis import _digest, _filled\n"
        "print(_digest(_filled()))"
    )
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == _digest(_filled())


def test_another_seed_changes_every_random_parameter() -> None:
    ours, theirs = named_parameters_once(_filled(seed=7)), named_parameters_once(_filled(seed=8))
    for name, parameter in ours.items():
        assert torch.equal(parameter, theirs[name]) == ("norm" in name), name


def test_a_parameter_is_the_stated_function_of_seed_and_name() -> None:
    model = _filled()
    name = "model.layers.0.mlp.up_proj.weight"
    key = int.from_bytes(
        hashlib.sha256(f"lockstep.genesis.v1 7 {name}".encode()).digest()[:16], "little"
    )
    words = [int(word) for word in np.random.Philox(key=key).random_raw(2)]
    sums = [
        sum((word >> shift & 0xFF) for shift in range(half, half + 32, 8))
        for word in words
        for half in (0, 32)
    ]
    scale = np.float32(0.02 / math.sqrt(4 * (256**2 - 1) / 12))
    expected = [float(np.float32(total - 510) * scale) for total in sums]
    assert model.get_parameter(name).flatten()[:4].tolist() == expected


def test_strips_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _digest(_filled())
    monkeypatch.setattr("node.replica.genesis._STRIP_WORDS", 100)
    assert _digest(_filled()) == whole


@pytest.mark.parametrize("model_type", TINY)
def test_constants_stay_and_everything_else_is_random(model_type: str) -> None:
    built = {
        name: p.detach().clone()
        for name, p in build_model(model_type, TINY[model_type]).named_parameters()
    }
    for name, parameter in _filled(model_type).named_parameters():
        if bool((built[name] == built[name].flatten()[0]).all()):
            assert torch.equal(parameter, built[name]), name
        elif not name.endswith(STRUCTURED):
            assert len(parameter.unique()) > 10, name
            assert not torch.equal(parameter, built[name]), name


@pytest.mark.parametrize("model_type", TINY)
def test_the_deviation_is_within_one_percent_and_residual_outputs_are_shallower(
    model_type: str,
) -> None:
    outputs, others = [], []
    for name, parameter in _filled(model_type, init_std=0.05).named_parameters():
        if parameter.unique().numel() > 10 and not name.endswith(STRUCTURED):
            module = name.removesuffix(".weight").rsplit(".", 2)[-2:]
            ends = {"o_proj", "down_proj", "c_proj", "out_proj", "fc2", "dense_4h_to_h", "dense"}
            (outputs if module[-1] in ends else others).append(parameter.detach().flatten())
    assert torch.cat(others).std().item() == pytest.approx(0.05, rel=0.01)
    assert torch.cat(outputs).std().item() == pytest.approx(0.05 / math.sqrt(2 * 3), rel=0.01)
    assert abs(torch.cat(others).mean().item()) < 0.001


def test_the_deviation_scales_every_random_entry() -> None:
    small, large = _filled(init_std=0.01), _filled(init_std=0.02)
    name = "lm_head.weight"
    assert torch.equal(
        2 * small.get_parameter(name), large.get_parameter(name)
    )  # a power of two is exact


def test_tied_weights_are_filled_once_and_stay_tied() -> None:
    model = _filled()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" in named_parameters_once(model)
    assert "model.embed_tokens.weight" not in named_parameters_once(model)


def test_frozen_parameters_and_buffers_stay() -> None:
    model = build_model("llama", LLAMA)
    model.get_parameter("model.layers.0.mlp.up_proj.weight").requires_grad_(False)
    before = {
        name: value.clone() for name, value in (*model.named_buffers(), *model.named_parameters())
    }
    fill(model, 7, 0.02)
    for name, value in model.named_buffers():
        assert torch.equal(value, before[name])
    frozen = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(model.get_parameter(frozen), before[frozen])


def test_a_single_random_entry_is_not_taken_for_a_constant() -> None:
    model = build_model("llama", LLAMA)
    for name, value in (("gate", 0.3137), ("one", 1.0), ("zero", 0.0)):
        model.register_parameter(name, nn.Parameter(torch.tensor([value])))
    fill(model, 7, 0.02)
    assert model.get_parameter("gate").item() != pytest.approx(0.3137)
    assert (model.get_parameter("one").item(), model.get_parameter("zero").item()) == (1.0, 0.0)


@pytest.mark.parametrize("init_std", [0.0, -1.0, math.inf, math.nan])
def test_a_deviation_that_is_not_positive_is_refused(init_std: float) -> None:
    with pytest.raises(SettingsError, match=r"model.init_std: expected a positive number"):
        _filled(init_std=init_std)


def test_the_quick_digest_of_a_known_seed_never_changes() -> None:
    assert state_digest(named_parameters_once(_filled())) == 13260466811432930217
