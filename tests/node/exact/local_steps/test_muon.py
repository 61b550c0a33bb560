"""A node's step of Muon is torch's, with other roundings."""

import pytest
import torch
from torch import Tensor, nn

from node.exact.local_steps import muon
from node.exact.local_steps.muon import muon_step
from node.exact.local_steps.optimizer import muon_of

SHAPES = ((24, 8), (8, 24), (16, 16))


def moved(
    shape: tuple[int, int], *, bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> list[Tensor]:
    """What four steps have moved a matrix by, and its momentum."""
    monkeypatch.setattr(muon, "bfloat16_is_faster", lambda: bfloat16)
    generator = torch.Generator().manual_seed(0)
    begun = torch.randn(shape, generator=generator)
    matrix, idle = nn.Parameter(begun.clone()), nn.Parameter(begun.clone())
    optimizer = muon_of([matrix, idle])
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for _ in range(4):
        matrix.grad = torch.randn(shape, generator=generator)
        muon_step(optimizer)
    assert torch.equal(idle, begun), "one without a gradient stays"
    assert optimizer.state.keys() == {matrix}
    return [matrix.detach() - begun, optimizer.state[matrix]["momentum_buffer"]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_in_float32_is_torchs_but_for_what_bfloat16_rounds(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torchs = moved(shape, bfloat16=True, monkeypatch=monkeypatch)
    own = moved(shape, bfloat16=False, monkeypatch=monkeypatch)
    assert 0 < (own[0] - torchs[0]).norm() < 0.02 * torchs[0].norm()
    assert torch.equal(own[1], torchs[1])


def test_a_gradient_of_zeros_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "bfloat16_is_faster", lambda: False)
    matrix = nn.Parameter(torch.ones(3, 2))
    matrix.grad = torch.zeros(3, 2)
    muon_step(muon_of([matrix]))
    assert torch.equal(matrix, torch.ones(3, 2))
