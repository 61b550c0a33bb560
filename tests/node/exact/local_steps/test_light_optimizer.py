"""The light optimizer makes the steps of the exact one, and keeps a third of it."""

import pytest
import torch
from torch import nn

from node.exact import rounding
from node.exact.local_steps.light_optimizer import LightOptimizer
from node.exact.local_steps.optimizer import LocalOptimizer
from node.exact.rounding import Rounding
from tests.node.exact.local_steps.test_optimizer import Small

TABLES = ("table.weight", "output.weight")


@pytest.fixture(autouse=True)
def _short_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "STRIP_ENTRIES", 7)


def small(dtype: torch.dtype = torch.float32) -> tuple[Small, dict[str, nn.Parameter]]:
    torch.manual_seed(0)
    model = Small().to(dtype)
    return model, dict(model.named_parameters())


def give(parameters: dict[str, nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient.to(parameter.dtype)


def both(dtype: torch.dtype, steps: int, rate: float) -> tuple[dict[str, torch.Tensor], ...]:
    """What a light and an exact optimizer have moved after the same gradients."""
    found = []
    for kind in (dtype, torch.float32):
        model, parameters = small(kind)
        begun = {name: p.detach().float().clone() for name, p in parameters.items()}
        optimizer: LightOptimizer | LocalOptimizer = (
            LightOptimizer(model, parameters, Rounding("cpu", 5))
            if not found
            else LocalOptimizer(model, parameters)
        )
        for seed in range(steps):
            give(parameters, seed)
            optimizer.step(rate)
        found.append({name: p.detach().float() - begun[name] for name, p in parameters.items()})
    return tuple(found)


def test_the_first_step_of_float32_weights_is_the_exact_one_bit_for_bit() -> None:
    light, exact = both(torch.float32, 1, 0.01)
    for name, moved in exact.items():
        assert torch.equal(light[name], moved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_steps_lead_where_the_exact_ones_lead(dtype: torch.dtype) -> None:
    light, exact = both(dtype, 40, 0.01)
    for name, moved in exact.items():
        off = (light[name] - moved).norm() / moved.norm()
        # Weights of 1, steps of 0.01; a table's second moments are those of its rows.
        assert off < (0.3 if dtype == torch.bfloat16 or name in TABLES else 0.03), name


def test_weights_in_bfloat16_move_by_less_than_a_step_of_theirs_on_average() -> None:
    """A fiftieth of a step each time, which to the nearest is nothing."""
    torch.manual_seed(0)
    model = nn.Module()
    model.gain = nn.Parameter(torch.full((3000,), 1.25, dtype=torch.bfloat16))
    parameters = dict(model.named_parameters())
    optimizer = LightOptimizer(model, parameters, Rounding("cpu", 2))
    for _ in range(20):
        model.gain.grad = torch.ones_like(model.gain)
        optimizer.step(2.0**-7 / 50)
    moved = 1.25 - float(model.gain.detach().float().mean())
    assert moved == pytest.approx(20 * 2.0**-7 / 50, rel=0.1)


def test_gradients_are_given_back_and_state_is_bfloat16() -> None:
    model, parameters = small(torch.bfloat16)
    optimizer = LightOptimizer(model, parameters, Rounding("cpu"))
    give(parameters, 1)
    optimizer.step(0.01)
    assert all(parameter.grad is None for parameter in parameters.values())
    kept = [tensor for each in optimizer._state.values() for tensor in each.values()]
    halves = [tensor for tensor in kept if tensor.dtype == torch.bfloat16]
    every = sum(parameter.numel() for parameter in parameters.values())
    tables = sum(parameters[name].numel() for name in TABLES)
    twice = every - tables - parameters["matrix.weight"].numel()
    assert sum(tensor.numel() for tensor in halves) == every + twice
    rows = [tensor for tensor in kept if tensor.dtype == torch.float32]
    assert sorted(tensor.shape for tensor in rows) == sorted(
        (len(parameters[name]), 1) for name in TABLES
    )


def test_entries_of_a_table_move_by_the_second_moment_of_their_row() -> None:
    model = nn.Module()
    model.table = nn.Embedding(2, 100)
    parameters = dict(model.named_parameters())
    optimizer, rate = LightOptimizer(model, parameters, Rounding("cpu")), 0.001
    weight = parameters["table.weight"]
    for odd in (1.0, 1000.0, 1.0):
        weight.grad = torch.ones_like(weight)
        weight.grad[1, 7] = odd
        before = weight.detach().clone()
        optimizer.step(rate)
        moved = (before - weight.detach()) / rate
        torch.testing.assert_close(moved[0], torch.ones(100), rtol=1e-2, atol=1e-2)
    assert float(moved[1, :7].max()) < 0.2
