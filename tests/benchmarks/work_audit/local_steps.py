"""Payloads of local steps beside the movement that an auditor computes again.

R authors make H local steps in a round, each on a batch of its own, and send what these moved. The
auditor stands at the committed parameters, takes the samples that an author claims, and makes the
same steps with an optimizer that begins: it has neither the author's momentum nor what is left in
the author's residual. Its movement is transformed as the residual transforms one, and the signs at
the sent places are compared. Doubles of the first author see the same parameters:

    young      does all its work, and begins again without residual and optimizer state
    half       trains the first half of its samples, claims all
    thin       makes all its steps, each of half of its samples, claims all
    other      trains other samples than its own
    noise      sends random places and signs
    stale      sends its payload of the round before
    copied     sends the payload of another author
    slow       trains the first half of its samples, and says so: it is honest
    uneven     trains another part of its samples in each round, and says so: it is honest

Expected, written before the first run. Honest payloads agree with the movement in 0.60 to 0.85 of
the signs: fewer than DeMo's 0.8 to 0.98, as a residual holds what some twenty rounds left unsaid,
and Muon's first steps differ from its later ones. Other samples 0.53 to 0.65, copies and noise 0.50
to 0.60, young ones more than honest ones. Half the work has 0.7 to 0.9 of what honest work has
above chance; beside the movement of the second half of the steps alone it has 0.4 to 0.7, and is
told sooner; work that is thin has 0.75 to 0.9 of it beside either. (Found: docs/explain/work-audit.md.
The second half told little sooner and is not compared any more.)
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep.audit.copies.twins import crossing
from node.demo.engine import GRADIENT_MAX
from node.demo.local_steps.aggregate import Movement, apply, code_max
from node.demo.local_steps.optimizer import LocalOptimizer
from node.demo.local_steps.residual import Residual
from node.demo.sign_audit import (
    gradient_coefficients,
    shared_places,
    sign_agreement,
    signs_followed,
)
from protocol.codec.payload import Coefficients
from tests.benchmarks.parity.local_steps import movement
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit.noise import noise

DOUBLES = ("young", "half", "thin", "other", "uneven")
KINDS = ("honest", *DOUBLES, "noise", "stale", "copied", "slow")

YOUNG_ROUNDS = 40
"""Life of an author that begins again and again."""

UNEVEN_LEAST = 0.3
"""Least part of its samples that an uneven author trains; it draws one in each round."""

RECENT_ROUNDS = 8
"""Rounds over which an uneven author's samples are held against its mean."""

Batches = list[npt.NDArray[np.int64]]
"""One of each local step: int64 [samples, sequence_length + 1]."""

Parameters = Mapping[str, Tensor]


class Author:
    """One residual, one optimizer and the last two payloads."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self._optimizer = LocalOptimizer(fixture.trainee.model, fixture.trainee.parameters)
        self._residual = Residual(fixture.layout, fixture.cell.top_k, "cpu")
        self.sent: Coefficients | None = None
        self.before: Coefficients | None = None

    def train(self, committed: Parameters, batches: Batches, rate: float) -> Coefficients:
        """One round, with as large scales as a whole one allows."""
        fixture, cell = self._fixture, self._fixture.cell
        moved = movement(fixture, committed, batches, self._optimizer, rate)
        self._residual.require_finite(moved, GRADIENT_MAX)
        self._residual.accumulate(moved)
        cap = code_max(rate, cell.local_steps, cell.top_k)
        sent = self._residual.extract(code_max=cap).coefficients
        self.before, self.sent = self.sent, sent
        return sent


class LocalStudy:
    """The honest authors of one run, the doubles of the first, and what an auditor finds."""

    def __init__(self, fixture: Fixture, samples: int) -> None:
        """`samples` are those of the whole text: other data are half of it away."""
        self.fixture = fixture
        self._committed = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        self.honest = [Author(fixture) for _ in range(fixture.cell.authors)]
        self.doubles = {kind: Author(fixture) for kind in DOUBLES}
        self.shares: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.places: dict[str, list[float]] = defaultdict(list)
        self.parts: list[tuple[int, float]] = []
        """By audited round the uneven author's samples, as a part of its mean of late."""
        self.crossed: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        """By audited round: signs of a payload that are those of its own author's movement, where
        another's has others, and the number of these."""
        self._random = np.random.default_rng(fixture.cell.seed)
        self._steps = samples // fixture.task.batch_samples
        self._uneven: list[int] = []
        """Its samples of all rounds."""

    def step(self, number: int, *, audited: bool) -> None:
        """One round of all, audited or not, and the honest authors' step."""
        cell = self.fixture.cell
        rate = self.fixture.rates(number * cell.local_steps)[0]
        shares = self._shares(number * cell.local_steps)
        others = self._shares(number * cell.local_steps + self._steps // 2)
        sent = self._honest(shares, rate)
        if number % YOUNG_ROUNDS == 0:
            self.doubles["young"] = Author(self.fixture)
        first = shares[0]
        uneven = part_of(first, self._random.uniform(UNEVEN_LEAST, 1.0))
        self._uneven.append(sum(map(len, uneven)))
        half, thin = part_of(first, 0.5), [batch[: len(batch) // 2] for batch in first]
        work = {"young": first, "half": half, "thin": thin, "other": others[0], "uneven": uneven}
        for kind, batches in work.items():
            self.doubles[kind].train(self._committed, batches, rate)
        if audited:
            self._audit(number, shares, sent, rate)
            for kind, double in (("slow", "half"), ("uneven", "uneven")):
                self._note(number, kind, self.doubles[double].sent, self._moved(work[double], rate))
            recent = self._uneven[-RECENT_ROUNDS:]
            self.parts.append((number, recent[-1] * len(recent) / sum(recent)))
        self._apply(number, sent)

    def honest_step(self, number: int) -> list[Coefficients]:
        """One round of the honest alone; what they sent."""
        first = number * self.fixture.cell.local_steps
        sent = self._honest(self._shares(first), self.fixture.rates(first)[0])
        self._apply(number, sent)
        return sent

    def begin_again(self) -> None:
        """All honest authors lose their residual and their optimizer's state."""
        self.honest = [Author(self.fixture) for _ in self.honest]

    def _honest(self, shares: Sequence[Batches], rate: float) -> list[Coefficients]:
        pairs = zip(self.honest, shares, strict=True)
        return [author.train(self._committed, batches, rate) for author, batches in pairs]

    def _apply(self, number: int, sent: Sequence[Coefficients]) -> None:
        cell = self.fixture.cell
        rate, decay = self.fixture.rates(number * cell.local_steps)
        cap = code_max(rate, cell.local_steps, cell.top_k)
        movements = [Movement(1, cap, coefficients) for coefficients in sent]
        with torch.no_grad():
            apply(self.fixture.layout, self._committed, movements, decay)

    def _shares(self, first: int) -> list[Batches]:
        """The batches of each author in the round whose first step this is."""
        cell, length = self.fixture.cell, self.fixture.task.sequence_length + 1
        steps = [
            self.fixture.samples((first + step) % self._steps).reshape(cell.authors, -1, length)
            for step in range(cell.local_steps)
        ]
        return [[step[author] for step in steps] for author in range(cell.authors)]

    def _moved(self, batches: Batches, rate: float) -> Tensor:
        """What an auditor computes: float32 [chunks, 64, 64]."""
        fixture = self.fixture
        optimizer = LocalOptimizer(fixture.trainee.model, fixture.trainee.parameters)
        moved = movement(fixture, self._committed, batches, optimizer, rate)
        return gradient_coefficients(fixture.layout, moved)

    def _audit(
        self, number: int, shares: Sequence[Batches], sent: Sequence[Coefficients], rate: float
    ) -> None:
        moved = [self._moved(part, rate) for part in shares]
        for author, payload in enumerate(sent):
            judged = {"honest": payload} | (self._cheats(sent) if author == 0 else {})
            for kind, given in judged.items():
                self._note(number, kind, given, moved[author])
            own, other = author, (author + 1) % len(sent)
            for kind in ("honest", "copied"):
                found = crossing(*(signs_followed(payload, moved[n]) for n in (own, other)))
                self.crossed[kind].append((number, found.own, found.differ))
                own, other = other, own  # as if the payload were the other author's
        self.places["two honest authors"].append(shared_places(sent[0], sent[1]))
        if before := self.honest[0].before:
            self.places["an author and its last round"].append(shared_places(sent[0], before))

    def _note(self, number: int, kind: str, sent: Coefficients | None, moved: Tensor) -> None:
        if sent is not None:
            self.shares[kind].append((number, sign_agreement(sent, moved).share))

    def _cheats(self, sent: Sequence[Coefficients]) -> dict[str, Coefficients | None]:
        made = {kind: self.doubles[kind].sent for kind in DOUBLES if kind != "uneven"}
        random = noise(sent[0], self._random)
        return {**made, "noise": random, "copied": sent[1], "stale": self.honest[0].before}


def part_of(batches: Batches, part: float) -> Batches:
    """The first samples of a round, as many as this part of them, at least one."""
    left, found = max(1, int(part * sum(map(len, batches)))), []
    for batch in batches:
        if left > 0:
            found.append(batch[:left])
        left -= len(batch)
    return found
