"""Payloads of DeMo beside the gradient that an auditor computes again.

R authors of DeMo as published, and beside the first of them doubles of it that see
the same parameters, and most of them cheat:

    young      does all its work, and begins again without momentum every `YOUNG_STEPS` steps
    half       trains half of its share
    other      trains other samples than its own
    noise      sends random places and signs
    stale      sends its payload of the round before
    copied     sends the payload of another author

Their payloads are not counted: the run is that of the honest. With `late` everybody's gradients are
taken where the round before is not applied yet, as where rounds overlap, and the auditor's where it
is.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import Momentum
from node.exact.sign_audit import gradient_coefficients, shared_places, sign_agreement
from protocol.codec.payload import Coefficients
from tests.benchmarks.parity.cells import PUBLISHED, Cell
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit.noise import noise

DOUBLES = ("young", "half", "other")
KINDS = ("honest", *DOUBLES, "noise", "stale", "copied")

YOUNG_STEPS = 100
"""Life of an author that begins again and again."""

Samples = npt.NDArray[np.int64]


class Author:
    """One momentum and its last two payloads."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self._engine = Momentum(fixture.layout, fixture.cell.demo, "cpu")
        self.sent: Coefficients | None = None
        self.before: Coefficients | None = None

    def train(self, samples: Samples) -> Coefficients:
        """One round."""
        self._engine.accumulate(self._fixture.gradients(samples))
        self.before, self.sent = self.sent, self._engine.extract().coefficients
        return self.sent


class Study:
    """The honest authors of one run, the doubles of the first, and what an auditor finds."""

    def __init__(self, fixture: Fixture, samples: int, *, late: bool = False) -> None:
        """`samples` are those of the whole text: other data are half of it away."""
        self.fixture, self._late = fixture, late
        self._sent: list[Coefficients] = []
        self.honest = [Author(fixture) for _ in range(fixture.cell.authors)]
        self.doubles = {kind: Author(fixture) for kind in DOUBLES}
        self.shares: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.places: dict[str, list[float]] = defaultdict(list)
        self._random = np.random.default_rng(fixture.cell.seed)
        self._rounds = samples // fixture.task.batch_samples

    def step(self, number: int, *, audited: bool) -> None:
        """One round of all, audited or not, and the honest authors' step."""
        shares = self._shares(number)
        others = self._shares((number + self._rounds // 2) % self._rounds)
        if number % YOUNG_STEPS == 0:
            self.doubles["young"] = Author(self.fixture)
        sent = [author.train(part) for author, part in zip(self.honest, shares, strict=True)]
        self.doubles["young"].train(shares[0])
        self.doubles["half"].train(shares[0][: len(shares[0]) // 2])
        self.doubles["other"].train(others[0])
        if self._late and self._sent:
            self._apply(number - 1, self._sent)
        if audited:
            self._audit(number, shares, sent)
        if not self._late:
            self._apply(number, sent)
        self._sent = sent

    def honest_step(self, number: int) -> list[Coefficients]:
        """One round of the honest alone; what they sent."""
        shares = zip(self.honest, self._shares(number), strict=True)
        sent = [author.train(part) for author, part in shares]
        self._apply(number, sent)
        return sent

    def begin_again(self) -> None:
        """All honest authors lose their momentum."""
        self.honest = [Author(self.fixture) for _ in self.honest]

    def _apply(self, number: int, sent: Sequence[Coefficients]) -> None:
        fixture, (rate, decay) = self.fixture, self.fixture.rates(number)
        contributions = [Contribution(1, coefficients) for coefficients in sent]
        apply(fixture.layout, fixture.parameters, contributions, rate, decay)

    def _shares(self, round: int) -> Sequence[Samples]:
        length = self.fixture.task.sequence_length + 1
        return list(self.fixture.samples(round).reshape(len(self.honest), -1, length))

    def _audit(self, number: int, shares: Sequence[Samples], sent: Sequence[Coefficients]) -> None:
        fixture = self.fixture
        for author, (part, payload) in enumerate(zip(shares, sent, strict=True)):
            own = gradient_coefficients(fixture.layout, fixture.gradients(part))
            judged = {"honest": payload} | (self._cheats(sent) if author == 0 else {})
            for kind, found in judged.items():
                self.shares[kind].append((number, sign_agreement(found, own).share))
        self.places["two honest authors"].append(shared_places(sent[0], sent[1]))
        if before := self.honest[0].before:
            self.places["an author and its last round"].append(shared_places(sent[0], before))

    def _cheats(self, sent: Sequence[Coefficients]) -> dict[str, Coefficients]:
        doubles = {kind: author.sent for kind, author in self.doubles.items()}
        made = {**doubles, "noise": noise(sent[0], self._random), "copied": sent[1]}
        made["stale"] = self.honest[0].before
        return {kind: payload for kind, payload in made.items() if payload is not None}


def cell_of(authors: int, steps: int, top_k: int, seed: int) -> Cell:
    """DeMo as published."""
    return replace(PUBLISHED, steps=steps, top_k=top_k, authors=authors, seed=seed)
