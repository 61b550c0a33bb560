"""What a node did not say yet of one model, and what it takes out of that to say it.

The orthonormal DCT is linear, so what gradients or steps add is kept as coefficients E, and never
transformed back. What enters E, what is said of it and what leaves with that is the algorithm's:
`local_steps.residual`, or `demo.momentum`. Nothing here needs equal bits on two nodes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from node.exact.backend import Backend, backend_for
from node.exact.chunks import ChunkLayout
from node.exact.dct import transposed
from node.exact.device_packing import coefficients_of
from protocol.codec.payload import Body, Coefficients, PayloadShape, body_of
from protocol.errors import LockstepError
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE

GRADIENT_MAX = 1e30
"""Largest |gradient|. A momentum of such gradients, 64 / (1 - beta) times as large, is still finite
in float32, and so is a residual of such movements."""


class GradientError(LockstepError):
    """A gradient is NaN, infinite or beyond GRADIENT_MAX; nothing was accumulated."""


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
    """[chunks, k], as the engine keeps it: what was there before."""

    backend: Backend
    """Packs it."""

    scales: Tensor | None = None
    """uint8 [chunks] on the host, or [chunks, 2] of two scales: the codes of the chunks' scales;
    None where only values are sent."""

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
    """The coefficients E of one model on one device."""

    def __init__(
        self,
        layout: ChunkLayout,
        device: torch.device | str,
        *,
        backend: Backend | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """backend: how chunks are worked on; by default the fastest way on the device."""
        self.layout = layout
        shape = layout.chunks, CHUNK_SIDE, CHUNK_SIDE
        self.entries = torch.zeros(shape, dtype=dtype, device=torch.device(device))
        """`dtype` [chunks, 64, 64], in coefficient space, transposed: [chunks, column, row]."""
        self.backend = backend or backend_for(layout, self.entries.device)
        self.accumulations = torch.zeros(1, dtype=torch.int64, device="cpu")
        """int64 [1]: how often something has entered E. A tensor, as an optimizer saves it."""

    def put_back(self, extraction: Extraction) -> None:
        """Put what the newest extraction took where it was, because its payload was not sent.
        Nothing may have changed E since.
        """
        entries = self.entries.view(-1, CHUNK_ENTRIES)
        entries.scatter_(1, transposed(extraction.indices.long()), extraction.previous)


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
