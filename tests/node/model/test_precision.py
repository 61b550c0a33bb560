"""Weights are bfloat16 where that is quicker, and gradients where a node says so."""

import pytest
import torch

from node.model import precision
from node.model.build import build_model
from node.model.precision import weights_dtype
from node.model.training import TrainingModel
from protocol.planner.needs import KERNEL_CHUNKS_MIN
from tests.support.passes import do_work
from tests.support.tiny import CONFIG

CPU = torch.device("cpu")


@pytest.mark.parametrize("quick", [False, True])
def test_a_processor_takes_bfloat16_in_large_networks_if_it_has_instructions(
    monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    monkeypatch.setattr(precision, "bfloat16_is_faster", lambda: quick)
    assert weights_dtype(CPU, KERNEL_CHUNKS_MIN - 1) == torch.float32
    large = torch.bfloat16 if quick else torch.float32
    assert weights_dtype(CPU, KERNEL_CHUNKS_MIN) == large


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_gradients_in_bfloat16_are_those_of_float32_to_eight_bits(weights: torch.dtype) -> None:
    torch.manual_seed(0)
    network = build_model("llama", CONFIG)
    state = {name: tensor.bfloat16().float() for name, tensor in network.state_dict().items()}
    samples = torch.randint(0, CONFIG["vocab_size"], (6, 17))
    found = []
    for dtypes in ((torch.float32, torch.float32), (weights, torch.bfloat16)):
        model = build_model("llama", CONFIG)
        model.load_state_dict(state)
        trainee = TrainingModel(model, "cpu", 2, *dtypes)
        do_work(trainee, [samples])
        found.append({name: p.grad for name, p in trainee.parameters.items()})
    for name, gradient in found[0].items():
        light = found[1][name]
        assert gradient is not None
        assert light is not None
        assert light.dtype == torch.bfloat16
        assert (light.float() - gradient).norm() < 0.03 * gradient.norm(), name


def test_buffers_keep_their_bits() -> None:
    trainee = TrainingModel(build_model("llama", CONFIG), "cpu", 1, torch.bfloat16)
    kinds = {buffer.dtype for buffer in trainee.model.buffers() if buffer.is_floating_point()}
    assert kinds == {torch.float32}
