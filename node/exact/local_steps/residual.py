"""One node's side of local steps: what they moved into a residual, the residual into signs.

    accumulate   E <- fade * E + DCT2(P - P_i)    the round's steps began at P and ended at P_i
    extract      q = the signs at the k largest |E| of each chunk, s = the scale nearest to their
                 mean magnitude; E <- E - s * q

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
import torch
from torch import Tensor

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
        fade: float = 1.0,
        backend: Backend | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        """`rounding`: keeps the residual in bfloat16; None: it is float32, and exact."""
        dtype = torch.bfloat16 if rounding else torch.float32
        super().__init__(layout, device, backend=backend, dtype=dtype)
        self._rounding = rounding
        self.top_k = top_k
        """Coefficients that are said of a chunk."""
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
        """Take signs and scales out of the residual; no scale has a code above `code_max`, and
        below 0 nothing is taken. Waits for the device.
        """
        shape, device = (self.layout.chunks, self.top_k), self.entries.device
        indices, values = (torch.empty(shape, dtype=torch.int16, device=device) for _ in range(2))
        previous = torch.empty(shape, dtype=self.entries.dtype, device=device)
        scales = torch.empty(shape[0], dtype=torch.uint8, device="cpu")
        for first, stop, exact in self._strips():
            places, kept = self.backend.extract(exact, shape[1], 0.0)
            signs = kept.sign()
            sizes = kept.abs().sum(1) / signs.abs().sum(1).clamp(min=1)
            codes = np.minimum(codes_of(sizes.cpu().numpy()), code_max)
            if active is not None:
                codes[~active[first:stop].cpu().numpy()] = -1
            signs.masked_fill_(torch.from_numpy(codes < 0).to(device)[:, None], 0)
            scales[first:stop] = torch.from_numpy(np.maximum(codes, 0).astype(np.uint8))
            said = (
                signs * torch.from_numpy(scales_of(scales[first:stop].numpy())).to(device)[:, None]
            )
            residual = self.entries[first:stop].view(-1, CHUNK_ENTRIES)
            residual.scatter_add_(1, transposed(places.long()), -said.to(residual.dtype))
            indices[first:stop], values[first:stop], previous[first:stop] = places, signs, kept
        return Extraction(indices, values, previous, self.backend, scales)

    def _strips(self) -> Iterator[tuple[int, int, Tensor]]:
        """(first, stop, the residual of these chunks in float32), which is the residual itself
        where that is float32.
        """
        size = STRIP_CHUNKS_MAX if is_accelerator(self.entries.device) else HOST_STRIP_CHUNKS
        for first, stop in strips(self.layout.chunks, size):
            yield first, stop, self.entries[first:stop].float()
