"""64 numbers tell how far nodes are apart, with a known error."""

import math

import pytest
import torch

from node.gossip_adam.projection import _hash, project
from protocol.mixing.consensus import PROJECTION_SIZE, distance


def nodes(count: int, seed: int, numbers: int = 20_000) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    common = 10 * torch.randn(numbers, generator=chance)
    return common + torch.randn(count, numbers, generator=chance)


def test_the_projection_is_linear_and_fixed() -> None:
    first, second = nodes(2, 0)
    torch.testing.assert_close(
        project(first - second), project(first) - project(second), rtol=0, atol=1e-4
    )
    assert project(first).shape == (PROJECTION_SIZE,)
    assert project(torch.ones(3)).abs().sum() > 0
    # The same on every machine: SplitMix64 of place 0, as published.
    assert int(_hash(torch.tensor([0]))[0]) % 2**64 == 0xE220A8397B1DCDAF


def test_the_estimated_distance_errs_as_its_theory_says() -> None:
    ratios = []
    for seed in range(40):
        values = nodes(8, seed)
        true = (values - values.mean(0)).square().sum(1).mean().sqrt().item()
        ratios.append(distance([project(value).tolist() for value in values]) / true)
    errors = torch.tensor(ratios) - 1
    # Squares of 8 nodes, 7 of them free: sqrt(2 / 64 / 7) = 6.7 %, and half of it for the root.
    expected = math.sqrt(2 / PROJECTION_SIZE / 7) / 2
    assert abs(errors.mean().item()) < 0.02
    assert errors.std().item() == pytest.approx(expected, rel=0.4)
    assert errors.abs().max().item() < 0.15


def test_large_parameters_are_projected_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = project(nodes(1, 3)[0])
    monkeypatch.setattr("node.gossip_adam.projection._PIECE", 777)
    torch.testing.assert_close(project(nodes(1, 3)[0]), whole)
