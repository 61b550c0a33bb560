"""One case from genesis to its last round.

Honest authors and attackers see the same parameters; the step is that of a node (`apply`). With
the defence "audited" the product's audit of authors stands beside it (`auditor`), and an author
against whom it finds evidence has no vote from the round after the next one on. That happens to an
honest one too. In clean runs all authors are audited every eighth round, to measure.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from node.demo.aggregate import apply
from node.demo.engine import GradientError
from node.demo.sign_audit import (
    Agreement,
    Signs,
    gradient_coefficients,
    sign_agreement,
    signs_followed,
)
from node.demo.vote_sum import Contribution
from protocol.codec.payload import Coefficients, PayloadShape
from tests.benchmarks.attack.auditor import Auditor
from tests.benchmarks.attack.cases import (
    AUDIT_EVERY,
    AUTHORS,
    DELAY_ROUNDS,
    LEAVING_ROUNDS,
    Case,
)
from tests.benchmarks.attack.payloads import Author, Gradients, Payload, with_magnitudes
from tests.benchmarks.attack.ring import Ring, Samples, shares_of
from tests.benchmarks.parity.task import Fixture
from tests.support.tiny import tiny_spec


@dataclass(slots=True)
class Result:
    """What a case came to."""

    case: Case
    nats_per_byte: float | None = None
    """On the validation split at the end; None where the numbers blew up."""
    failure: str = ""
    removed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Authors without a vote: the round after which they had none, from 1, and the number of
    payloads that proved it."""
    audits: list[tuple[int, int, float]] = field(default_factory=list)
    """Round, author and share of signs that agree."""
    seconds: float = 0.0

    def shares(self, *, hostile: bool) -> list[float]:
        """Agreements of the audits of attackers, or of honest authors."""
        first = AUTHORS - self.case.hostile
        return [share for _, author, share in self.audits if (author >= first) is hostile]

    def removals(self, *, hostile: bool) -> list[tuple[int, int]]:
        """(Round, audits) of each attacker, or honest author, that lost its vote."""
        first = AUTHORS - self.case.hostile
        return [found for author, found in self.removed.items() if (author >= first) is hostile]


class Trial:
    """The authors of one case, the parameters that they share, and the auditor. `notes` is a
    directory for what that keeps.
    """

    def __init__(self, fixture: Fixture, case: Case, notes: Path) -> None:
        self.fixture, self.case = fixture, case
        self.result = Result(case)
        self._honest = [Author(fixture) for _ in range(AUTHORS - case.hostile)]
        self._ring = Ring(fixture, case)
        self._measures = case.attack == "none" and case.defence == "votes"
        self._auditor: Auditor | None = None
        if case.defence == "audited":
            shape = PayloadShape(fixture.layout.chunks, fixture.cell.top_k, 1)
            self._auditor = Auditor(tiny_spec(), shape, case.seed, notes)

    def run(self) -> Result:
        """All rounds, and the measure at the end."""
        began_s, result, fixture = time.monotonic(), self.result, self.fixture
        try:
            for number in range(fixture.cell.steps):
                self.step(number)
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
        shares = shares_of(self.fixture, number)
        measured = self._measures and (number + 1) % AUDIT_EVERY == 0
        payloads: dict[int, Payload] = {}
        for author, trainer in enumerate(self._honest):
            gradients = self.fixture.gradients(shares[author])
            payloads[author] = trainer.payload(gradients)
            if measured:
                found = self._agreement(payloads[author], gradients)
                self.result.audits.append((number, author, round(found.share, 4)))
        payloads |= self._hostile(number, shares, list(payloads.values()))
        counted = {author: sent for author, sent in payloads.items() if self._votes(author, number)}
        coefficients = self._coefficients(counted)
        if self._auditor:
            self._audit(self._auditor, number, shares, counted)
        fixture, (rate, decay) = self.fixture, self.fixture.rates(number)
        contributions = [Contribution(1, each) for each in coefficients]
        apply(fixture.layout, fixture.parameters, contributions, rate, decay)

    def _votes(self, author: int, number: int) -> bool:
        """Whether an author's payload of a round counts."""
        removed = self.result.removed.get(author)
        return removed is None or number < removed[0]

    def _hostile(
        self, number: int, shares: Sequence[Samples], honest: Sequence[Payload]
    ) -> dict[int, Payload]:
        """The attackers' payloads while one of them has a vote."""
        attackers = range(len(self._honest), AUTHORS)
        gone = self.case.attack == "leaving" and number >= LEAVING_ROUNDS
        if self.case.attack == "none" or gone:
            return {}
        if not any(self._votes(author, number) for author in attackers):
            return {}
        sent = self._ring.payloads(number, [shares[each] for each in attackers], honest)
        return dict(zip(attackers, sent, strict=True))

    def _coefficients(self, counted: Mapping[int, Payload]) -> list[Coefficients]:
        if self.case.defence != "magnitudes":
            return [payload.votes for payload in counted.values()]
        honest = [counted[author] for author in range(len(self._honest))]
        return with_magnitudes(honest, list(counted.values())[len(honest) :])

    def _audit(
        self,
        auditor: Auditor,
        number: int,
        shares: Sequence[Samples],
        counted: Mapping[int, Payload],
    ) -> None:
        """Take the votes of those against whom there is evidence."""

        def audit(author: int) -> Agreement:
            return self._agreement(counted[author], self.fixture.gradients(shares[author]))

        def follow(author: int, other: int) -> Signs:
            own = self._coefficients_of(self.fixture.gradients(shares[author]))
            return signs_followed(counted[other].votes, own)

        votes = {author: payload.votes for author, payload in counted.items()}
        for author, evidence in auditor.look(number, votes, audit, follow).items():
            last = number + 1 + DELAY_ROUNDS
            self.result.removed.setdefault(author, (last, len(evidence.audits)))

    def _agreement(self, payload: Payload, gradients: Gradients) -> Agreement:
        """How far a payload agrees with the gradient of its author's share."""
        return sign_agreement(payload.votes, self._coefficients_of(gradients))

    def _coefficients_of(self, gradients: Gradients) -> Tensor:
        return gradient_coefficients(self.fixture.layout, gradients)


def trial_of(fixture: Fixture, case: Case) -> Result:
    """One case from genesis to its last round."""
    with TemporaryDirectory() as notes:
        trial = Trial(fixture, case, Path(notes))
        try:
            return trial.run()
        finally:
            trial.close()
