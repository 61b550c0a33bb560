"""Blocks that are computed again give the same gradients in less memory; a model that cannot stays
as it is.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from node.model.blocks import recompute_blocks
from node.model.build import build_model
from node.model.training import TrainingModel
from protocol.errors import SettingsError
from tests.node.model.small import GPT2, LLAMA
from tests.support.allocations import peak_allocated_bytes
from tests.support.passes import do_work

torch.set_num_threads(1)

DEEP = LLAMA | {"num_hidden_layers": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
SAMPLES = torch.randint(0, 32, (4, 17), generator=torch.Generator().manual_seed(0))


def gradients(trainee: TrainingModel) -> dict[str, Tensor]:
    """Those of a pass, with the same draws of dropout each time."""
    torch.manual_seed(1)
    do_work(trainee, [SAMPLES])
    return {name: each.grad.clone() for name, each in trainee.parameters.items()}


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", LLAMA),
        ("gpt2", GPT2 | {"resid_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("mixtral", LLAMA | EXPERTS | {"output_router_logits": True}),
    ],
)
def test_blocks_that_are_computed_again_give_the_same_gradients(
    model_type: str, config: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    trainee = TrainingModel(build_model(model_type, config))
    expected = gradients(trainee)
    assert trainee.recompute()
    assert trainee.recomputes
    found = gradients(trainee)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_they_take_less_memory_until_they_are_kept_again() -> None:
    trainee = TrainingModel(build_model("llama", DEEP))
    trainee.zero_gradients()

    def peak() -> int:
        return peak_allocated_bytes(lambda: trainee.gradient(SAMPLES))

    kept = peak()
    trainee.recompute()
    assert peak() < kept / 2
    trainee.recompute(False)
    assert not trainee.recomputes
    assert peak() == kept


def test_a_model_that_cannot_says_so_and_stays_as_it_is() -> None:
    assert not recompute_blocks(nn.Linear(2, 2))
    model = build_model("llama", LLAMA)
    model.supports_gradient_checkpointing = False
    trainee = TrainingModel(model)
    assert not trainee.recompute()
    assert not trainee.recomputes


class Memory:
    """A device that holds one sample whose blocks are computed again, or half of one."""

    def __init__(self, trainee: TrainingModel, samples: float) -> None:
        self.trainee, self.samples, self.honest = trainee, samples, trainee.gradient

    def gradient(self, piece: Tensor) -> float:
        if len(piece) / (1 + self.trainee.recomputes) > self.samples:
            raise torch.OutOfMemoryError("tried to allocate 9 GiB")
        return self.honest(piece)


def test_a_sample_that_does_not_fit_is_computed_again_before_the_node_gives_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainee = TrainingModel(build_model("llama", LLAMA), micro_batch_max=2)
    expected = gradients(trainee)
    monkeypatch.setattr(trainee, "gradient", Memory(trainee, 0.5).gradient)
    trainee._has_fitted = False
    found = gradients(trainee)
    assert (trainee.micro_batch_max, trainee.recomputes) == (1, True)
    assert caplog.text.count("activations are computed again") == 1
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    smaller = TrainingModel(build_model("llama", LLAMA))
    monkeypatch.setattr(smaller, "gradient", Memory(smaller, 0.4).gradient)
    with pytest.raises(SettingsError, match="one sample does not fit"):
        do_work(smaller, [SAMPLES])
