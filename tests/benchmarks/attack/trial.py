"""One case from genesis to its last round.

Honest authors and attackers begin each round at the same parameters; the step is that of a node
(`apply`). With the defence "audited" the product's audit of authors stands beside it (`auditor`),
and an author against whom it finds evidence does not count from the round after the next one on.
That happens to an honest one too. In clean runs all authors are audited every eighth round, to
measure.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch

from lockstep.presets import run_of
from node.exact.engine import GradientError
from node.exact.local_steps.aggregate import apply
from node.exact.sign_audit import (
    Agreement,
    Signs,
    Weights,
    acting_weights,
    sign_agreement,
    signs_followed,
)
from protocol.codec.payload import Coefficients, PayloadShape
from protocol.codec.scales import CODE_MAX
from protocol.runfile import RunSpec
from protocol.sums import movements as counting
from protocol.sums.movements import Movement, code_max
from tests.benchmarks.attack.auditor import Auditor
from tests.benchmarks.attack.cases import (
    AUDIT_EVERY,
    AUTHORS,
    DELAY_ROUNDS,
    LEAVING_ROUNDS,
    Case,
)
from tests.benchmarks.attack.payloads import Shadow
from tests.benchmarks.attack.ring import Ring, Scene, shares_of
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit.local_steps import Author, Batches, recomputed

Sent = Mapping[int, Coefficients]
"""Payloads by author."""


@dataclass(slots=True)
class Result:
    """What a case came to."""

    case: Case
    nats_per_byte: float | None = None
    """On the validation split at the end; None where the numbers blew up."""
    failure: str = ""
    removed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Authors that lost their standing: the round after which they did not count, from 1, and the
    number of payloads that proved it."""
    audits: list[tuple[int, int, float]] = field(default_factory=list)
    """Round, author and share of signs that agree."""
    seconds: float = 0.0

    def shares(self, *, hostile: bool) -> list[float]:
        """Agreements of the audits of attackers, or of honest authors."""
        first = AUTHORS - self.case.hostile
        return [share for _, author, share in self.audits if (author >= first) is hostile]

    def removals(self, *, hostile: bool) -> list[tuple[int, int]]:
        """(Round, audits) of each attacker, or honest author, that lost its standing."""
        first = AUTHORS - self.case.hostile
        return [found for author, found in self.removed.items() if (author >= first) is hostile]


class Trial:
    """The authors of one case, the parameters that they share, and the auditor. `notes` is a
    directory for what that keeps; `shadow` takes the place of the case's own.
    """

    def __init__(
        self, fixture: Fixture, case: Case, notes: Path, shadow: Shadow | None = None
    ) -> None:
        self.fixture, self.case = fixture, case
        self.result = Result(case)
        self.committed = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        self._honest = [Author(fixture) for _ in range(AUTHORS - case.hostile)]
        self._ring = Ring(fixture, case, shadow)
        self._samples = fixture.cell.local_steps * fixture.task.batch_samples // AUTHORS
        self._measures = case.attack == "none"
        self._auditor: Auditor | None = None
        if case.defence == "audited":
            shape = PayloadShape(fixture.layout.chunks, fixture.cell.top_k, 1, scaled=True)
            self._auditor = Auditor(_spec_of(fixture), shape, case.seed, notes)

    def run(self) -> Result:
        """All rounds, and the measure at the end."""
        began_s, result, fixture = time.monotonic(), self.result, self.fixture
        try:
            for number in range(fixture.cell.steps // fixture.cell.local_steps):
                self.step(number)
            for name, tensor in fixture.parameters.items():
                tensor.copy_(self.committed[name])
            result.nats_per_byte = round(fixture.trainee.evaluate(fixture.validation), 5)
        except GradientError as error:
            result.failure = f"round {number}: {error}"
        if self._auditor:
            result.audits = self._auditor.audits
        result.seconds = round(time.monotonic() - began_s, 1)
        return result

    def close(self) -> None:
        """Give up the auditor."""
        if self._auditor:
            self._auditor.close()

    def step(self, number: int) -> None:
        """One round."""
        rate, decay = self.fixture.rates(number * self.fixture.cell.local_steps)
        shares = shares_of(self.fixture, number)
        sent = {
            author: trainer.train(self.committed, shares[author], rate)
            for author, trainer in enumerate(self._honest)
        }
        if self._measures and (number + 1) % AUDIT_EVERY == 0:
            weights = self._weights(sent, rate)
            for author, payload in sent.items():
                found = self._agreement(payload, shares[author], rate, weights[author])
                self.result.audits.append((number, author, round(found.share, 4)))
        sent |= self._hostile(number, shares, rate, list(sent.values()))
        counted = {
            author: payload for author, payload in sent.items() if self._counts(author, number)
        }
        if self._auditor:
            self._audit(self._auditor, number, shares, rate, counted)
        self._apply(counted, rate, decay)

    def _counts(self, author: int, number: int) -> bool:
        """Whether an author has its standing in a round."""
        return author not in self.result.removed or number < self.result.removed[author][0]

    def _code_max(self, rate: float) -> int:
        if self.case.defence == "unbounded":
            return CODE_MAX
        return code_max(rate, self.fixture.cell.local_steps, self.fixture.cell.top_k)

    def _hostile(
        self, number: int, shares: Sequence[Batches], rate: float, honest: Sequence[Coefficients]
    ) -> dict[int, Coefficients]:
        """The attackers' payloads while one of them counts."""
        attackers = range(len(self._honest), AUTHORS)
        gone = self.case.attack == "leaving" and number >= LEAVING_ROUNDS
        if self.case.attack == "none" or gone:
            return {}
        if not any(self._counts(author, number) for author in attackers):
            return {}
        own = [shares[each] for each in attackers]
        scene = Scene(number, self.committed, own, honest, rate, self._code_max(rate))
        return dict(zip(attackers, self._ring.payloads(scene), strict=True))

    def _apply(self, counted: Sent, rate: float, decay: float) -> None:
        movements = self._movements(counted, rate)
        believed = self.case.defence in ("unbounded", "reach")
        bound = (lambda codes, *_: codes) if believed else counting.beside_median
        with torch.no_grad(), mock.patch.object(counting, "beside_median", bound):
            apply(self.fixture.layout, self.committed, movements, decay)

    def _movements(self, counted: Sent, rate: float) -> list[Movement]:
        cap = self._code_max(rate)
        return [Movement(self._samples, cap, payload) for payload in counted.values()]

    def _weights(self, counted: Sent, rate: float) -> dict[int, Weights]:
        chunks = self.fixture.layout.chunks
        found = acting_weights(self._movements(counted, rate), chunks)
        return dict(zip(counted, found, strict=True))

    def _audit(
        self,
        auditor: Auditor,
        number: int,
        shares: Sequence[Batches],
        rate: float,
        counted: Sent,
    ) -> None:
        """Take the standing of those against whom there is evidence."""
        weights = self._weights(counted, rate)

        def audit(author: int) -> Agreement:
            return self._agreement(counted[author], shares[author], rate, weights[author])

        def follow(author: int, other: int) -> Signs:
            return signs_followed(
                counted[other], recomputed(self.fixture, self.committed, shares[author], rate)
            )

        found = auditor.look(number, counted, self._samples, rate, audit, follow)
        for author, evidence in found.items():
            last = number + 1 + DELAY_ROUNDS
            self.result.removed.setdefault(author, (last, len(evidence.audits)))

    def _agreement(
        self, payload: Coefficients, batches: Batches, rate: float, weights: Weights
    ) -> Agreement:
        """How far a payload agrees with what its author's samples move."""
        moved = recomputed(self.fixture, self.committed, batches, rate)
        return sign_agreement(payload, moved, weights)


def _spec_of(fixture: Fixture) -> RunSpec:
    """The run whose auditor this is: what it reads of it bounds scales as the step does."""
    cell, spec = fixture.cell, run_of("local_steps")
    samples = fixture.task.batch_samples // cell.authors
    told = {"top_k": cell.top_k, "local_samples": samples}
    return spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update=told)})


def trial_of(fixture: Fixture, case: Case, shadow: Shadow | None = None) -> Result:
    """One case from genesis to its last round; `shadow` takes the place of its own."""
    with TemporaryDirectory() as notes:
        trial = Trial(fixture, case, Path(notes), shadow)
        try:
            return trial.run()
        finally:
            trial.close()
