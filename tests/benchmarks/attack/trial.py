"""One case from genesis to its last round.

Honest authors and attackers see the same parameters; the step is that of a node (`apply`). An
auditor computes the gradient of an author's own share again, as `node.demo.sign_audit` does, and
compares signs. With the defence "audited" it does so every eighth round for every author, and at
once for one whose payload shares places with another's, or with its own of the round before. Below
the threshold an audit has failed; an author that failed twice, or once under suspicion of copying,
has no vote from the next round on. That happens to an honest one too.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from node.demo.aggregate import apply
from node.demo.engine import GradientError
from node.demo.sign_audit import gradient_coefficients, shared_places, sign_agreement
from node.demo.vote_sum import Contribution
from protocol.codec.payload import Coefficients
from tests.benchmarks.attack.cases import (
    AUDIT_EVERY,
    AUTHORS,
    COPY_SHARE,
    FAILURES_MAX,
    SIGMAS,
    Case,
)
from tests.benchmarks.attack.payloads import Author, Gradients, Payload, cloned, with_magnitudes
from tests.benchmarks.attack.ring import Ring, Samples, shares_of
from tests.benchmarks.parity.task import Fixture

SIGMA_LEAST = 0.005
"""Least standard deviation that a threshold allows for, where few honest audits are known."""


@dataclass(slots=True)
class Result:
    """What a case came to."""

    case: Case
    nats_per_byte: float | None = None
    """On the validation split at the end; None where the numbers blew up."""
    failure: str = ""
    removed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Authors without a vote: the round after which they had none, from 1, and their audits."""
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


def thresholds(clean: Iterable[Result], seed: int) -> dict[int, float]:
    """The agreement below which an audit of a round fails, from clean runs of other seeds; from
    those of this seed where there are no others.
    """
    runs = [each for each in clean if each.audits]
    runs = [each for each in runs if each.case.seed != seed] or runs
    found: dict[int, list[float]] = {}
    for each in runs:
        for number, _, share in each.audits:
            found.setdefault(number, []).append(share)
    return {
        number: statistics.fmean(shares) - SIGMAS * max(SIGMA_LEAST, statistics.pstdev(shares))
        for number, shares in found.items()
    }


class Trial:
    """The authors of one case, the parameters that they share, and the auditor."""

    def __init__(self, fixture: Fixture, case: Case, limits: Mapping[int, float]) -> None:
        """`limits` are the `thresholds`; only the defence "audited" needs them."""
        self.fixture, self.case, self._limits = fixture, case, limits
        self.result = Result(case)
        self._honest = [Author(fixture) for _ in range(AUTHORS - case.hostile)]
        self._ring = Ring(fixture, case)
        self._before: dict[int, Payload] = {}
        """Payloads of the round before."""
        self._failed: Counter[int] = Counter()
        self._judged: Counter[int] = Counter()
        self._removes = case.defence == "audited"
        self._audits = self._removes or (case.attack == "none" and case.defence == "votes")

    def run(self) -> Result:
        """All rounds, and the measure at the end."""
        began_s, result, fixture = time.monotonic(), self.result, self.fixture
        try:
            for number in range(fixture.cell.steps):
                self.step(number)
            result.nats_per_byte = round(fixture.trainee.evaluate(fixture.validation), 5)
        except GradientError as error:
            result.failure = f"round {number}: {error}"
        result.seconds = round(time.monotonic() - began_s, 1)
        return result

    def step(self, number: int) -> None:
        """One round."""
        shares = shares_of(self.fixture, number)
        due = self._audits and (number + 1) % AUDIT_EVERY == 0
        kept: dict[int, Gradients] = {}
        payloads: dict[int, Payload] = {}
        for author, trainer in enumerate(self._honest):
            gradients = self.fixture.gradients(shares[author])
            if due:
                kept[author] = cloned(gradients)
            payloads[author] = trainer.payload(gradients)
        payloads |= self._hostile(number, shares, list(payloads.values()))
        counted = {a: payload for a, payload in payloads.items() if a not in self.result.removed}
        coefficients = self._coefficients(counted)
        if self._audits:
            self._audit(number, shares, counted, kept)
        self._before = payloads
        fixture, (rate, decay) = self.fixture, self.fixture.rates(number)
        contributions = [Contribution(1, each) for each in coefficients]
        rule = fixture.cell.update
        apply(fixture.layout, fixture.parameters, contributions, rate, decay, rule=rule)

    def _hostile(
        self, number: int, shares: Sequence[Samples], honest: Sequence[Payload]
    ) -> dict[int, Payload]:
        """The attackers' payloads while one of them has a vote."""
        attackers = range(len(self._honest), AUTHORS)
        if self.case.attack == "none" or self.result.removed.keys() >= set(attackers):
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
        number: int,
        shares: Sequence[Samples],
        counted: Mapping[int, Payload],
        kept: Mapping[int, Gradients],
    ) -> None:
        """Audit everybody whose turn it is, and who is suspected."""
        suspected = copies(counted, self._before) if self._removes else set[int]()
        due = (number + 1) % AUDIT_EVERY == 0
        for author, payload in counted.items():
            if not due and author not in suspected:
                continue
            gradients = kept.get(author) or self.fixture.gradients(shares[author])
            fixture = self.fixture
            own = gradient_coefficients(fixture.layout, gradients, fixture.cell.gradients)
            share = sign_agreement(payload.votes, own).share
            self.result.audits.append((number, author, round(share, 4)))
            self._judged[author] += 1
            if self._removes and share < self._limit(number):
                self._failed[author] += 1
                if self._failed[author] >= FAILURES_MAX or author in suspected:
                    self.result.removed[author] = number + 1, self._judged[author]

    def _limit(self, number: int) -> float:
        """The threshold of the nearest round that has one."""
        return self._limits[min(self._limits, key=lambda known: (abs(known - number), known))]


def copies(payloads: Mapping[int, Payload], before: Mapping[int, Payload]) -> set[int]:
    """Authors of payloads that share places with another one, or with their last one."""
    votes = {author: payload.votes for author, payload in payloads.items()}
    found = set[int]()
    for one, other in combinations(votes, 2):
        if shared_places(votes[one], votes[other]) >= COPY_SHARE:
            found |= {one, other}
    for author, sent in votes.items():
        last = before.get(author)
        if last is not None and shared_places(sent, last.votes) >= COPY_SHARE:
            found.add(author)
    return found
