"""R authors of DeMo in one process, through the engine and the payload codec of a node.

All replicas are equal bit for bit, so there is one set of committed parameters and one network,
which takes every author's gradients in turn. Momentum is each author's own. A round:

    each author    gradients of its samples -> momentum -> k largest of each chunk -> payload
    all authors    the payloads -> coefficients -> one step of the committed parameters

With overlap 1 a round is applied only after the passes over the late part of the next round's
samples, which is all of them unless the cell says less. Those passes are made at the committed
parameters or, with a guess, at parameters moved by the update that the author expects. Traffic
counts each payload once up and R - 1 payloads down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from node.demo.aggregate import apply, look_ahead
from node.demo.dct import dct_matrix, exact_products, inverse_signs_
from node.demo.engine import Engine, Extraction
from node.demo.gradient_scaling import GradientScaling, Scale
from node.demo.orthogonalise import inverse_orthogonal_
from node.demo.plain import Plain, Sent, Views, as_guess, guess_votes
from node.demo.vote_sum import Contribution, Rule
from node.model.training import GradientAccumulation
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.errors import SettingsError
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
    """DeMo without its transform, with the sign. The momentum is in parameter space, each chunk
    transposed, as the engine stores coefficients.
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

    def guess(self, momentum: Tensor, sent: Sent, rule: Rule) -> Tensor:
        return as_guess(guess_votes(momentum, *sent).mT.sign())


class DemoAuthors:
    """The authors of one cell and the parameters that they share."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture, cell = fixture, fixture.cell
        cell.require_trainable()
        backend = WithoutTransform(fixture.layout) if cell.transform == "off" else None
        self.engines = [
            Engine(fixture.layout, cell.demo, "cpu", backend=backend) for _ in range(cell.authors)
        ]
        self._scalings = [
            GradientScaling(cast("Scale", cell.gradients), fixture.layout.shapes, "cpu")
            for _ in self.engines
        ]
        self.committed = fixture.parameters
        if cell.overlap:
            self.committed = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        self._late = int(late := cell.late * fixture.task.batch_samples / cell.authors)
        if self._late != late:
            raise SettingsError(f"expected a late part of whole samples of an author, got {late}")
        self._next_round = 0
        self._undecided: list[bytes] = []
        """Payloads of the previous round while it is not applied."""
        self._sent: list[Extraction] = []
        """Extractions of all authors in the newest round."""
        self._last_update = torch.zeros(
            fixture.layout.chunks, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.int8
        )

    def step(self) -> Traffic:
        """Commit a round. With overlap the next round's late part is trained before, at a guess."""
        cell = self._fixture.cell
        if not self._undecided:
            self._undecided = self._finish(self._begin())
        decided, containers = self._next_round - 1, self._undecided
        overlaps = cell.rounds.overlap_at(self._next_round) and self._next_round < cell.steps
        begun = self._begin() if overlaps else []
        self._apply(decided, containers)
        self._undecided = self._finish(begun) if begun else []
        size = sum(map(len, containers))
        return Traffic(size / cell.authors, size * (cell.authors - 1) / cell.authors)

    def stand_at_committed(self) -> None:
        """Set the network to the committed parameters, to measure them."""
        for name, tensor in self._fixture.parameters.items():
            tensor.copy_(self.committed[name])

    def _begin(self) -> list[tuple[GradientAccumulation, list[Tensor]]]:
        """All authors' passes of the next round after the first one, and the gradients it left."""
        fixture = self._fixture
        samples = fixture.samples(self._next_round).reshape(
            len(self.engines), -1, fixture.task.sequence_length + 1
        )
        begun = []
        for author, mine in enumerate(samples):
            if fixture.cell.overlap:
                self._stand_for(author)
            parts = [part for part in (mine[: self._late], mine[self._late :]) if len(part)]
            passes = fixture.trainee.passes(parts)
            passes.next()
            begun.append((passes, [gradient.clone() for gradient in self._gradients()]))
        return begun

    def _finish(self, begun: Sequence[tuple[GradientAccumulation, list[Tensor]]]) -> list[bytes]:
        """All authors' payloads of the round begun, after the remaining passes at the committed
        parameters.
        """
        fixture, round_ = self._fixture, self._next_round
        if fixture.cell.overlap:
            self.stand_at_committed()
        containers: list[bytes] = []
        self._sent = []
        for author, (engine, (passes, summed)) in enumerate(zip(self.engines, begun, strict=True)):
            for gradient, sum_ in zip(self._gradients(), summed, strict=True):
                gradient.copy_(sum_)
            passes.next()
            passes.finish()
            gradients = fixture.finite_gradients()
            self._scalings[author].scale_(gradients)
            engine.accumulate(gradients)
            self._sent.append(engine.extract(top_k=fixture.cell.top_k_at(round_)))
            header = Header(_RUN, round_, PeerId(f"{author:032x}"))
            containers.append(encode(header, self._sent[-1].coefficients, self._shape(round_)))
        self._next_round += 1
        return containers

    def _shape(self, round_: int) -> PayloadShape:
        cell = self._fixture.cell
        return PayloadShape(self._fixture.layout.chunks, cell.top_k_at(round_), cell.value_bits)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._fixture.trainee.parameters.values() if p.grad is not None]

    def _stand_for(self, author: int) -> None:
        """Set the network to the parameters at which this author takes its early gradients."""
        fixture, kind = self._fixture, self._fixture.cell.guess
        if kind == "none" or not self._undecided:
            self.stand_at_committed()
            return
        match kind:
            case "own":
                guess = self.engines[author].guess(fixture.cell.update, self._sent[author])
            case "payload":
                guess = self._guess([self._sent[author].coefficients])
            case "last":
                guess = self._last_update
        rates = fixture.rates(self._next_round - 1)
        look_ahead(fixture.layout, self.committed, guess, fixture.parameters, rates=rates)

    def _apply(self, step: int, containers: Sequence[bytes]) -> None:
        """Make the step of a round from its payloads, with the scalars of its commit."""
        sent = [decode(container, self._shape(step))[1] for container in containers]
        layout, (rate, decay) = self._fixture.layout, self._fixture.rates(step)
        if self._fixture.cell.guess == "last":
            self._last_update = self._guess(sent)
        if self._fixture.cell.transform == "exact":
            contributions = [Contribution(1, coefficients) for coefficients in sent]
            apply(
                layout, self.committed, contributions, rate, decay, rule=self._fixture.cell.update
            )
        else:
            look_ahead(
                layout, self.committed, self._guess(sent), self.committed, rates=(rate, decay)
            )

    def _guess(self, sent: Sequence[Coefficients]) -> Tensor:
        """int8 [chunks, 64, 64], in sixteenths: the update that a commit of these coefficients
        would make.
        """
        cell, layout = self._fixture.cell, self._fixture.layout
        sums = vote_sums(sent, layout.chunks)
        update = update_signs(sums, cell.transform).float()
        if cell.update == "orthogonal":
            with exact_products(sums.device):
                update[: layout.matrix_chunks] = inverse_orthogonal_(
                    sums[: layout.matrix_chunks].mT.contiguous()
                )
        return as_guess(update)


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
