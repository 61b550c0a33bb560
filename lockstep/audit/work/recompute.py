"""Computes an author's gradient again, from the parameters before its round and its samples, and
compares the signs that it sent.

    committed parameters --copy--> own model --passes over the author's samples--> gradient
    payload of the log ----signs----------------------------------------------------> agreement

The copy is this module's own, so that the replay goes on meanwhile. Gradients are taken at the
committed parameters; where rounds overlap, or nodes make steps of their own, an author takes them
elsewhere, and nothing here is of use (`unaudited`).
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from node.data.corpus import Corpus
from node.demo.chunks import ChunkLayout
from node.demo.engine import GradientError
from node.demo.sign_audit import (
    Agreement,
    Signs,
    gradient_coefficients,
    sign_agreement,
    signs_followed,
)
from node.model.build import build_model
from node.model.training import GradientAccumulation, Tokens, TrainingModel
from protocol.codec.payload import PayloadShape, decode
from protocol.errors import RemoteProtocolError
from protocol.runfile import RunSpec
from protocol.shuffle import Share

PASS_SAMPLES = 8
"""Samples of one pass: the replay waits for no more than that."""


def unaudited(spec: RunSpec) -> str:
    """Why nobody can compute again what the authors of a run computed; empty when one can."""
    if spec.algorithm.name != "demo":
        return f"work is audited in runs of demo alone, this one is of {spec.algorithm.name}"
    if not spec.data.manifest_sha256:
        return (
            "the run file names no manifest (data.manifest_sha256), so nodes may train on data of "
            "their own, which an auditor does not have"
        )
    if not spec.rounds.hides or spec.rounds.audits_overlap:
        return ""
    return "rounds overlap, which hides where gradients are taken (rounds.audit_every)"


class Recomputation:
    """The gradient of one author, pass by pass."""

    def __init__(self, passes: GradientAccumulation) -> None:
        self._passes = passes

    def next(self) -> bool:
        """Make one pass; False when none is left."""
        return self._passes.next()

    def finish(self) -> None:
        """Leave the gradient where `Recomputer.agreement` finds it."""
        self._passes.finish()


class Recomputer:
    """A model for the audit of one run's work, whose data are in `corpus`."""

    def __init__(self, spec: RunSpec, corpus: Corpus) -> None:
        self._spec, self._corpus = spec, corpus
        model = build_model(spec.model.type, spec.model.config)
        self._trainee = TrainingModel(model, "cpu", PASS_SAMPLES)
        shapes = {name: tuple(p.shape) for name, p in self._trainee.parameters.items()}
        self._layout = ChunkLayout.from_shapes(shapes)
        self._gradient: Tensor | None = None
        """Coefficients of the gradient that was computed last, once they are asked for."""

    def stand_at(self, committed: Mapping[str, Tensor]) -> None:
        """Take over the parameters before a round."""
        with torch.no_grad():
            for name, parameter in self._trainee.parameters.items():
                parameter.data.copy_(committed[name])

    def begin(self, shares: Sequence[Share]) -> Recomputation:
        """The passes over these positions of the data order, none of them made yet."""
        self._gradient = None
        return Recomputation(self._trainee.passes(self._batches(shares)))

    def agreement(self, payload: bytes) -> Agreement:
        """How far a payload agrees with the gradient that was computed last. A payload
        or gradient that counts for nothing agrees in nothing.
        """
        try:
            return sign_agreement(decode(payload, self.shape)[1], self._coefficients())
        except (RemoteProtocolError, GradientError):
            return Agreement(0, 0)

    def followed(self, payload: bytes) -> Signs | None:
        """Where a payload has the signs of the gradient that was computed last
        (`node.demo.sign_audit.signs_followed`); None where one of them counts for nothing.
        """
        try:
            return signs_followed(decode(payload, self.shape)[1], self._coefficients())
        except (RemoteProtocolError, GradientError):
            return None

    def _coefficients(self) -> Tensor:
        if self._gradient is None:
            gradients = {name: p.grad for name, p in self._trainee.parameters.items()}
            self._gradient = gradient_coefficients(self._layout, gradients)
        return self._gradient

    @property
    def shape(self) -> PayloadShape:
        """The shape of every payload."""
        algorithm = self._spec.algorithm
        return PayloadShape(
            self._layout.chunks, algorithm.top_k, algorithm.value_bits, algorithm.moves
        )

    def _batches(self, shares: Sequence[Share]) -> Iterator[Tokens]:
        length, seed = self._spec.data.sequence_length, self._spec.seed
        for share in shares:
            for first in range(share.first, share.end, PASS_SAMPLES):
                count = min(PASS_SAMPLES, share.end - first)
                yield self._corpus.batch(first, count, length, seed)
