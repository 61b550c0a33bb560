"""The plain way: three verbs on the chunks of a model, strip by strip, in torch and numpy.

    accumulate   E <- decay * E + D G D^T        every chunk; E, what is unsaid, is transposed
    extract      the k largest |E| of each chunk, and they leave E (or, with alpha 0, stay)
    update       P <- P * decay - rate * U       U is the update of the summed votes S

    U            sign(D^T S D) in whole numbers: dct.py

This is the way to read, and the oracle of the other two: accelerator.py and cpu_kernels.py do the
same in another order, `update` to the same bits. A strip is as many chunks as stay in a processor's
cache while these steps follow one another. Nothing depends on how chunks are cut into strips.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout, strips
from node.exact.dct import exact_products, forward, forward_dtype, inverse_signs_, transposed
from node.exact.demo.votes import Votes
from node.exact.device_packing import coefficients_of
from node.exact.top_k import ascending, largest
from protocol.codec.payload import Body, PayloadShape, body_of
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

STRIP_CHUNKS_PER_THREAD = 128
"""Chunks of a strip per thread: 2 MiB. 64 and 256 measured alike, 32 and 512 slower."""

Views = Mapping[str, Tensor]
"""Matrices and lines by name, from `ChunkLayout.views`."""


class Plain:
    """The plain way for one layout; see `backend.Backend` for what its methods promise."""

    def __init__(self, layout: ChunkLayout, strip_chunks: int | None = None) -> None:
        """strip_chunks: chunks of a strip; without it as many as fit the caches of all threads."""
        self._layout = layout
        self._strip_chunks = strip_chunks

    @property
    def strip_chunks(self) -> int:
        """Chunks to work on at a time."""
        size = self._strip_chunks or STRIP_CHUNKS_PER_THREAD * torch.get_num_threads()
        return min(self._layout.chunks, size)

    def magnitude(self, views: Views) -> Tensor:
        found = [
            extreme for view in views.values() if view.numel() for extreme in torch.aminmax(view)
        ]
        if not found:
            return torch.zeros((), dtype=torch.float32, device="cpu")
        return torch.stack([extreme.float() for extreme in found]).abs().max()

    def accumulate(
        self,
        gradients: Views,
        unsaid: Tensor,
        decay: float,
        active: Tensor | None = None,
        *,
        start: int = 0,
    ) -> None:
        gathered = torch.empty_like(unsaid[: self.strip_chunks], dtype=forward_dtype(unsaid.device))
        with exact_products(unsaid.device):
            for first, stop in strips(len(unsaid), len(gathered)):
                strip, kept = gathered[: stop - first], unsaid[first:stop]
                self._layout.gather_strip(gradients, start + first, strip)
                accumulate_strip(strip, kept, decay, None if active is None else active[first:stop])

    def extract(
        self, unsaid: Tensor, top_k: int, alpha: float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        chunks = len(unsaid)
        indices = torch.empty(chunks, top_k, dtype=torch.int16, device="cpu")
        previous = torch.empty(chunks, top_k, dtype=torch.float32, device="cpu")
        for first, stop in strips(chunks, self.strip_chunks):
            entries = unsaid[first:stop].view(-1, CHUNK_ENTRIES)
            indices[first:stop] = ascending(
                transposed(largest(entries.abs(), top_k)).to(torch.int16)
            )
            share = alpha if active is None else alpha * active[first:stop, None]
            previous[first:stop] = take(entries, indices[first:stop], share)
        return indices, previous

    def update(
        self,
        parameters: Views,
        votes: Votes,
        rates: tuple[float, float],
        *,
        start: int = 0,
    ) -> None:
        """`Backend.update` from chunk `start` on."""
        learning_rate, decay = rates
        shape = (self.strip_chunks, CHUNK_SIDE, CHUNK_SIDE)
        sums = torch.empty(shape, dtype=torch.float32, device="cpu")
        with exact_products(sums.device):
            for first, stop in strips(self._layout.chunks, len(sums), start=start):
                strip = votes.sum_strip(first, sums[: stop - first])
                signs = inverse_signs_(strip, votes.sum_max)
                for change, tensor in self._layout.pairs(parameters, first, signs):
                    decayed = tensor if decay == 1 else tensor.mul_(decay)
                    decayed.add_(change, alpha=-learning_rate)

    def pack(self, indices: Tensor, values: Tensor, shape: PayloadShape) -> Body:
        return body_of(coefficients_of(indices, values), shape)


# ---- what a strip goes through on any device


def accumulate_strip(
    gradients: Tensor, unsaid: Tensor, decay: float, active: Tensor | None
) -> None:
    """E <- decay * E + D G D^T, chunks [n, 64, 64]; only active ones, bool [n], if given."""
    target = unsaid if active is None else None
    changed = torch.add(forward(gradients), unsaid, alpha=decay, out=target)
    if active is not None:
        torch.where(active[:, None, None], changed, unsaid, out=unsaid)


def take(unsaid: Tensor, indices: Tensor, share: float | Tensor) -> Tensor:
    """float32 [n, k]: `unsaid` [n, 4096] at the indices [n, k], a share of which leaves it."""
    places = transposed(indices.long())
    kept = unsaid.gather(1, places)
    unsaid.scatter_(1, places, kept - kept * share)
    return kept
