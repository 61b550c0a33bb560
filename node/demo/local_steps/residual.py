"""One node's side of local steps: what they moved into a residual, the residual into signs.

    accumulate   E <- fade * E + DCT2(P - P_i)    the round's steps began at P and ended at P_i
    extract      q = the signs at the k largest |E| of each chunk, s = the scale nearest to their
                 mean magnitude; E <- E - s * q
    reclaim      s * q comes back; bit for bit if E did not change
    withdraw     what an older copy of E has sent meanwhile leaves E, as far as it is in there

E is kept as the momentum of DeMo is, in coefficient space. What was not said fades by a factor of
the run each round; with a fade of 1 it stays until it is said. A chunk of which every entry is zero
says nothing. The author's scales are cut to what its steps could have moved, as every replica would
cut them (`aggregate.code_max`), so that what is cut stays in E.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from node.demo.backend import Backend
from node.demo.chunks import ChunkLayout
from node.demo.dct import transposed
from node.demo.engine import DemoSettings, Engine, Extraction
from protocol.codec.payload import Coefficients
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
        self._changes += 1
        extraction = self._extraction(
            (indices, values, previous), self.accumulations, self._changes
        )
        extraction.scales = torch.from_numpy(np.maximum(codes, 0).astype(np.uint8))
        residual = self.momentum.view(-1, CHUNK_ENTRIES)
        residual.scatter_add_(1, transposed(indices.long()), -self._taken(extraction))
        return extraction

    def withdraw(self, coefficients: Coefficients) -> None:
        """Take out what this node sent after this residual was saved: at each place as much as is
        there, since the movement of the rounds since the save was sent too, and is not in here.
        """
        assert coefficients.scales is not None, "payloads of local steps have scales"
        residual = self.momentum.view(-1, CHUNK_ENTRIES)
        places, signs = self._slots(coefficients)
        kept = residual.gather(1, places)
        sizes = torch.from_numpy(scales_of(coefficients.scales)).to(kept.device)[:, None]
        taken = torch.minimum(kept.abs(), sizes) * signs * (kept.sign() == signs)
        residual.scatter_add_(1, places, -taken)
        self._changes += 1

    def revive(self, tensors: Mapping[str, Tensor], age: tuple[int, int]) -> Extraction:
        extraction = super().revive(tensors, age)
        extraction.scales = tensors["scales"].cpu()
        return extraction

    @property
    def _decay(self) -> float:
        return self.fade

    def _taken(self, extraction: Extraction) -> Tensor:
        assert extraction.scales is not None, "a residual's extractions have scales"
        sizes = torch.from_numpy(scales_of(extraction.scales.numpy()))
        return extraction.values * sizes.to(extraction.values.device)[:, None]
