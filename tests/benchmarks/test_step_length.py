"""Steps of the study of step length are as long as it says."""

import pytest
import torch

from tests.benchmarks.step_length import length, scaled

RATE = 0.25


def step() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Matrices before and after a step: one moves by half the rate, half of another by the rate."""
    before = {"a": torch.ones(6, 8), "b": torch.zeros(4, 8)}
    after = {"a": before["a"] + RATE / 2, "b": before["b"].clone()}
    after["b"][:2] -= RATE
    return before, after


def test_the_length_of_a_step_is_that_of_what_moves() -> None:
    before, after = step()
    assert scaled("now", before, after, RATE) == pytest.approx(0.75)
    assert torch.equal(after["a"], step()[1]["a"])
    assert length(torch.zeros(3)) == 0


def test_every_matrix_moves_by_the_rate_or_all_together_do() -> None:
    before, after = step()
    scaled("matrix", before, after, RATE)
    assert length(after["a"] - before["a"]) == pytest.approx(RATE)
    assert length(after["b"] - before["b"]) == pytest.approx(RATE)
    before, after = step()
    scaled("model", before, after, RATE)
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert length(moved) == pytest.approx(RATE)
    assert length(after["b"] - before["b"]) == pytest.approx(2 * length(after["a"] - before["a"]))
    assert not (after["b"] - before["b"])[2:].any()
