"""Gradients scaled by the published formulas, within bounds, and over a restart."""

import math

import pytest
import torch
from torch import Tensor

from node.demo.engine import GradientError
from node.demo.gradient_scaling import MEMORY, GradientScaling
from protocol.errors import LocalProtocolError

SHAPES = {"matrix": (6, 5), "cube": (3, 2, 4), "vector": (7,), "scalar": (), "empty": (0, 4)}


def gradients(step: int) -> dict[str, Tensor | None]:
    """Gradients whose sizes differ by row, by column and by tensor."""
    generator = torch.Generator().manual_seed(step)
    found: dict[str, Tensor | None] = {}
    for name, shape in SHAPES.items():
        tensor = torch.randn(shape, generator=generator) * 10.0 ** len(name)
        if len(shape) > 1:
            tensor *= torch.logspace(-2, 1, shape[-1])
        found[name] = tensor
    return found


def scaled(scaling: GradientScaling, given: dict[str, Tensor | None]) -> dict[str, Tensor]:
    found = {name: None if tensor is None else tensor.clone() for name, tensor in given.items()}
    scaling.scale_(found)
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def test_plain_gradients_are_left_as_they_are() -> None:
    scaling = GradientScaling("plain", SHAPES, "cpu")
    assert not scaling.state.numel()
    found = scaled(scaling, gradients(1))
    assert all(
        tensor is None or torch.equal(found[name], tensor) for name, tensor in gradients(1).items()
    )


def test_each_step_is_adafactors_formula() -> None:
    scaling = GradientScaling("even", SHAPES, "cpu")
    means = {
        name: (
            torch.zeros(shape[0] if shape else 1).double(),
            torch.zeros(math.prod(shape[1:])).double(),
        )
        for name, shape in SHAPES.items()
    }
    for step in range(1, 5):
        found = scaled(scaling, gradients(step))
        for name, given in gradients(step).items():
            assert given is not None
            if not given.numel():
                continue
            plain = given.double().reshape(given.shape[0] if given.ndim else 1, -1)
            rows, columns = means[name]
            rows.mul_(MEMORY).add_(plain.square().mean(1), alpha=1 - MEMORY)
            columns.mul_(MEMORY).add_(plain.square().mean(0), alpha=1 - MEMORY)
            second = rows[:, None] * columns / rows.mean() / (1 - MEMORY**step)
            assert torch.allclose(
                found[name].double().reshape(plain.shape), plain / second.sqrt(), rtol=1e-4
            ), name


def test_rows_and_columns_of_a_first_gradient_come_out_of_one_size() -> None:
    outer = torch.logspace(-1, 2, 6)[:, None] * torch.logspace(2, -2, 5)
    found = scaled(GradientScaling("even", {"matrix": (6, 5)}, "cpu"), {"matrix": outer})["matrix"]
    assert torch.allclose(found, torch.ones(6, 5), rtol=1e-4)


def test_zeros_stay_zeros_and_tiny_gradients_are_not_blown_up() -> None:
    scaling = GradientScaling("even", SHAPES, "cpu")
    for scale in (0.0, 1e-30):
        found = scaled(
            scaling,
            {name: None if t is None else t.sign() * scale for name, t in gradients(1).items()},
        )
        assert all(tensor.abs().max() <= 1e-6 for tensor in found.values() if tensor.numel())
    assert scaled(scaling, {"matrix": None}) == {}


@pytest.mark.parametrize("entry", [math.nan, math.inf, 1e30])
def test_a_gradient_without_finite_squares_is_refused_before_anything_changed(
    entry: float,
) -> None:
    scaling = GradientScaling("even", SHAPES, "cpu")
    scaling.scale_(gradients(1))
    before, given = scaling.state.clone(), gradients(2)
    vector = given["vector"]
    assert vector is not None
    vector[3] = entry
    kept = {name: tensor.clone() for name, tensor in given.items() if tensor is not None}
    with pytest.raises(GradientError, match="finite mean, got vector"):
        scaling.scale_(given)
    assert torch.equal(scaling.state, before)
    assert all(
        torch.equal(tensor, kept[name])
        for name, tensor in given.items()
        if tensor is not None and name != "vector"
    )


def test_a_loaded_state_goes_on_as_the_old_one_and_one_of_another_model_is_refused() -> None:
    scaling, again = GradientScaling("even", SHAPES, "cpu"), GradientScaling("even", SHAPES, "cpu")
    for step in range(3):
        scaling.scale_(gradients(step))
    again.load(scaling.state)
    one, other = scaled(scaling, gradients(3)), scaled(again, gradients(3))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(LocalProtocolError, match="gradient sizes of"):
        again.load(torch.zeros(3))
