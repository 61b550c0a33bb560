import pytest
import torch

from node.demo.gradient_scaling import SCALES, GradientScaling, Scale
from node.demo.optimizer.points import PointScaling

CPU = torch.device("cpu")
LENGTHS = [5, 1, 700, 33]


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [10.0**seed * torch.randn(length, generator=generator) for length in LENGTHS]


@pytest.mark.parametrize("scale", SCALES)
def test_a_line_is_scaled_as_each_of_its_parameters_would_be(scale: Scale) -> None:
    each = GradientScaling(scale, {f"{i}": (length,) for i, length in enumerate(LENGTHS)}, CPU)
    line = PointScaling(scale, LENGTHS, CPU)
    for seed in range(4):
        given = gradients(seed)
        missing = [seed == 2 and index == 1 for index in range(len(LENGTHS))]
        for gradient, gone in zip(given, missing, strict=True):
            if gone:
                gradient.zero_()
        joined = torch.cat(given)
        line.scale_(joined, None if seed != 2 else ~torch.tensor(missing))
        each.scale_({f"{i}": None if missing[i] else g for i, g in enumerate(given)})
        torch.testing.assert_close(joined, torch.cat(given), rtol=1e-5, atol=0)


def test_zeros_stay_zeros() -> None:
    line = PointScaling("even", LENGTHS, CPU)
    zeros = torch.zeros(sum(LENGTHS))
    line.scale_(zeros, None)
    assert not zeros.any()


def test_each_parameter_s_memory_is_a_view_of_the_state() -> None:
    line = PointScaling("even", LENGTHS, CPU)
    for count, means, squares in line.pieces():
        for piece in (count, means, squares):
            piece.fill_(1)
    assert line.state.sum() == len(line.state) == 2 * len(LENGTHS) + sum(LENGTHS)
    assert PointScaling("plain", LENGTHS, CPU).pieces() == []
