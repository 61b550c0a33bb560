"""One node's side of DeMo: gradients into momentum, momentum into coefficients, and coefficients back.

The orthonormal DCT is linear, so the momentum is kept as coefficients M and never transformed back:

    accumulate   M <- beta_n * M + DCT2(G),  beta_n = min(beta, n / (n + recency)) for the n-th
    extract      q of the k largest |M| of each chunk is sent, and alpha of these leaves M
    reclaim      what left comes back, decayed as M was since; the old bits if nothing happened since
    withdraw     what `extract` would take at the places of a payload that an older copy of M has sent meanwhile

q is a sign or, of more bits, a signed integer of magnitude 1 to 2^(bits-1), the largest of its chunk. Its scale is
not sent: what is sent weighs the same for every author. A zero is never sent. A coefficient that was sent leaves whole,
as published; to keep what q does not say of it, as error feedback does, trained no better (docs/results/parity.md).

Early gradients are large and soon out of date, late ones small and noisy, so the momentum remembers the longer the
longer it has been going: with beta_n of this form the i-th of n gradients weighs about (i / n)^recency.

DeMo: Peng, Quesnelle, Kingma, arXiv 2411.19870. beta_n: polynomial-decay averaging, Shamir, Zhang, arXiv 1212.1824.
Nothing here needs equal bits on two nodes. `accumulate` waits for the device once, to judge the gradients; `extract`
never does, only `Extraction.body` and `coefficients`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from node.demo.accelerator import flat_order, gatherer, is_accelerator
from node.demo.aggregate import Rule, as_guess
from node.demo.chunks import ChunkLayout, strips
from node.demo.cpu_kernels import Fused, fused
from node.demo.dct import exact_products, forward, forward_dtype, inverse, strip_chunks_for, transposed
from node.demo.device_packing import packed
from node.demo.orthogonalise import ENTRY_MAX, inverse_orthogonal_
from node.demo.top_k import ascending, largest
from protocol.errors import LocalProtocolError, LockstepError, SettingsError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE
from protocol.payload import VALUE_BITS, Body, Coefficients, PayloadShape, body_of

GRADIENT_MAX = 1e30
"""Largest |gradient|: a momentum of such gradients, 64 / (1 - beta) times it, is still finite in float32."""

SENT_WEIGHT, STAYED_WEIGHT = 200.0, 40.0
"""In a guess: of a coefficient sent, and of the root mean square of a chunk's coefficients that stayed."""

SIZE_LEAST = 2.0**-60
"""Least root mean square that what stayed in a chunk is measured by: there squares are still whole, and shares of it
finite. Less of it weighs in proportion to what it is, down to nothing for zeros."""

ORTHOGONAL_GUESS = 1.25
"""So many times an update goes a guess with the rule "orthogonal": both parts share its directions."""

EXTRACTED = ("indices", "values", "previous")
"""The tensors of an `Extraction`."""

STATE = ("momentum", "accumulations")
"""The tensors of an `Engine`."""


class GradientError(LockstepError):
    """A gradient is NaN, infinite or beyond GRADIENT_MAX; nothing was accumulated."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What DeMo keeps, sends and forgets; `SettingsError` outside the bounds."""

    momentum_decay: float = 0.999
    """beta: what is left of the momentum after one accumulation at most, 0 <= beta < 1."""

    alpha: float = 1.0
    """Share of what is sent that leaves the momentum, 0 < alpha <= 1."""

    top_k: int = 32
    """k: coefficients kept of the 4096 in a chunk, 1 to 4096."""

    value_bits: int = 1
    """Bits of one sent value: 1 (its sign), 2, 4 or 8."""

    recency: float = 1.5
    """How much less of a young momentum is left, finite and at least 0: by the n-th accumulation n / (n + recency),
    until that is beta. 0: beta from the first."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum_decay < 1:
            raise SettingsError(f"expected a momentum_decay from 0 to below 1, got {self.momentum_decay}")
        if not 0 <= self.recency < math.inf:
            raise SettingsError(f"expected a finite recency of at least 0, got {self.recency}")
        if not 0 < self.alpha <= 1:
            raise SettingsError(f"expected an alpha above 0 and up to 1, got {self.alpha}")
        if not 1 <= self.top_k <= CHUNK_ENTRIES:
            raise SettingsError(f"expected a top_k of 1 to {CHUNK_ENTRIES}, got {self.top_k}")
        if self.value_bits not in VALUE_BITS:
            raise SettingsError(f"expected value_bits of {VALUE_BITS}, got {self.value_bits}")

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> Self:
        """The settings that stand by their names among others; `KeyError` if one is missing."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def decay(self, accumulation: int) -> float:
        """beta_n: what the n-th accumulation, counted from 1, leaves of the momentum."""
        return min(self.momentum_decay, accumulation / (accumulation + self.recency))


@dataclass(slots=True, eq=False)
class Extraction:
    """What one `extract` took, on the engine's device; k slots per chunk, those with value 0 unused."""

    indices: Tensor
    """int16 [chunks, k]: places in the chunk, ascending."""

    values: Tensor
    """int16 [chunks, k]: what is sent of each."""

    previous: Tensor
    """float32 [chunks, k]: the momentum there before. Alpha of it left, where a value was sent."""

    state: object
    """The engine's state whose momentum this came from."""

    accumulations: int
    """How often the engine had accumulated by then."""

    changes: int
    """How often the engine had changed by then, this extraction included."""

    reclaimed: bool = False
    _coefficients: Coefficients | None = None

    def body(self, shape: PayloadShape) -> Body:
        """What to send, packed. Waits for the device, and copies the bytes to the host."""
        if is_accelerator(self.indices.device):
            return packed(self.indices, self.values, shape)
        return body_of(self.coefficients, shape)

    @property
    def coefficients(self) -> Coefficients:
        """What to send. The first call waits for the device and copies to the host."""
        if self._coefficients is None:
            indices, values = torch.stack((self.indices, self.values)).cpu().numpy()  # one copy
            sent = values != 0
            self._coefficients = Coefficients(
                counts=sent.sum(axis=1, dtype=np.uint16),
                indices=indices[sent].astype(np.uint16),
                values=values[sent],
            )
        return self._coefficients


class Engine:
    """The momentum of one model on one device, and the three ways to change it."""

    def __init__(self, layout: ChunkLayout, settings: DemoSettings, device: torch.device | str) -> None:
        self.layout = layout
        self.settings = settings
        self.momentum = torch.zeros(
            layout.chunks, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.float32, device=torch.device(device)
        )
        """float32 [chunks, 64, 64], in coefficient space; transposed, as `forward` makes it: [chunks, column, row]."""
        self._accumulations = torch.zeros(1, dtype=torch.int64, device="cpu")  # a tensor, as a part of the state
        self._changes = 0
        self._state = object()
        self._gather = gatherer(layout, self.momentum.device)
        self._fused = self._kernels()

    @property
    def accumulations(self) -> int:
        """How often gradients have entered this momentum."""
        return int(self._accumulations)

    def require_finite(self, gradients: Mapping[str, Tensor | None], most: float = GRADIENT_MAX) -> None:
        """`GradientError`, as `accumulate` raises it, for an entry that is NaN or beyond `most`."""
        self._require_finite(gradients, self.layout.views(gradients), most)

    def accumulate(self, gradients: Mapping[str, Tensor | None], active: Tensor | None = None) -> None:
        """M <- beta_n * M + DCT2(G).

        `gradients` has every parameter's name; None counts as zeros. With `active`, bool [chunks], the momentum
        of the other chunks stays as it is (`reclaim` counts this accumulation for them all the same).
        `GradientError`, before anything changed, if an entry is not a sane number.
        """
        views = self.layout.views(gradients)
        self._require_finite(gradients, views, GRADIENT_MAX)
        gathered = torch.empty_like(self.momentum[: self._strip_chunks], dtype=self._strip_dtype)
        decay, done = self.settings.decay(self.accumulations + 1), 0
        if self._fused:
            self._fused.accumulate(views, self.momentum, decay, active)
            done = self.layout.matrix_chunks
        with exact_products(self.momentum.device):
            for first, stop in strips(self.layout.chunks, len(gathered), start=done):
                momentum, strip = self.momentum[first:stop], gathered[: stop - first]
                self._gather(views, first, strip)
                target = momentum if active is None else None
                changed = torch.add(self._forward(strip), momentum, alpha=decay, out=target)
                if active is not None:
                    torch.where(active[first:stop, None, None], changed, momentum, out=momentum)
        self._accumulations += 1
        self._changes += 1

    def extract(self, active: Tensor | None = None, *, top_k: int | None = None) -> Extraction:
        """Take the k largest |M| of each chunk out of the momentum; only of `active`, bool [chunks], if given. `top_k`
        is the k of this once, where it is not the settings'."""
        chunks, top_k = self.layout.chunks, top_k or self.settings.top_k
        device = self.momentum.device
        indices = torch.empty(chunks, top_k, dtype=torch.int16, device=device)
        previous = torch.empty(chunks, top_k, dtype=torch.float32, device=device)
        if self._fused:
            self._fused.extract(self.momentum, self.settings.alpha, active, (indices, previous))
        else:
            for first, stop in strips(chunks, self._strip_chunks):
                momentum = self.momentum[first:stop].view(-1, CHUNK_ENTRIES)
                ordered = ascending(transposed(largest(momentum.abs(), top_k)).to(torch.int16))  # [n, k]
                places = transposed(ordered.long())
                kept = momentum.gather(1, places)
                candidates = kept if active is None else kept * active[first:stop, None]
                momentum.scatter_(1, places, kept - candidates * self.settings.alpha)
                indices[first:stop] = ordered
                previous[first:stop] = kept
        candidates = previous if active is None else previous * active[:, None]
        values = quantise(candidates, self.settings.value_bits).to(torch.int16)
        self._changes += 1
        return Extraction(indices, values, previous, self._state, self.accumulations, self._changes)

    def reclaim(self, extraction: Extraction) -> None:
        """Put back what an extraction took, as if it had never left.

        Bit for bit, if nothing has changed since; else decayed by the accumulations since.
        `LocalProtocolError` for a second time, and for what was taken from another momentum.
        """
        if extraction.reclaimed:
            raise LocalProtocolError("expected an extraction to be reclaimed once, got it a second time")
        if extraction.state is not self._state:
            raise LocalProtocolError("expected an extraction from this momentum, got one from another")
        momentum = self.momentum.view(-1, CHUNK_ENTRIES)
        places = transposed(extraction.indices.long())
        if extraction.changes == self._changes:
            momentum.scatter_(1, places, extraction.previous)
        else:
            since = range(extraction.accumulations + 1, self.accumulations + 1)
            decay = math.prod(self.settings.decay(accumulation) for accumulation in since)
            taken = extraction.previous * (extraction.values != 0) * self.settings.alpha
            momentum.scatter_add_(1, places, taken * decay)
        extraction.reclaimed = True
        self._changes += 1

    def withdraw(self, coefficients: Coefficients) -> None:
        """Take out what has been sent already: by the life of this node that went on where this momentum was saved.

        `extract` again, at the places that were sent in place of the largest; the old bits if this momentum had not
        changed by then. An entry of the other sign than was sent stays: it was the gradients since the save that were
        sent, and those are not in here."""
        chunks, top_k = self.layout.chunks, int(coefficients.counts.max(initial=1))
        indices, values = (np.zeros((chunks, top_k), np.int64) for _ in range(2))
        filled = np.arange(top_k) < coefficients.counts[:, None]  # [chunks, k]: chunk by chunk, as the entries come
        indices[filled], values[filled] = coefficients.indices, coefficients.values
        device = self.momentum.device
        momentum = self.momentum.view(-1, CHUNK_ENTRIES)
        places = transposed(torch.from_numpy(indices).to(device))
        kept = momentum.gather(1, places)
        same_sign = kept.sign() == torch.from_numpy(values).to(device).sign()  # never in an unused slot, but for zeros
        momentum.scatter_add_(1, places, kept * same_sign * -self.settings.alpha)  # an unused slot adds 0 to place 0
        self._changes += 1

    def age(self, extraction: Extraction) -> tuple[int, int]:
        """(accumulations, changes) since an extraction: with its tensors, what `revive` needs after a restart."""
        return self.accumulations - extraction.accumulations, self._changes - extraction.changes

    def revive(self, tensors: Mapping[str, Tensor], age: tuple[int, int]) -> Extraction:
        """An extraction that an earlier process made from the momentum that was loaded: its `indices`, `values`
        and `previous`, and its `age` when they were saved. `KeyError` if one is missing."""
        indices, values, previous = (tensors[name] for name in EXTRACTED)
        accumulations, changes = self.accumulations - age[0], self._changes - age[1]
        return Extraction(indices, values, previous, self._state, accumulations, changes)

    def guess(self, rule: Rule, sent: Extraction) -> Tensor:
        """int8 [chunks, 64, 64], in sixteenths: a guess at the update of the round that `sent` was taken for.

        It is the update of what was sent and, with less weight, of what stayed: that is still to come, and gradients
        taken without it would send it twice. Waits for nothing.
        """
        device, size = self.momentum.device, self._strip_chunks
        guess = torch.empty(self.momentum.shape, dtype=torch.int8, device=device)
        orthogonal, done = self.layout.matrix_chunks if rule == "orthogonal" else 0, 0
        if self._fused:
            self._fused.guess(self.momentum, (sent.indices, sent.values), guess, orthogonal=orthogonal > 0)
            done = self.layout.matrix_chunks
        with exact_products(device):
            for first, stop in strips(orthogonal, size, start=done):
                votes = self._votes(sent, first, stop).round_().clamp_(-ENTRY_MAX, ENTRY_MAX)
                guess[first:stop] = as_guess(inverse_orthogonal_(votes).mul_(ORTHOGONAL_GUESS))
            for first, stop in strips(self.layout.chunks, size, start=max(done, orthogonal)):
                guess[first:stop] = as_guess(self._inverse(self._votes(sent, first, stop)).sign_())
        return guess

    def _votes(self, sent: Extraction, first: int, stop: int) -> Tensor:
        """float32 [n, 64, 64]: what was sent of chunks `first` to `stop`, and what stayed in the momentum."""
        stayed = self.momentum[first:stop]
        size = stayed.square().mean((1, 2), keepdim=True).sqrt_().clamp_(min=SIZE_LEAST)
        votes = (stayed / size * STAYED_WEIGHT).nan_to_num_(0.0)  # where the momentum is no number, nothing stayed
        places = transposed(sent.indices[first:stop].long())
        votes.view(-1, CHUNK_ENTRIES).scatter_add_(1, places, sent.values[first:stop].sign().float() * SENT_WEIGHT)
        return votes

    def state_dict(self) -> dict[str, Tensor]:
        """What a node must keep over a restart: the momentum and the count of accumulations, themselves, not copies."""
        return {"momentum": self.momentum, "accumulations": self._accumulations}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a momentum of the same model; extractions from before are void."""
        own = self.state_dict()
        found, expected = ({name: tuple(tensor.shape) for name, tensor in each.items()} for each in (state, own))
        if found != expected:
            raise LocalProtocolError(f"expected momentum of {expected}, got {found}")
        if (count := int(state["accumulations"])) < 0:
            raise LocalProtocolError(f"expected momentum of 0 accumulations or more, got {count}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self._state = object()

    def _kernels(self) -> Fused | None:
        """Compiled kernels that do the same, if there are any. To have another transform, override these four."""
        return fused(self.layout, self.momentum.device)

    def _forward(self, chunks: Tensor) -> Tensor:
        """Chunks of gradients, of `_strip_dtype`, as the momentum keeps them."""
        return forward(chunks)

    @property
    def _strip_dtype(self) -> torch.dtype:
        """In which gradients are gathered."""
        return forward_dtype(self.momentum.device)

    def _inverse(self, coefficients: Tensor) -> Tensor:
        return inverse(coefficients)

    def _require_finite(self, gradients: Mapping[str, Tensor | None], views: Mapping[str, Tensor], most: float) -> None:
        """`require_finite`; on an accelerator one by one only if a look at whole strips finds something wrong."""
        device = self.momentum.device
        if is_accelerator(device):
            magnitude = flat_order(self.layout, device).magnitude(views, self._strip_chunks)
            if magnitude <= most:  # never so with a NaN
                return
        require_finite(gradients, most)

    @property
    def _strip_chunks(self) -> int:
        """Chunks to work on at once."""
        return min(self.layout.chunks, strip_chunks_for(self.momentum.device, self.layout.chunks))


def require_finite(gradients: Mapping[str, Tensor | None], most: float = GRADIENT_MAX) -> None:
    """`GradientError` naming the first gradient with an entry that is NaN or beyond `most`."""
    named = {name: tensor for name, tensor in gradients.items() if tensor is not None and tensor.numel()}
    extremes = [torch.stack(torch.aminmax(tensor.detach())).float() for tensor in named.values()]
    if not extremes:
        return
    for name, (low, high) in zip(named, torch.stack(extremes).tolist(), strict=True):
        if not -most <= low <= high <= most:
            nature = "NaN" if math.isnan(low) else f"from {low:g} to {high:g}"
            raise GradientError(f"expected gradients of magnitude up to {most:g}, got {name} with entries {nature}")


def quantise(kept: Tensor, value_bits: int) -> Tensor:
    """q of kept coefficients [n, k]: signs, or whole numbers up to 2^(bits-1) in proportion; 0 only for 0."""
    signs = kept.sign()
    if value_bits == 1:
        return signs
    magnitudes, most = kept.abs(), 1 << value_bits - 1
    scale = magnitudes.amax(1, keepdim=True) / most
    # The least normal float stands in for a scale of zero, and for one that is too near to it to keep its bits.
    steps = (magnitudes / scale.clamp(min=torch.finfo(kept.dtype).tiny)).round_().nan_to_num_(most)
    return steps.clamp_(1, most).mul_(signs)
