"""One node's side of local steps: what they moved into a residual, the residual into signs.

    accumulate   E <- fade * E + DCT2(P - P_i)    the round's steps began at P and ended at P_i
    extract      q = the signs at the k largest |E| of each chunk, s = the scale nearest to their
                 mean magnitude; E <- E - s * q

E is kept as the momentum of DeMo is, in coefficient space. What was not said fades by a factor of
the run each round; with a fade of 1 it stays until it is said. A chunk of which every entry is zero
says nothing. The author's scales are cut to what its steps could have moved, as every replica would
cut them (`aggregate.code_max`), so that what is cut stays in E.
"""

import numpy as np
import torch
from torch import Tensor

from node.demo.backend import Backend
from node.demo.chunks import ChunkLayout
from node.demo.dct import transposed
from node.demo.engine import DemoSettings, Engine, Extraction
from protocol.codec.scales import CODE_MAX, codes_of, scales_of
from protocol.limits import CHUNK_ENTRIES


class Residual(Engine):
    """The movements of one node's local steps that it did not send yet. An `Engine` whose momentum
    is the residual, and whose extractions have scales.
    """

    def __init__(
        self,
        layout: ChunkLayout,
        top_k: int,
        device: torch.device | str,
        *,
        fade: float = 1.0,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(layout, DemoSettings(top_k=top_k), device, backend=backend)
        self.fade = fade
        """Share of the residual that the next accumulation leaves, 0 to 1."""

    def extract(
        self,
        active: Tensor | None = None,
        *,
        top_k: int | None = None,
        code_max: int = CODE_MAX,
    ) -> Extraction:
        """Take signs and scales out of the residual; no scale has a code above `code_max`, and
        below 0 nothing is taken. Waits for the device.
        """
        indices, previous = self.backend.extract(self.momentum, top_k or self.settings.top_k, 0.0)
        signs = previous.sign()
        sizes = previous.abs().sum(1) / signs.abs().sum(1).clamp(min=1)
        codes = np.minimum(codes_of(sizes.cpu().numpy()), code_max)
        if active is not None:
            codes[~active.cpu().numpy()] = -1
        silent = torch.from_numpy(codes < 0).to(signs.device)
        values = signs.masked_fill_(silent[:, None], 0).to(torch.int16)
        scales = np.maximum(codes, 0).astype(np.uint8)
        said = values * torch.from_numpy(scales_of(scales)).to(values.device)[:, None]
        residual = self.momentum.view(-1, CHUNK_ENTRIES)
        residual.scatter_add_(1, transposed(indices.long()), -said)
        return Extraction(indices, values, previous, self.backend, torch.from_numpy(scales))

    @property
    def _decay(self) -> float:
        return self.fade
