"""The plain way: four verbs on the chunks of a model, strip by strip, in torch and numpy.

    accumulate   M <- decay * M + D G D^T        every chunk; M is kept transposed
    extract      the k largest |M| of each chunk, and they leave M (or, with alpha 0, stay)
    update       P <- P * decay - rate * U       U is the update of the summed votes S
    guess        U of S = 200 * sign(sent) + 40 * M / rms(M), in sixteenths

    U            sign(D^T S D) in whole numbers: dct.py; of matrices with the rule "orthogonal", the
                 orthogonal matrix nearest to it: orthogonalise.py

This is the way to read, and the oracle of the other two: accelerator.py and cpu_kernels.py do the
same in another order, `update` to the same bits. A strip is as many chunks as stay in a processor's
cache while these steps follow one another. Nothing depends on how chunks are cut into strips.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from node.demo.chunks import ChunkLayout, strips
from node.demo.dct import (
    exact_products,
    forward,
    forward_dtype,
    inverse,
    inverse_signs_,
    transposed,
)
from node.demo.device_packing import coefficients_of
from node.demo.kernels.constants import (
    ENTRY_MAX,
    GUESS_MAX,
    GUESS_ONE,
    ORTHOGONAL_GUESS,
    SENT_WEIGHT,
    SIZE_LEAST,
    STAYED_WEIGHT,
)
from node.demo.orthogonalise import inverse_orthogonal_
from node.demo.top_k import ascending, largest
from node.demo.vote_sum import Rule, Votes
from protocol.codec.payload import Body, PayloadShape, body_of
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

STRIP_CHUNKS_PER_THREAD = 128
"""Chunks of a strip per thread: 2 MiB. 64 and 256 measured alike, 32 and 512 slower."""

Views = Mapping[str, Tensor]
"""Matrices and lines by name, from `ChunkLayout.views`."""

Sent = tuple[Tensor, Tensor]
"""Indices and values of an extraction, int16 [chunks, k] each."""


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
        momentum: Tensor,
        decay: float,
        active: Tensor | None = None,
        *,
        start: int = 0,
    ) -> None:
        """`Backend.accumulate` from chunk `start` on."""
        gathered = torch.empty_like(
            momentum[: self.strip_chunks], dtype=forward_dtype(momentum.device)
        )
        with exact_products(momentum.device):
            for first, stop in strips(self._layout.chunks, len(gathered), start=start):
                strip, kept = gathered[: stop - first], momentum[first:stop]
                self._layout.gather_strip(gradients, first, strip)
                accumulate_strip(strip, kept, decay, None if active is None else active[first:stop])

    def extract(
        self, momentum: Tensor, top_k: int, alpha: float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        chunks = self._layout.chunks
        indices = torch.empty(chunks, top_k, dtype=torch.int16, device="cpu")
        previous = torch.empty(chunks, top_k, dtype=torch.float32, device="cpu")
        for first, stop in strips(chunks, self.strip_chunks):
            entries = momentum[first:stop].view(-1, CHUNK_ENTRIES)
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
        rule: Rule,
        *,
        start: int = 0,
    ) -> None:
        """`Backend.update` from chunk `start` on."""
        learning_rate, decay = rates
        shape = (self.strip_chunks, CHUNK_SIDE, CHUNK_SIDE)
        sums = torch.empty(shape, dtype=torch.float32, device="cpu")
        with exact_products(sums.device):
            for first, stop, orthogonal in update_strips(self._layout, len(sums), rule, start):
                strip = votes.sum_strip(first, sums[: stop - first])
                if orthogonal:
                    update, rate = inverse_orthogonal_(strip).mul_(learning_rate), 1.0
                else:
                    update, rate = inverse_signs_(strip, votes.sum_max), learning_rate
                for change, tensor in self._layout.pairs(parameters, first, update):
                    (tensor if decay == 1 else tensor.mul_(decay)).add_(change, alpha=-rate)

    def guess(self, momentum: Tensor, sent: Sent, rule: Rule) -> Tensor:
        guess = torch.empty(momentum.shape, dtype=torch.int8, device="cpu")
        self.fill_guess(momentum, sent, rule, guess)
        return guess

    def fill_guess(
        self, momentum: Tensor, sent: Sent, rule: Rule, out: Tensor, *, start: int = 0
    ) -> None:
        """`Backend.guess` from chunk `start` on, into int8 [chunks, 64, 64]."""
        with exact_products(momentum.device):
            for first, stop, orthogonal in update_strips(
                self._layout, self.strip_chunks, rule, start
            ):
                votes = guess_votes(momentum[first:stop], *(each[first:stop] for each in sent))
                out[first:stop] = guess_strip(votes, orthogonal)

    def look_ahead(
        self, committed: Views, working: Views, guess: Tensor, rates: tuple[float, float]
    ) -> None:
        learning_rate, decay = rates
        for first, stop in strips(self._layout.chunks, self.strip_chunks):
            pairs = (
                self._layout.pairs(views, first, guess[first:stop])
                for views in (committed, working)
            )
            for (change, source), (_, target) in zip(*pairs, strict=True):
                target.copy_((source * decay).add_(change, alpha=-learning_rate / GUESS_ONE))

    def pack(self, indices: Tensor, values: Tensor, shape: PayloadShape) -> Body:
        return body_of(coefficients_of(indices, values), shape)


# ---- what a strip goes through on any device


def update_strips(
    layout: ChunkLayout, size: int, rule: Rule, start: int = 0
) -> Iterator[tuple[int, int, bool]]:
    """(first, stop, orthogonal) of strips that cover the chunks from `start` on: none holds chunks
    of matrices and of small parameters alike where the rule tells these apart.
    """
    orthogonal = layout.matrix_chunks if rule == "orthogonal" else 0
    for first, stop in strips(orthogonal, size, start=start):
        yield first, stop, True
    for first, stop in strips(layout.chunks, size, start=max(start, orthogonal)):
        yield first, stop, False


def accumulate_strip(
    gradients: Tensor, momentum: Tensor, decay: float, active: Tensor | None
) -> None:
    """M <- decay * M + D G D^T, chunks [n, 64, 64]; only active ones, bool [n], if given."""
    target = momentum if active is None else None
    changed = torch.add(forward(gradients), momentum, alpha=decay, out=target)
    if active is not None:
        torch.where(active[:, None, None], changed, momentum, out=momentum)


def take(momentum: Tensor, indices: Tensor, share: float | Tensor) -> Tensor:
    """float32 [n, k]: the momentum [n, 4096] at the indices [n, k], a share of which leaves it."""
    places = transposed(indices.long())
    kept = momentum.gather(1, places)
    momentum.scatter_(1, places, kept - kept * share)
    return kept


def guess_votes(momentum: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """S of a guess, transposed, float32 [n, 64, 64]: of sent coefficients, int16 [n, k] indices and
    values, and of those that remain in the momentum [n, 64, 64].

    At most 2760 in magnitude: see `STAYED_MAX`.
    """
    size = momentum.square().mean((1, 2), keepdim=True).sqrt_().clamp_(min=SIZE_LEAST)
    votes = (momentum / size * STAYED_WEIGHT).nan_to_num_(0.0)
    weights = values.sign().float() * SENT_WEIGHT
    votes.view(-1, CHUNK_ENTRIES).scatter_add_(1, transposed(indices.long()), weights)
    return votes


def guess_strip(votes: Tensor, orthogonal: bool, *, may_look: bool = True) -> Tensor:
    """int8 [n, 64, 64]: the update that these votes would make, in sixteenths; changes them."""
    if orthogonal:
        whole = votes.round_().clamp_(-ENTRY_MAX, ENTRY_MAX)
        return as_guess(inverse_orthogonal_(whole, may_look=may_look).mul_(ORTHOGONAL_GUESS))
    return as_guess(inverse(votes).sign_())


def as_guess(update: Tensor) -> Tensor:
    """int8, in sixteenths, of an update whose root mean square is about one; changes it.

    NaN becomes 0: which integer the hardware makes of it depends on the processor.
    """
    whole = update.mul_(GUESS_ONE).round_().nan_to_num_(0.0)
    return whole.clamp_(-GUESS_MAX, GUESS_MAX).to(torch.int8)
