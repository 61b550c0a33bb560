"""Computes an author's work again, from the parameters before its round and its samples, and
compares the signs that it sent.

    committed parameters --copy--> own model --passes over the author's samples--> gradient
                                      '-- with local steps: passes and steps -----> movement
    payload of the log ----signs, as much as the step moves by each-----------------> agreement

The copy is this module's own, so that the replay goes on meanwhile. Gradients are taken, and local
steps begin, at the committed parameters; where rounds overlap an author begins elsewhere, and
nothing here is of use (`unaudited`). An author's optimizer has moments of earlier rounds,
which nobody else has: local steps are made again with an optimizer that begins.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from node.data.corpus import Corpus
from node.exact.chunks import ChunkLayout
from node.exact.engine import GradientError
from node.exact.local_steps.light_optimizer import LightOptimizer
from node.exact.rounding import Rounding
from node.exact.sign_audit import (
    NOTHING,
    Agreement,
    Signs,
    Weights,
    gradient_coefficients,
    sign_agreement,
    signs_followed,
)
from node.model.build import build_model
from node.model.local_steps import LocalSteps, MovedFrom
from node.model.passes import Passes, Tokens
from node.model.training import TrainingModel
from protocol.codec.payload import PayloadShape, decode
from protocol.errors import RemoteProtocolError
from protocol.runfile import AlgorithmSpec, RunSpec
from protocol.schedule import float32_value
from protocol.shuffle import Share

PASS_SAMPLES = 8
"""Samples of one pass: the replay waits for no more than that."""


def unaudited(spec: RunSpec) -> str:
    """Why nobody can compute again what the authors of a run computed; empty when one can."""
    if not spec.algorithm.facts.replicas_equal:
        return (
            f"work is not audited in runs of {spec.algorithm.name}, whose nodes have models of "
            "their own"
        )
    if not spec.data.manifest_sha256:
        return (
            "the run file names no manifest (data.manifest_sha256), so nodes may train on data of "
            "their own, which an auditor does not have"
        )
    if not spec.rounds.hides or spec.rounds.audits_overlap:
        return ""
    return "rounds overlap, which hides where gradients are taken (rounds.audit_every)"


class Recomputation:
    """The work of one author, pass by pass."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.failure: GradientError | None = None
        """Why what was computed is of no use."""

    def next(self) -> bool:
        """Make one pass; False when none is left."""
        return self._passes.next()

    def finish(self) -> None:
        """Leave the gradient or the movement where `Recomputer.agreement` finds it."""
        try:
            self._passes.finish()
        except GradientError as error:
            self.failure = error


class Recomputer:
    """A model for the audit of one run's work, whose data are in `corpus`."""

    def __init__(self, spec: RunSpec, corpus: Corpus) -> None:
        self._spec, self._corpus = spec, corpus
        self._steps_within_round = spec.algorithm.facts.steps_within_round
        model = build_model(spec.model.type, spec.model.config)
        self._trainee = TrainingModel(model, "cpu", PASS_SAMPLES)
        shapes = {name: tuple(p.shape) for name, p in self._trainee.parameters.items()}
        self._layout = ChunkLayout.from_shapes(shapes)
        self._work: Recomputation | None = None
        """The one that was begun last."""
        self._found: Tensor | None = None
        """Coefficients of what was computed last, once they are asked for."""
        self._start: dict[str, Tensor] = {}
        """Where local steps begin; empty where there are none."""
        self._rate = 0.0
        """Learning rate of the round."""

    @property
    def algorithm(self) -> AlgorithmSpec:
        """That of the run."""
        return self._spec.algorithm

    def stand_at(self, committed: Mapping[str, Tensor], learning_rate_bits: int) -> None:
        """Take over the parameters before a round, and the learning rate that its commit names."""
        self._rate = float32_value(learning_rate_bits)
        if self._steps_within_round:
            self._start = {name: tensor.clone() for name, tensor in committed.items()}
        else:
            self._set(committed)

    def begin(self, shares: Sequence[Share]) -> Recomputation:
        """The passes over these positions of the data order, none of them made yet."""
        self._found, self._work = None, self._passes(shares)
        return self._work

    def agreement(self, payload: bytes, weights: Weights | None) -> Agreement:
        """How far a payload agrees with what was computed last; `weights` are those of its author,
        if signs weigh unlike. A payload, a gradient or a movement that counts for nothing agrees in
        nothing.
        """
        try:
            return sign_agreement(decode(payload, self.shape)[1], self._coefficients(), weights)
        except (RemoteProtocolError, GradientError):
            return NOTHING

    def followed(self, payload: bytes) -> Signs | None:
        """Where a payload has the signs of what was computed last
        (`node.exact.sign_audit.signs_followed`); None where one of them counts for nothing.
        """
        try:
            return signs_followed(decode(payload, self.shape)[1], self._coefficients())
        except (RemoteProtocolError, GradientError):
            return None

    def _coefficients(self) -> Tensor:
        if self._work and self._work.failure:
            raise self._work.failure
        if self._found is None:
            parameters = self._trainee.parameters
            found: Mapping[str, Tensor | None]
            if self._steps_within_round:
                found = MovedFrom(self._start, parameters)
            else:
                found = {name: p.grad for name, p in parameters.items()}
            self._found = gradient_coefficients(self._layout, found)
        return self._found

    def _passes(self, shares: Sequence[Share]) -> Recomputation:
        batches = self._batches(shares, self.algorithm.batch_samples(PASS_SAMPLES))
        if not self._steps_within_round:
            return Recomputation(self._trainee.passes(batches))
        self._set(self._start)
        parts = self._trainee.model, self._trainee.parameters, Rounding("cpu")
        optimizer = LightOptimizer(*parts)  # as a node's own
        return Recomputation(LocalSteps(self._trainee, batches, optimizer, self._rate))

    def _set(self, to: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._trainee.parameters.items():
                parameter.data.copy_(to[name])

    @property
    def shape(self) -> PayloadShape:
        """The shape of every payload."""
        return PayloadShape.of(self.algorithm, self._layout.chunks)

    def _batches(self, shares: Sequence[Share], samples: int) -> Iterator[Tokens]:
        length, seed = self._spec.data.sequence_length, self._spec.seed
        for share in shares:
            for first in range(share.first, share.end, samples):
                count = min(samples, share.end - first)
                yield self._corpus.batch(first, count, length, seed)
