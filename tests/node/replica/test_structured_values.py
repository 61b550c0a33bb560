"""State-space and recurrent types begin with the structure that they learn on, bit for bit."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus

from node.model.build import build_model, build_undrawn, named_parameters_once
from node.replica.digest import canonical_sha256
from node.replica.genesis import fill
from protocol.errors import SettingsError

torch.set_num_threads(1)

COMMON = {"vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 2}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 96}
STATES = {"state_size": 8}
TYPES: dict[str, dict[str, Any]] = {
    "mamba": COMMON | STATES,
    "falcon_mamba": COMMON | STATES,
    "mamba2": COMMON | STATES | {"num_heads": 4, "head_dim": 32, "n_groups": 1, "chunk_size": 16},
    "qwen3_5_text": COMMON | ATTENTION | {"layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": COMMON | ATTENTION | {"head_dim": 32, "lru_width": 64},
    "rwkv": COMMON | {"attention_hidden_size": 64, "intermediate_size": 96},
    "xlstm": COMMON | {"num_heads": 4, "embedding_dim": 64, "num_blocks": 2},
}
GOLDEN = {
    "mamba": "38c9802a3267e9fcf0a35acfabc14ac87b1ffc70401651cff99952adf94c995b",
    "falcon_mamba": "38c9802a3267e9fcf0a35acfabc14ac87b1ffc70401651cff99952adf94c995b",
    "mamba2": "d285d100fe3d2825bf6516bebd16bc63e8d9e035a9f69fe8d9cab5d3e5fcbe75",
    "qwen3_5_text": "db93a13ce3c9048a141d476eb86e8ea0b5bfbf7756019e6099e5f43be574cbe1",
    "recurrent_gemma": "3d448c4e897df150b3361db88953cb2e0abcc57252e4025516884f7ba64c129c",
    "rwkv": "e6adf82d923c6499b6e3f2eae0f3f6949b1350eae182cb3633a639534d062e81",
    "xlstm": "94a475529af2b0f6a882553a2d94879ce9016fe2bad06668fb38b122b1177687",
}


def _filled(model_type: str, seed: int = 7, **changes: Any) -> nn.Module:
    model = build_model(model_type, TYPES[model_type] | changes)
    fill(model, seed, 0.02)
    return model


def _digest(model_type: str) -> str:
    return canonical_sha256(named_parameters_once(_filled(model_type))).hex()


def _ending(model: nn.Module, *ends: str) -> Iterator[tuple[str, torch.Tensor]]:
    found = [
        (name, value.detach()) for name, value in model.named_parameters() if name.endswith(ends)
    ]
    assert found
    yield from found


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@pytest.mark.parametrize("model_type", TYPES)
def test_the_bits_of_a_known_seed_never_change(model_type: str) -> None:
    assert _digest(model_type) == GOLDEN[model_type]


@pytest.mark.parametrize("model_type", TYPES)
def test_noise_that_nobody_drew_makes_the_same_bits(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.model.undrawn.LARGE", 2)
    model, noise = build_undrawn(model_type, TYPES[model_type])
    with torch.no_grad():
        for name in noise:  # as memory is that nobody has touched
            model.get_parameter(name).zero_()
    fill(model, 7, 0.02, noise=noise)
    assert canonical_sha256(named_parameters_once(model)).hex() == GOLDEN[model_type]


def test_another_process_with_other_threads_and_torch_seed_makes_the_same_bits() -> None:
    script = (
        "import torch; torch.set_num_threads(2); torch.manual_seed(99)\n"
        "from tests.node.replica.test_structured_values import _digest\n"
        "print(_digest('mamba2'))"
    )
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == GOLDEN["mamba2"]


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "mamba2"])
def test_the_decay_of_state_n_is_the_nearest_float32_to_its_logarithm(model_type: str) -> None:
    for name, decay in _ending(_filled(model_type), "A_log"):
        rows = decay.reshape(-1, decay.shape[-1])
        for place, value in enumerate(rows[0].tolist(), 1):
            spacing = Fraction(float(np.spacing(np.float32(value or 1.0))))
            assert abs(value - math.log(place)) <= float(spacing) / 2 + 1e-15, name
        assert torch.equal(rows, rows[:1].expand_as(rows)), name


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "mamba2"])
def test_steps_lie_in_the_range_that_the_type_states_evenly_by_their_logarithm(
    model_type: str,
) -> None:
    model = _filled(model_type, time_step_min=0.002, time_step_max=0.05)
    steps = torch.cat(
        [softplus(bias.double()) for _, bias in _ending(model, "dt_bias", "dt_proj.bias")]
    )
    assert steps.min() >= 0.00199
    assert steps.max() <= 0.0501
    if len(steps) > 100:
        middle = math.sqrt(0.002 * 0.05)
        assert float((steps < middle).double().mean()) == pytest.approx(0.5, abs=0.12)


def test_another_seed_draws_other_steps_and_the_same_decays() -> None:
    one, other = _filled("mamba2", 7), _filled("mamba2", 8)
    for (name, a), (_, b) in zip(
        _ending(one, "A_log", "dt_bias"), _ending(other, "A_log", "dt_bias"), strict=True
    ):
        assert torch.equal(a, b) == name.endswith("A_log"), name


def test_drawn_decays_lie_in_the_range_of_their_type() -> None:
    for _, decay in _ending(_filled("qwen3_5_text"), "A_log"):
        assert bool((decay.exp() > 0).all() and (decay.exp() < 16).all())
        assert len(decay.unique()) > len(decay) / 2


def test_the_recurrence_of_griffin_lies_in_its_range() -> None:
    for _, value in _ending(_filled("recurrent_gemma"), "recurrent_param"):
        decay = torch.exp(-softplus(value.double()))  # a ** (1 / c) of the paper
        assert bool((decay > 0.9 - 1e-3).all() and (decay < 0.999 + 1e-3).all())


@pytest.mark.parametrize(
    ("model_type", "ends"),
    [
        ("rwkv", ("time_decay", "time_mix_key", "time_mix_value", "time_mix_receptance")),
        ("xlstm", ("fgate_preact.bias",)),
        ("mamba2", ("A_log", ".D")),
    ],
)
def test_formulas_agree_with_the_types_own(model_type: str, ends: tuple[str, ...]) -> None:
    own = dict(build_model(model_type, TYPES[model_type]).named_parameters())
    for name, value in _ending(_filled(model_type), *ends):
        torch.testing.assert_close(value, own[name].detach(), rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_structured_type_begins_at_the_loss_of_a_uniform_guess(model_type: str) -> None:
    tokens = torch.randint(0, 257, (2, 33), generator=torch.Generator().manual_seed(0))
    model = _filled(model_type).eval()
    with torch.no_grad():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(257), abs=0.1)


@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(-1, 1, 64),
        torch.tensor([-1.1, -1.1, -1.1, -1.1, 0, 0, 0, 0]),
        torch.randn(1024, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.5,
    ],
    ids=["rising", "repeated", "one-sided"],
)
def test_an_unknown_structure_is_refused_with_the_reason(values: torch.Tensor) -> None:
    model = build_model("mamba", TYPES["mamba"])
    model.register_parameter("unknown", nn.Parameter(values))
    with pytest.raises(SettingsError, match=r"parameter unknown begins with values with a struct"):
        fill(model, 7, 0.02)


def test_a_formula_other_than_ours_is_refused() -> None:
    model = build_model("mamba2", TYPES["mamba2"])
    name, decay = next(_ending(model, "A_log"))
    with torch.no_grad():
        model.get_parameter(name).copy_(decay * 2)
    with pytest.raises(SettingsError, match=r"A_log begins with values by a formula"):
        fill(model, 7, 0.02)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_never_taken_for_structure(seed: int) -> None:
    with _seeded(seed):
        model = build_model("gpt2", {"vocab_size": 257, "n_embd": 64, "n_layer": 2, "n_head": 2})
        for size in (2, 4, 16, 256, 4096):
            model.register_parameter(f"noise_{size}", nn.Parameter(torch.randn(size)))
    fill(model, seed, 0.02)


def test_a_range_of_steps_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"expected 0 < time_step_min <= time_step_max"):
        _filled("mamba2", time_step_min=0.5, time_step_max=0.1)
