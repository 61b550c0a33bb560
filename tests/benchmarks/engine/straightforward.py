"""DeMo as published, written the obvious way: the engine's baseline.

A loop over parameters; momentum in parameter space; blocks of 64x64 by einsum; every kept
coefficient sent as an int64 index and a float32 value; the sent part transformed back once for the
author's momentum and once more, summed over all authors, for the update (Peng, Quesnelle, Kingma,
arXiv 2411.19870, algorithm 1; the block length is fixed to 64, where the published code takes the
nearest divisor of each dimension). The update is by sign, as there.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

SIDE = 64

Payload = dict[str, tuple[bytes, bytes]]


def dct_matrix() -> Tensor:
    """Orthonormal DCT-II, float32 [64, 64]."""
    n = torch.arange(SIDE, dtype=torch.float64)
    matrix = torch.cos(math.pi * (2 * n[None, :] + 1) * n[:, None] / (2 * SIDE)) * math.sqrt(
        2 / SIDE
    )
    matrix[0] /= math.sqrt(2)
    return matrix.float()


class Straightforward:
    """One author's optimiser state and the four parts of a step."""

    def __init__(self, parameters: Mapping[str, Tensor], momentum_decay: float, top_k: int) -> None:
        self._parameters = parameters
        self._decay, self._top_k = momentum_decay, top_k
        self._device = next(iter(parameters.values())).device
        self._matrix = dct_matrix().to(self._device)
        self.momentum = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}

    def extract(self, gradients: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """(index int64, value float32), each [blocks, k], per parameter; what is sent leaves the
        momentum.
        """
        sent = {}
        for name, gradient in gradients.items():
            momentum = self.momentum[name].mul_(self._decay).add_(gradient)
            coefficients = self._forward(momentum)
            flat = coefficients.flatten(1)
            index = flat.abs().topk(min(self._top_k, flat.shape[1]), dim=1).indices
            value = flat.gather(1, index)
            momentum.sub_(self._inverse(torch.zeros_like(flat).scatter_(1, index, value), momentum))
            sent[name] = index, value
        return sent

    def encode(self, sent: Mapping[str, tuple[Tensor, Tensor]]) -> Payload:
        """Raw bytes: 12 per coefficient."""
        return {
            name: (index.cpu().numpy().tobytes(), value.cpu().numpy().tobytes())
            for name, (index, value) in sent.items()
        }

    def decode(self, payload: Payload) -> dict[str, tuple[Tensor, Tensor]]:
        """The coefficients that `encode` was given."""
        decoded = {}
        for name, (index, value) in payload.items():
            values = torch.from_numpy(np.frombuffer(value, np.float32).copy()).to(self._device)
            indices = torch.from_numpy(np.frombuffer(index, np.int64).copy()).to(self._device)
            k = min(self._top_k, self._entries(self._parameters[name]))
            decoded[name] = indices.view(-1, k), values.view(-1, k)
        return decoded

    def apply(
        self, payloads: Sequence[Mapping[str, tuple[Tensor, Tensor]]], learning_rate: float
    ) -> None:
        """Mean over authors, back to parameter space, sign, step."""
        for name, parameter in self._parameters.items():
            index = torch.cat([payload[name][0] for payload in payloads], dim=1)
            value = torch.cat([payload[name][1] for payload in payloads], dim=1)
            summed = torch.zeros(len(index), self._entries(parameter), device=self._device)
            summed.scatter_reduce_(1, index, value, reduce="mean", include_self=False)
            parameter.sub_(self._inverse(summed, parameter).sign_(), alpha=learning_rate)

    def _entries(self, parameter: Tensor) -> int:
        return SIDE if parameter.dim() < 2 else SIDE * SIDE

    def _forward(self, tensor: Tensor) -> Tensor:
        blocks = _blocks(tensor)
        if tensor.dim() < 2:
            return blocks @ self._matrix.T
        return torch.einsum("ij,bjk,lk->bil", self._matrix, blocks, self._matrix)

    def _inverse(self, flat: Tensor, like: Tensor) -> Tensor:
        if like.dim() < 2:
            return (flat @ self._matrix).flatten()[: like.numel()].view(like.shape)
        blocks = torch.einsum(
            "ji,bjk,kl->bil", self._matrix, flat.view(-1, SIDE, SIDE), self._matrix
        )
        return _unblocked(blocks, like.shape)


def _blocks(tensor: Tensor) -> Tensor:
    """[blocks, 64] of a vector, [blocks, 64, 64] of a matrix, zero-padded."""
    if tensor.dim() < 2:
        padded = torch.nn.functional.pad(tensor.flatten(), (0, -tensor.numel() % SIDE))
        return padded.view(-1, SIDE)
    rows, columns = tensor.shape
    padded = torch.nn.functional.pad(tensor, (0, -columns % SIDE, 0, -rows % SIDE))
    grid = padded.view(padded.shape[0] // SIDE, SIDE, padded.shape[1] // SIDE, SIDE)
    return grid.permute(0, 2, 1, 3).reshape(-1, SIDE, SIDE)


def _unblocked(blocks: Tensor, shape: torch.Size) -> Tensor:
    rows, columns = (-(-size // SIDE) for size in shape)
    padded = (
        blocks.view(rows, columns, SIDE, SIDE)
        .permute(0, 2, 1, 3)
        .reshape(rows * SIDE, columns * SIDE)
    )
    return padded[: shape[0], : shape[1]]
