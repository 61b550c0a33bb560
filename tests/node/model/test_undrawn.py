"""Models whose noise nobody has drawn."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from node.model.build import build_undrawn, named_parameters_once
from node.model.undrawn import Undrawn
from node.system.device import resident_bytes
from tests.node.model.small import LLAMA

ROWS, WIDTH = 2048, 1024


def test_a_model_that_nobody_fills_takes_no_memory() -> None:
    build_undrawn("llama", LLAMA)  # imports what it needs
    before = resident_bytes("VmRSS")
    if not before:
        pytest.skip("the memory of a process is read from /proc, which this system does not have")
    wide = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 4}
    model, noise = build_undrawn("llama", LLAMA | wide)
    parameters = named_parameters_once(model)
    taken = sum(parameters[name].nbytes for name in noise)
    assert taken > 200e6
    assert resident_bytes("VmRSS") - before < 20e6
    assert {name for name in parameters if name not in noise} >= {"model.norm.weight"}


def test_a_small_tensor_and_values_that_are_no_noise_are_made_as_ever() -> None:
    with Undrawn() as made:
        small = nn.Linear(8, 8).weight.detach()
        shifted, uniform = torch.empty(ROWS, WIDTH), torch.empty(ROWS, WIDTH)
        nn.init.normal_(shifted, mean=1.0)
        nn.init.uniform_(uniform, 0.0, 1.0)
        same = nn.init.normal_(torch.empty(ROWS, WIDTH), 0.5, 0.0)
    assert not any(map(made.has_left, (small, shifted, uniform, same)))
    assert float(small.std()) > 0.01
    assert float(shifted.mean()) == pytest.approx(1.0, abs=0.1)
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.1)
    assert bool((same == 0.5).all())


@pytest.mark.parametrize(
    "touch",
    [
        lambda weight: weight[3].zero_(),
        lambda weight: weight.mul_(2.0),
        lambda weight: torch.cat([weight, weight]),
        lambda weight: weight.T.contiguous(),
        lambda weight: weight.numpy(),
    ],
    ids=["a row", "a factor", "a list", "a view", "an array"],
)
def test_noise_is_drawn_before_anything_is_done_with_it(touch: Callable[[Tensor], object]) -> None:
    with torch.no_grad(), Undrawn() as made:
        weight = nn.Linear(WIDTH, ROWS, bias=False).weight
        nn.init.normal_(weight.data, std=0.5)
        assert made.has_left(weight)
        touch(weight.data)
    assert not made.has_left(weight)
    assert float(weight.detach().std()) > 0.4


def test_one_value_takes_the_place_of_noise() -> None:
    with torch.no_grad(), Undrawn() as made:
        weight = nn.Linear(WIDTH, ROWS, bias=False).weight
        nn.init.zeros_(weight)
    assert not made.has_left(weight)
    assert not bool(weight.any())
