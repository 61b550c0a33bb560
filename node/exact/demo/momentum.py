"""One node's side of DeMo: gradients into momentum, momentum into coefficients.

    accumulate   M <- beta * M + DCT2(G)
    extract      q of the k largest |M| of each chunk is sent, and these leave M

q is a sign or, of more bits, a signed integer of magnitude 1 to 2^(bits-1), the largest of its
chunk. Its scale is not sent: q weighs the same for every author. A zero is never sent. A
coefficient that was sent leaves whole, as published; to keep the remainder that q does not express,
as error feedback does, trained no better (docs/results/notes).

DeMo: Peng, Quesnelle, Kingma, arXiv 2411.19870. `accumulate` waits for the device once, to judge
the gradients; `extract` never does, only `Extraction.body` and `coefficients`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from node.exact.backend import Backend
from node.exact.chunks import ChunkLayout
from node.exact.engine import GRADIENT_MAX, Engine, Extraction, require_finite
from protocol.codec.payload import VALUE_BITS
from protocol.errors import SettingsError
from protocol.limits import CHUNK_ENTRIES


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of DeMo; `SettingsError` outside the bounds."""

    momentum_decay: float = 0.999
    """beta: share of the momentum that an accumulation leaves, 0 <= beta < 1."""

    top_k: int = 32
    """k: coefficients kept of the 4096 in a chunk, 1 to 4096."""

    value_bits: int = 1
    """Bits of one sent value: 1 (its sign), 2, 4 or 8."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum_decay < 1:
            raise SettingsError(
                f"expected a momentum_decay from 0 to below 1, got {self.momentum_decay}"
            )
        if not 1 <= self.top_k <= CHUNK_ENTRIES:
            raise SettingsError(f"expected a top_k of 1 to {CHUNK_ENTRIES}, got {self.top_k}")
        if self.value_bits not in VALUE_BITS:
            raise SettingsError(f"expected value_bits of {VALUE_BITS}, got {self.value_bits}")

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> Self:
        """The settings that stand by their names among others; `KeyError` if one is missing."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


class Momentum(Engine):
    """The momentum M of one model on one device."""

    def __init__(
        self,
        layout: ChunkLayout,
        settings: DemoSettings,
        device: torch.device | str,
        *,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(layout, device, backend=backend)
        self.settings = settings

    def accumulate(
        self, gradients: Mapping[str, Tensor | None], active: Tensor | None = None
    ) -> None:
        """M <- beta * M + DCT2(G).

        `gradients` has the name of every parameter; None counts as zeros. With `active`, bool
        [chunks], the momentum of the other chunks stays as it is. `GradientError`, before anything
        changed, for an entry that is NaN or beyond GRADIENT_MAX.
        """
        views = self.layout.views(gradients)
        # One look at all of them; one by one only to name the first that is broken. A NaN is not
        # above the bound either.
        if not self.backend.magnitude(views) <= GRADIENT_MAX:
            require_finite({name: views.get(name) for name in self.layout.shapes})
        self.backend.accumulate(views, self.entries, self.settings.momentum_decay, active)
        self.accumulations += 1

    def extract(self, active: Tensor | None = None) -> Extraction:
        """Take the k largest |M| of each chunk out of the momentum; only out of chunks that are
        `active`, bool [chunks], if given.
        """
        indices, previous = self.backend.extract(self.entries, self.settings.top_k, 1.0, active)
        candidates = previous if active is None else previous * active[:, None]
        values = quantise(candidates, self.settings.value_bits).to(torch.int16)
        return Extraction(indices, values, previous, self.backend)


def quantise(kept: Tensor, value_bits: int) -> Tensor:
    """The values q of kept coefficients [n, k]: signs, or whole numbers up to 2^(bits-1) in
    proportion; 0 only for 0 and NaN.
    """
    signs = kept.sign()
    if value_bits == 1:
        return signs
    magnitudes, most = kept.abs(), 1 << value_bits - 1
    scale = magnitudes.amax(1, keepdim=True) / most
    # The least normal float stands in for a scale of zero, and for one that is denormal. An
    # infinite peak makes NaN of its quotient, which becomes the largest value.
    steps = (magnitudes / scale.clamp(min=torch.finfo(kept.dtype).tiny)).round_().nan_to_num_(most)
    return steps.clamp_(1, most).mul_(signs)
