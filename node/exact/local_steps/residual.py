"""One node's side of local steps: what they moved into a residual, the residual into signs.

    accumulate   E <- fade * E + DCT2(P - P_i)    the round's steps began at P and ended at P_i
    extract      q = the signs at the k largest |E| of each chunk, s = the scale nearest to their
                 mean magnitude; E <- E - s * q

With values of two bits the q above the median magnitude of their chunk, which are half of them at
most, have a scale of their own, nearest to their own mean, and s is that of the others. A chunk in
which both are the same scale has one.

E is kept in coefficient space. What was not said fades by a factor of the run each round; with a
fade of 1 it stays until it is said. A chunk of which every entry is zero says nothing. The author's
scales are cut to what its steps could have moved, as every replica would cut them
(`movements.code_max`), so that what is cut stays in E.

A node keeps E in bfloat16. What a round adds is often below half a step of what is there, so that
it is rounded at random (`node.exact.rounding`); what was said is subtracted to the nearest, once
and from few. Strip by strip E becomes float32 and is worked on, so nothing else of its size stands
beside it.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from node.exact.accelerator import STRIP_CHUNKS_MAX
from node.exact.backend import Backend, is_accelerator
from node.exact.chunks import ChunkLayout, strips
from node.exact.dct import transposed
from node.exact.engine import Engine, Extraction, require_finite
from node.exact.rounding import Rounding
from protocol.codec.scales import CODE_MAX, codes_of, scales_of
from protocol.limits import CHUNK_ENTRIES

HOST_STRIP_CHUNKS = 1024
"""Chunks of a strip on a processor: 16 MiB, and 16 parts for its threads."""


class Residual(Engine):
    """The movements of one node's local steps that it did not send yet. Its extractions have
    scales.
    """

    def __init__(
        self,
        layout: ChunkLayout,
        top_k: int,
        device: torch.device | str,
        *,
        value_bits: int = 1,
        fade: float = 1.0,
        backend: Backend | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        """`value_bits`: 1, or 2 for values of two scales. `rounding`: keeps the residual in
        bfloat16; None: it is float32, and exact.
        """
        dtype = torch.bfloat16 if rounding else torch.float32
        super().__init__(layout, device, backend=backend, dtype=dtype)
        self._rounding = rounding
        self.top_k = top_k
        """Coefficients that are said of a chunk."""
        self.value_bits = value_bits
        """Bits of each: 1 for a sign, 2 for a sign and one of two scales."""
        self.numbers = torch.arange(layout.chunks, device=self.entries.device)
        """int64 [chunks]: the number of each chunk in the model, of which the layout may be a
        part."""
        self.fade = fade
        """Share of the residual that the next accumulation leaves, 0 to 1."""

    def accumulate(
        self, movement: Mapping[str, Tensor | None], active: Tensor | None = None
    ) -> None:
        """E <- fade * E + DCT2(movement).

        `movement` has the name of every parameter; None counts as zeros. It may be computed when it
        is asked for: it is asked for by name, twice, and let go of when the strips are past it.
        With `active`, bool [chunks], the residual of the other chunks stays as it is.
        `GradientError`, before anything changed, for an entry that is NaN or beyond GRADIENT_MAX.
        """
        for name in movement:  # none of which stays in a variable
            require_finite({name: movement[name]})
        held: dict[str, Tensor | None] = {}
        for first, stop, exact in self._strips():
            here = self.layout.names_in(first, stop)
            held = {name: held[name] if name in held else movement[name] for name in here}
            views = self.layout.views({name: held.get(name) for name in movement})
            flags = None if active is None else active[first:stop]
            self.backend.accumulate(views, exact, self.fade, flags, start=first)
            if self._rounding:
                what = "residual", int(self.accumulations)
                rows = self.numbers[first:stop]
                self._rounding.into(self.entries[first:stop], exact, *what, rows=rows)
        self.accumulations += 1

    def extract(self, active: Tensor | None = None, *, code_max: int = CODE_MAX) -> Extraction:
        """Take values and scales out of the residual; no scale has a code above `code_max`, and
        below 0 nothing is taken. Waits for the device.
        """
        shape, device = (self.layout.chunks, self.top_k), self.entries.device
        indices, values = (torch.empty(shape, dtype=torch.int16, device=device) for _ in range(2))
        previous = torch.empty(shape, dtype=self.entries.dtype, device=device)
        scales = torch.empty((shape[0], self.value_bits), dtype=torch.uint8, device="cpu")
        for first, stop, exact in self._strips():
            places, kept = self.backend.extract(exact, shape[1], 0.0)
            levels = _levels(kept, self.value_bits)
            codes = _codes(kept, levels, code_max)
            if active is not None:
                codes[~active[first:stop].cpu().numpy()] = -1
            there = torch.from_numpy(codes >= 0).to(device)
            magnitudes = (torch.stack(levels, 2) & there[:, None]).sum(2)
            scales[first:stop] = torch.from_numpy(np.maximum(codes, 0).astype(np.uint8))
            sizes = torch.from_numpy(scales_of(scales[first:stop].numpy())).to(device)
            said = pad(sizes, (1, 0)).gather(1, magnitudes) * kept.sign()
            residual = self.entries[first:stop].view(-1, CHUNK_ENTRIES)
            residual.scatter_add_(1, transposed(places.long()), -said.to(residual.dtype))
            indices[first:stop], previous[first:stop] = places, kept
            values[first:stop] = kept.sign() * magnitudes
        if self.value_bits == 1:
            scales = scales[:, 0]
        return Extraction(indices, values, previous, self.backend, scales)

    def _strips(self) -> Iterator[tuple[int, int, Tensor]]:
        """(first, stop, the residual of these chunks in float32), which is the residual itself
        where that is float32.
        """
        size = STRIP_CHUNKS_MAX if is_accelerator(self.entries.device) else HOST_STRIP_CHUNKS
        for first, stop in strips(self.layout.chunks, size):
            yield first, stop, self.entries[first:stop].float()


def _levels(kept: Tensor, value_bits: int) -> list[Tensor]:
    """Bool [n, k], one or two of them: where the magnitude of a value is 1 at least, and 2. `kept`
    are the coefficients, float32 [n, k], 0 in unused slots.
    """
    is_said = kept != 0
    if value_bits == 1:
        return [is_said]
    sizes = kept.abs()
    median = sizes.masked_fill(~is_said, torch.nan).nanmedian(1, keepdim=True).values
    return [is_said, sizes > median]  # the lower median of an even number: at most half are above


def _codes(kept: Tensor, levels: list[Tensor], code_max: int) -> npt.NDArray[np.int16]:
    """[n, 1 or 2]: the code of the mean magnitude of the values of each level, -1 without any and
    where the other scale is no smaller.
    """
    means = []
    for level, above in zip(levels, [*levels[1:], None], strict=True):
        among = level if above is None else level & ~above
        means.append((kept.abs() * among).sum(1) / among.sum(1).clamp(min=1))
    codes = np.minimum(codes_of(torch.stack(means, 1).cpu().numpy()), code_max)
    if len(levels) > 1:
        lower, larger = codes.T
        larger[(lower < 0) | (larger <= lower)] = -1
    return codes
