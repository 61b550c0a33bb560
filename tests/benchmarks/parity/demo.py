"""R authors of DeMo as published in one process, through a node's engine and payload codec.

All replicas are equal bit for bit, so there is one set of parameters and one network, which takes
every author's gradients in turn. Momentum is each author's own. A round:

    each author    gradients of its samples -> momentum -> k largest of each chunk -> payload
    all authors    the payloads -> coefficients -> one step of the parameters

Traffic counts each payload once up and R - 1 payloads down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from node.exact.contributions import Contribution
from node.exact.dct import dct_matrix, exact_products, inverse_signs_
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import Momentum
from node.exact.plain import Plain, Views
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.ids import PeerId, RunId
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE, VOTE_SUM_MAX
from tests.benchmarks.parity.cells import Transform
from tests.benchmarks.parity.task import Fixture

_RUN = RunId("0" * 32)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one step, the mean over authors."""

    up_bytes: float
    down_bytes: float


class WithoutTransform(Plain):
    """DeMo without its transform. The momentum is in parameter space, each chunk transposed, as the
    engine stores coefficients.
    """

    def accumulate(
        self,
        gradients: Views,
        momentum: Tensor,
        decay: float,
        active: Tensor | None = None,
        *,
        start: int = 0,
    ) -> None:
        chunks = torch.empty_like(momentum)
        self._layout.gather_strip(gradients, 0, chunks)
        torch.add(chunks.mT, momentum, alpha=decay, out=momentum)


class DemoAuthors:
    """The authors of one cell and the parameters that they share. `SettingsError` for a record."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture, cell = fixture, fixture.cell
        cell.require_trainable()
        backend = WithoutTransform(fixture.layout) if cell.transform == "off" else None
        self.engines = [
            Momentum(fixture.layout, cell.demo, "cpu", backend=backend) for _ in range(cell.authors)
        ]
        self._round = 0

    def step(self) -> Traffic:
        """One round."""
        cell, round_ = self._fixture.cell, self._round
        samples = self._fixture.samples(round_).reshape(
            cell.authors, -1, self._fixture.task.sequence_length + 1
        )
        shape = PayloadShape(self._fixture.layout.chunks, cell.top_k_at(round_), cell.value_bits)
        containers = []
        for author, (engine, mine) in enumerate(zip(self.engines, samples, strict=True)):
            engine.accumulate(self._fixture.gradients(mine))
            engine.settings = replace(engine.settings, top_k=shape.top_k)
            sent = engine.extract()
            header = Header(_RUN, round_, PeerId(f"{author:032x}"))
            containers.append(encode(header, sent.coefficients, shape))
        self._apply([decode(container, shape)[1] for container in containers])
        self._round += 1
        size = sum(map(len, containers))
        return Traffic(size / cell.authors, size * (cell.authors - 1) / cell.authors)

    def stand_at_committed(self) -> None:
        """The network always stands at the parameters to measure."""

    def _apply(self, sent: Sequence[Coefficients]) -> None:
        """Make the step of the round with the scalars of its commit."""
        fixture, transform = self._fixture, self._fixture.cell.transform
        layout, (rate, decay) = fixture.layout, fixture.rates(self._round)
        if transform == "exact":
            contributions = [Contribution(1, coefficients) for coefficients in sent]
            apply(layout, fixture.parameters, contributions, rate, decay)
            return
        update = update_signs(vote_sums(sent, layout.chunks), transform).float()
        for change, tensor in layout.pairs(layout.views(fixture.parameters), 0, update):
            tensor.mul_(decay).add_(change, alpha=-rate)


def vote_sums(sent: Sequence[Coefficients], chunks: int) -> Tensor:
    """float32 [chunks, 64, 64]: the vote sums S; every author has weight 1."""
    sums = torch.zeros(chunks * CHUNK_ENTRIES)
    for coefficients in sent:
        places = (
            np.repeat(np.arange(chunks) * CHUNK_ENTRIES, coefficients.counts) + coefficients.indices
        )
        sums.index_add_(0, torch.from_numpy(places), torch.from_numpy(coefficients.values).float())
    return sums.view(chunks, CHUNK_SIDE, CHUNK_SIDE)


def update_signs(sums: Tensor, transform: Transform) -> Tensor:
    """int8 [chunks, 64, 64]: the update U of vote sums S, float32 of the same shape."""
    if transform == "exact":
        with exact_products(sums.device):
            return inverse_signs_(sums.mT.contiguous(), VOTE_SUM_MAX).to(torch.int8)
    if transform == "float":
        matrix = dct_matrix(sums.device)
        sums = matrix.T @ sums @ matrix
    return sums.sign().to(torch.int8)
