"""R authors of DeMo in one process, through the engine and the container that a node uses.

All replicas are equal bit for bit, so there is one set of committed parameters and one network, which takes every
author's gradients in turn; momentum is each author's own. A round:

    each author    gradients of its samples -> momentum -> k largest of each chunk -> container
    everybody      the containers -> coefficients -> one step of the committed parameters

With overlap 1 a round is applied only when passes over the late part of the next one's samples are made (over all of
them, if the cell does not say less). Those are made at the committed parameters or, with a guess, at those moved by
what the author expects of the undecided round.
Payloads travel once to every other author: R - 1 of them come down for each that goes up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.demo.aggregate import apply, look_ahead
from node.demo.dct import dct_matrix, exact_products, inverse_signs_
from node.demo.engine import Engine, Extraction
from node.demo.gradient_scaling import GradientScaling
from node.demo.orthogonalise import inverse_orthogonal_
from node.demo.plain import Plain, Sent, Views, as_guess, guess_votes
from node.demo.vote_sum import Contribution, Rule
from node.earlier_votes import CountedPayload, EarlierVotes
from node.model import Passes
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId
from protocol.limits import CHUNK_ENTRIES, CHUNK_SIDE, VOTE_SUM_MAX
from protocol.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.runfile import RetentionSpec
from tests.benchmarks.parity_cells import Transform
from tests.benchmarks.parity_ground import Ground

_RUN = RunId("0" * 32)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one step cost an author, on the mean over authors."""

    up_bytes: float
    down_bytes: float


class WithoutTransform(Plain):
    """DeMo without its transform, with the sign: the momentum is kept in parameter space, each chunk
    transposed, as the engine keeps its coefficients."""

    def accumulate(
        self, gradients: Views, momentum: Tensor, decay: float, active: Tensor | None = None, *, start: int = 0
    ) -> None:
        chunks = torch.empty_like(momentum)
        self._layout.gather_strip(gradients, 0, chunks)
        torch.add(chunks.mT, momentum, alpha=decay, out=momentum)

    def guess(self, momentum: Tensor, sent: Sent, rule: Rule) -> Tensor:
        return as_guess(guess_votes(momentum, *sent).mT.sign())


class DemoAuthors:
    """The authors of one cell and the parameters that they share."""

    def __init__(self, ground: Ground) -> None:
        self._ground, cell = ground, ground.cell
        backend = WithoutTransform(ground.layout) if cell.transform == "off" else None
        self.engines = [Engine(ground.layout, cell.demo, "cpu", backend=backend) for _ in range(cell.authors)]
        self._scalings = [GradientScaling(cell.gradients, ground.layout.shapes, "cpu") for _ in self.engines]
        self.committed = ground.parameters
        if cell.overlap:
            self.committed = {name: tensor.clone() for name, tensor in ground.parameters.items()}
        self._late = int(late := cell.late * ground.task.batch_samples / cell.authors)
        if self._late != late:
            raise SettingsError(f"expected a late part of whole samples of an author, got {late}")
        self._next_round = 0
        self._undecided: list[bytes] = []
        """Containers of the round before the next, when it is not applied."""
        self._sent: list[Extraction] = []
        """Of each author in the newest round."""
        self._earlier = EarlierVotes(cell.algorithm, RetentionSpec())
        self._last_update = torch.zeros(ground.layout.chunks, CHUNK_SIDE, CHUNK_SIDE, dtype=torch.int8)

    def step(self) -> Traffic:
        """Commit a round: with overlap, one of which the next round's late part knows only a guess."""
        cell = self._ground.cell
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
        """Put the network where the log says, to be judged there."""
        for name, tensor in self._ground.parameters.items():
            tensor.copy_(self.committed[name])

    def _begin(self) -> list[tuple[Passes, list[Tensor]]]:
        """Everybody's passes of the next round, the first of them made, and what they have left in the gradients."""
        ground = self._ground
        samples = ground.samples(self._next_round).reshape(len(self.engines), -1, ground.task.sequence_length + 1)
        begun = []
        for author, mine in enumerate(samples):
            if ground.cell.overlap:
                self._stand_for(author)
            parts = [part for part in (mine[: self._late], mine[self._late :]) if len(part)]
            passes = ground.trainee.passes(parts)
            passes.next()
            begun.append((passes, [gradient.clone() for gradient in self._gradients()]))
        return begun

    def _finish(self, begun: Sequence[tuple[Passes, list[Tensor]]]) -> list[bytes]:
        """Everybody's container of the round begun, after the rest of the passes: at the committed parameters."""
        ground, round_ = self._ground, self._next_round
        if ground.cell.overlap:
            self.stand_at_committed()
        containers: list[bytes] = []
        self._sent = []
        for author, (engine, (passes, summed)) in enumerate(zip(self.engines, begun, strict=True)):
            for gradient, sum_ in zip(self._gradients(), summed, strict=True):
                gradient.copy_(sum_)
            passes.next()
            passes.finish()
            gradients = ground.finite_gradients()
            self._scalings[author].scale_(gradients)
            engine.accumulate(gradients)
            self._sent.append(engine.extract(top_k=ground.cell.algorithm.top_k_at(round_)))
            header = Header(_RUN, round_, PeerId(f"{author:032x}"))
            containers.append(encode(header, self._sent[-1].coefficients, self._shape(round_)))
        self._next_round += 1
        return containers

    def _shape(self, round_: int) -> PayloadShape:
        cell = self._ground.cell
        return PayloadShape(self._ground.layout.chunks, cell.algorithm.top_k_at(round_), cell.value_bits)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._ground.trainee.parameters.values() if p.grad is not None]

    def _stand_for(self, author: int) -> None:
        """Where this author takes the gradients of the next round."""
        ground, kind = self._ground, self._ground.cell.guess
        if kind == "none" or not self._undecided:
            self.stand_at_committed()
            return
        match kind:
            case "own":
                guess = self.engines[author].guess(ground.cell.update, self._sent[author])
            case "payload":
                guess = self._guess([self._sent[author].coefficients])
            case "last":
                guess = self._last_update
        rates = ground.rates(self._next_round - 1)
        look_ahead(ground.layout, self.committed, guess, ground.parameters, rates=rates)

    def _apply(self, step: int, containers: Sequence[bytes]) -> None:
        """Make the step of a round from its containers, with the scalars of its commit."""
        sent = [decode(container, self._shape(step))[1] for container in containers]
        layout, (rate, decay) = self._ground.layout, self._ground.rates(step)
        if self._ground.cell.guess == "last":
            self._last_update = self._guess(sent)
        if self._ground.cell.transform == "exact":
            counted = [
                CountedPayload(step, container, Contribution(1, coefficients))
                for container, coefficients in zip(containers, sent, strict=True)
            ]
            contributions = self._earlier.joined(step, step, counted)
            apply(layout, self.committed, contributions, rate, decay, rule=self._ground.cell.update)
        else:
            look_ahead(layout, self.committed, self._guess(sent), self.committed, rates=(rate, decay))

    def _guess(self, sent: Sequence[Coefficients]) -> Tensor:
        """int8 [chunks, 64, 64]: the update that a commit of these would make, in sixteenths."""
        cell, layout = self._ground.cell, self._ground.layout
        sums = vote_sums(sent, layout.chunks)
        update = update_signs(sums, cell.transform).float()
        if cell.update == "orthogonal":
            with exact_products(sums.device):
                update[: layout.matrix_chunks] = inverse_orthogonal_(sums[: layout.matrix_chunks].mT.contiguous())
        return as_guess(update)


def vote_sums(sent: Sequence[Coefficients], chunks: int) -> Tensor:
    """float32 [chunks, 64, 64]: S, every author's weight being 1."""
    sums = torch.zeros(chunks * CHUNK_ENTRIES)
    for coefficients in sent:
        places = np.repeat(np.arange(chunks) * CHUNK_ENTRIES, coefficients.counts) + coefficients.indices
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
