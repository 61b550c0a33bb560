"""How the chunks of a model are worked on: one interface, three implementations, and the choice.

Plain         plain.py         strip by strip in torch and numpy: what the others must equal
Accelerator   accelerator.py   few large operations, and no waiting for the device
CpuKernels    cpu_kernels.py   compiled for this processor, chunk by chunk in its cache
"""

from typing import Protocol

import torch
from torch import Tensor

from node.exact.accelerator import Accelerator
from node.exact.chunks import ChunkLayout
from node.exact.cpu_kernels import CpuKernels, exact_kernels
from node.exact.demo.votes import Votes
from node.exact.plain import Plain, Views
from protocol.codec.payload import Body, PayloadShape
from protocol.planner.needs import KERNEL_CHUNKS_MIN

HOSTS = frozenset({"cpu"})
"""Types of device that do better with small operations that keep to a cache, and whose results may
be looked at without waiting."""


class Backend(Protocol):
    """The three verbs on the chunks of one layout, and what else depends on the device.

    `views` are what `ChunkLayout.views` returned; names that are missing count as zeros and are not
    changed. `unsaid` is E of all chunks or of a strip of them, what a node did not say yet: float32
    [n, 64, 64], in coefficient space, each chunk transposed.
    """

    def accumulate(
        self,
        gradients: Views,
        unsaid: Tensor,
        decay: float,
        active: Tensor | None = None,
        /,
        *,
        start: int = 0,
    ) -> None:
        """E <- decay * E + DCT2(G) of the chunks from `start` on; only of those that are active,
        bool [n], if given.
        """

    def extract(
        self, unsaid: Tensor, top_k: int, alpha: float, active: Tensor | None = None, /
    ) -> tuple[Tensor, Tensor]:
        """(indices, previous) of the k largest |E| of each chunk, any of equals.

        Int16 [n, k], their places in ascending order, and float32 [n, k], what E had there
        before. Alpha of it, 1 or 0, leaves the E of chunks that are active.
        """

    def update(self, parameters: Views, votes: Votes, rates: tuple[float, float], /) -> None:
        """DeMo's step, P <- P * decay - learning_rate * U, each rounded; `rates` is (learning rate,
        decay). The same bits in float32 parameters whatever the backend.
        """

    def magnitude(self, views: Views, /) -> Tensor:
        """Largest |entry|, a float32 scalar on any device; NaN if one is NaN, 0 for none."""

    def pack(self, indices: Tensor, values: Tensor, shape: PayloadShape, /) -> Body:
        """The body of int16 [chunks, k] indices, ascending in each chunk, and values; those with
        value 0 are not sent. Waits for the device, and copies the bytes to the host.
        """


def backend_for(layout: ChunkLayout, device: torch.device) -> Backend:
    """The fastest backend for a model on a device."""
    if is_accelerator(device):
        return Accelerator(layout, device)
    if layout.chunks >= KERNEL_CHUNKS_MIN and (kernels := exact_kernels()):
        return CpuKernels(layout, kernels)
    return Plain(layout)


def is_accelerator(device: torch.device) -> bool:
    """Whether this device should be given few large operations, and never be waited for."""
    return device.type not in HOSTS
