"""One node's side of DeMo: gradients into momentum, momentum into coefficients, and back.

The orthonormal DCT is linear, so the momentum is kept as coefficients M and never transformed back:

    accumulate   M <- beta * M + DCT2(G)
    extract      q of the k largest |M| of each chunk is sent, and these leave M
    put_back     what the newest extraction took comes back bit for bit, if nobody heard of it

q is a sign or, of more bits, a signed integer of magnitude 1 to 2^(bits-1), the largest of its
chunk. Its scale is not sent: q weighs the same for every author. A zero is never sent. A
coefficient that was sent leaves whole, as published; to keep the remainder that q does not express,
as error feedback does, trained no better (docs/results/notes).

DeMo: Peng, Quesnelle, Kingma, arXiv 2411.19870. Nothing here needs equal bits on two nodes.
`accumulate` waits for the device once, to judge the gradients; `extract` never does, only
`Extraction.body` and `coefficients`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from node.exact.backend import Backend, backend_for
from node.exact.chunks import ChunkLayout
from node.exact.dct import transposed
from node.exact.device_packing import coefficients_of
from protocol.codec.payload import VALUE_BITS, Body, Coefficients, PayloadShape, body_of
from protocol.errors import LocalProtocolError, LockstepError, SettingsError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

GRADIENT_MAX = 1e30
"""Largest |gradient|. A momentum of such gradients, 64 / (1 - beta) times as large, is still finite
in float32."""

STATE = ("momentum", "accumulations")
"""The tensors of an `Engine`."""


class GradientError(LockstepError):
    """A gradient is NaN, infinite or beyond GRADIENT_MAX; nothing was accumulated."""


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


@dataclass(slots=True, eq=False)
class Extraction:
    """The coefficients that one `extract` took, on the engine's device: k slots per chunk, of which
    those with value 0 are unused.
    """

    indices: Tensor
    """int16 [chunks, k]: places in the chunk, ascending."""

    values: Tensor
    """int16 [chunks, k]: their values q, 0 in unused slots."""

    previous: Tensor
    """[chunks, k], as the engine keeps it: the momentum there before. It left, where a value was
    sent."""

    backend: Backend
    """Packs it."""

    scales: Tensor | None = None
    """uint8 [chunks] on the host: the codes of the chunks' scales; None where only signs are
    sent."""

    _coefficients: Coefficients | None = None

    def body(self, shape: PayloadShape) -> Body:
        """The payload's body. Waits for the device, and copies the bytes to the host."""
        if self.scales is not None:
            return body_of(self.coefficients, shape)
        return self.backend.pack(self.indices, self.values, shape)

    @property
    def coefficients(self) -> Coefficients:
        """The coefficients to send. The first call waits for the device and copies to the host."""
        if self._coefficients is None:
            found = coefficients_of(self.indices, self.values)
            if self.scales is not None:
                found = replace(found, scales=self.scales.numpy())
            self._coefficients = found
        return self._coefficients


class Engine:
    """The momentum of one model on one device, and the ways to change it."""

    def __init__(
        self,
        layout: ChunkLayout,
        settings: DemoSettings,
        device: torch.device | str,
        *,
        backend: Backend | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """backend: how chunks are worked on; by default the fastest way on the device."""
        self.layout = layout
        self.settings = settings
        self.momentum = torch.zeros(
            layout.chunks,
            CHUNK_SIDE,
            CHUNK_SIDE,
            dtype=dtype,
            device=torch.device(device),
        )
        """`dtype` [chunks, 64, 64], in coefficient space, transposed: [chunks, column, row]."""
        self.backend = backend or backend_for(layout, self.momentum.device)
        self._accumulations = torch.zeros(1, dtype=torch.int64, device="cpu")  # a part of the state

    @property
    def accumulations(self) -> int:
        """How often gradients have entered this momentum."""
        return int(self._accumulations)

    def require_finite(
        self, gradients: Mapping[str, Tensor | None], most: float = GRADIENT_MAX
    ) -> None:
        """`GradientError`, as `accumulate` raises it, for an entry that is NaN or beyond `most`."""
        self._require_finite(self.layout.views(gradients), most)

    def accumulate(
        self, gradients: Mapping[str, Tensor | None], active: Tensor | None = None
    ) -> None:
        """M <- beta * M + DCT2(G).

        `gradients` has the name of every parameter; None counts as zeros. With `active`, bool
        [chunks], the momentum of the other chunks stays as it is. `GradientError`, before anything
        changed, for an entry that is NaN or beyond GRADIENT_MAX.
        """
        views = self.layout.views(gradients)
        self._require_finite(views, GRADIENT_MAX)
        self.backend.accumulate(views, self.momentum, self._decay, active)
        self._accumulations += 1

    def extract(self, active: Tensor | None = None, *, top_k: int | None = None) -> Extraction:
        """Take the k largest |M| of each chunk out of the momentum.

        Only out of chunks that are `active`, bool [chunks], if given. `top_k` is the k of this
        call, if it is not that of the settings.
        """
        top_k = top_k or self.settings.top_k
        indices, previous = self.backend.extract(self.momentum, top_k, 1.0, active)
        candidates = previous if active is None else previous * active[:, None]
        values = quantise(candidates, self.settings.value_bits).to(torch.int16)
        return Extraction(indices, values, previous, self.backend)

    def put_back(self, extraction: Extraction) -> None:
        """Undo the newest `extract` bit for bit, because its payload was not sent. Nothing may have
        changed the momentum since.
        """
        momentum = self.momentum.view(-1, CHUNK_ENTRIES)
        momentum.scatter_(1, transposed(extraction.indices.long()), extraction.previous)

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum and count of accumulations, which an optimizer keeps over a restart: the tensors
        themselves, not copies.
        """
        return {"momentum": self.momentum, "accumulations": self._accumulations}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a momentum of the same model."""
        own = self.state_dict()
        found, expected = (
            {name: tuple(tensor.shape) for name, tensor in each.items()} for each in (state, own)
        )
        if found != expected:
            raise LocalProtocolError(f"expected momentum of {expected}, got {found}")
        if (count := int(state["accumulations"])) < 0:
            raise LocalProtocolError(f"expected momentum of 0 accumulations or more, got {count}")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    @property
    def _decay(self) -> float:
        """The factor by which an accumulation shrinks the momentum."""
        return self.settings.momentum_decay

    def _require_finite(self, views: Mapping[str, Tensor], most: float) -> None:
        """One look at all of them; one by one only to name the first that is broken."""
        if not self.backend.magnitude(views) <= most:  # `not`, as a NaN is not above it either
            require_finite({name: views.get(name) for name in self.layout.shapes}, most)


def require_finite(gradients: Mapping[str, Tensor | None], most: float = GRADIENT_MAX) -> None:
    """`GradientError` naming the first gradient with an entry that is NaN or beyond `most`."""
    for name, tensor in gradients.items():
        if tensor is not None and tensor.numel():
            low, high = (float(extreme) for extreme in torch.aminmax(tensor.detach()))
            if not -most <= low <= high <= most:
                nature = "NaN" if math.isnan(low) else f"from {low:g} to {high:g}"
                raise GradientError(
                    f"expected gradients of magnitude up to {most:g}, got {name} with entries "
                    f"{nature}"
                )


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
