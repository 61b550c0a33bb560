"""Torch's Muon, which takes float32 products where those of bfloat16 are slow.

Torch makes a step's matrix nearly orthogonal by a Newton-Schulz iteration in bfloat16, on every
device. On a processor without instructions for it (AVX512_BF16) such a step took 10, 43 and 48
times as long as one in float32 for matrices of 64 x 64, 256 x 256 and 512 x 512, seen on one with
AVX2 (`tests.benchmarks.optimizer`): most of the time of a node there. The two differ by what
bfloat16 rounds, 1 % of what a matrix moves.
"""

from typing import Any

import torch
from torch import Tensor, nn

from node.exact.dct import bfloat16_is_faster


def muon_step(muon: torch.optim.Optimizer) -> None:
    """A step of torch's Muon, whose state stays torch's. Weight decay is 0, updates are as large as
    AdamW's (`match_rms_adamw`).
    """
    found = [
        (matrix, group)
        for group in muon.param_groups
        for matrix in group["params"]
        if matrix.grad is not None
    ]
    if bfloat16_is_faster() or any(matrix.device.type != "cpu" for matrix, _ in found):
        muon.step()
        return
    for matrix, group in found:
        _move(matrix, muon.state[matrix], group)


@torch.no_grad()
def _move(matrix: nn.Parameter, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Move one matrix by its gradient and momentum, Nesterov's."""
    gradient, momentum = matrix.grad, group["momentum"]
    assert gradient is not None, "the caller has looked"
    held = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
    held.lerp_(gradient, 1 - momentum)
    moved = _orthogonal(gradient.lerp(held, momentum), group)
    matrix.add_(moved, alpha=-0.2 * group["lr"] * max(matrix.shape) ** 0.5)


def _orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """A matrix whose singular values are near 1, with the given one's singular vectors: `ns_steps`
    times p(X) = aX + b(XX')X + c(XX')^2 X, of X / |X|. The wider side is kept out of the squares.
    """
    a, b, c = group["ns_coefficients"]
    x = matrix.float()
    upright = x.shape[0] > x.shape[1]
    if upright:
        x = x.T
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if upright else x
