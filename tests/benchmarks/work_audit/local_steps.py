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
    precision  does all its work in bfloat16, or in float32 where the first computes in bfloat16
    pieces     does all its work, each batch in two passes, so that its sums round unlike

Expected, written before the first run of 104 rounds. Honest payloads agree with the movement in
0.60 to 0.85 of the signs: fewer than DeMo's 0.8 to 0.98, as a residual holds what some twenty
rounds left unsaid, and Muon's first steps differ from its later ones. Other samples 0.53 to 0.65,
copies and noise 0.50 to 0.60, young ones more than honest ones. Half the work has 0.7 to 0.9 of
what honest work has above chance; beside the movement of the second half of the steps alone it has
0.4 to 0.7, and is told sooner; work that is thin has 0.75 to 0.9 of it beside either. (Found:
docs/explain/work-audit.md. The second half told little sooner and is not compared any more.)

Expected, written before the runs of 600 rounds, from round 32 on, as a part of what three others
agree in above chance. Precision: 0.98 to 1.00 in the median, as only
what is near zero turns its sign and the largest entries are sent; where half or all authors compute
in bfloat16, their shares are within 0.01 of those of float32. Pieces: 0.99 to 1.01 in the median.
Honest work of four authors at k = 192 stays within 0.70 and 1.35; its shares fall as the rate does,
and in the last tenth of the rounds half of the panels tell nothing (the residual holds what was
moved at higher rates). Sixteen authors of one sample a step: honest shares of 0.55 to 0.64, a
spread of 0.15, half the work found by 8 to 12 audits in the median and by 20 in four of five cases.
At k = 64 half the work is found by 20 audits in half of the cases. No honest author is accused in a
million audits that are drawn from these. Noise, copies, old payloads: 3 audits in more than 95 of
100 cases, other samples in more than 85, the rest 4.

Found (docs/explain/work-audit.md): shares did not fall with the rate, and the last panels told as
much as others; honest work of four stayed within 0.75 and 1.33. Of sixteen honest shares were
higher, 0.58 to 0.72, spread by 0.14, and half the work took 11 audits, by 20 in 95 of 100 cases. At
k = 64 it was found each time, in 600 rounds; in 104 in 2 of 100. Precision and pieces, of four and
eight authors, had medians of 1.00 and 1.04, as their twins.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep.audit.copies.twins import crossing
from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.optimizer import LocalOptimizer
from node.exact.local_steps.residual import Residual
from node.exact.sign_audit import (
    acting_weights,
    gradient_coefficients,
    shared_places,
    sign_agreement,
    signs_followed,
)
from protocol.codec.payload import Coefficients
from protocol.sums.movements import Movement, code_max
from tests.benchmarks.parity.local_steps import author_batches, movement
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit.machines import in_bfloat16, in_pieces
from tests.benchmarks.work_audit.noise import noise

DOUBLES = ("young", "half", "thin", "other", "uneven", "precision", "pieces")
KINDS = ("honest", *DOUBLES, "noise", "stale", "copied", "slow")

YOUNG_ROUNDS = 40
"""Life of an author that begins again and again."""

DIVIDED = frozenset({"thin", "pieces"})
"""Doubles that divide a batch: there are none where it is of one sample."""

CROSSED_AUTHORS = 4
"""Authors whose payloads are held against another's movement too."""

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
        self._residual.accumulate(moved)
        cap = code_max(rate, cell.local_steps, cell.top_k)
        sent = self._residual.extract(code_max=cap).coefficients
        self.before, self.sent = self.sent, sent
        return sent


class LocalStudy:
    """The honest authors of one run, the doubles of the first, and what an auditor finds."""

    def __init__(
        self,
        fixture: Fixture,
        samples: int,
        *,
        bfloat16: int = 0,
        without: Sequence[str] = (),
    ) -> None:
        """`samples` are those of the whole text: other data are half of it away. The last
        `bfloat16` authors compute in it. There are no doubles of the kinds `without`.
        """
        self.fixture, self._float32 = fixture, fixture.cell.authors - bfloat16
        self._committed = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        self.honest = [self._author(place) for place in range(fixture.cell.authors)]
        self.doubles = {kind: self._author(0, kind) for kind in self._kinds(without)}
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
        if number % YOUNG_ROUNDS == 0 and "young" in self.doubles:
            self.doubles["young"] = self._author(0)
        first = shares[0]
        uneven = part_of(first, self._random.uniform(UNEVEN_LEAST, 1.0))
        self._uneven.append(sum(map(len, uneven)))
        half, thin = part_of(first, 0.5), [batch[: len(batch) // 2] for batch in first]
        work = {"half": half, "thin": thin, "other": others[0], "uneven": uneven}
        for kind, double in self.doubles.items():
            double.train(self._committed, work.get(kind, first), rate)
        if audited:
            self._audit(number, shares, sent, rate)
            for kind, own in (("slow", "half"), ("uneven", "uneven")):
                if own in self.doubles:
                    moved = self._moved(work[own], rate)
                    self._note(number, kind, self.doubles[own].sent, moved, sent[1:], rate)
            if "uneven" in self.doubles:
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
        self.honest = [self._author(place) for place in range(len(self.honest))]

    def _kinds(self, without: Sequence[str]) -> list[str]:
        is_divided = self._batch_samples > 1
        wanted = (kind for kind in DOUBLES if kind not in without)
        return [kind for kind in wanted if is_divided or kind not in DIVIDED]

    @property
    def _batch_samples(self) -> int:
        return self.fixture.task.batch_samples // self.fixture.cell.authors

    def _author(self, place: int, kind: str = "honest") -> Author:
        """One that begins, on the machine of that place or its double of a kind."""
        if kind == "pieces":
            return Author(in_pieces(self.fixture, self._batch_samples // 2))
        is_low = (place >= self._float32) != (kind == "precision")
        return Author(in_bfloat16(self.fixture) if is_low else self.fixture)

    def _honest(self, shares: Sequence[Batches], rate: float) -> list[Coefficients]:
        pairs = zip(self.honest, shares, strict=True)
        return [author.train(self._committed, batches, rate) for author, batches in pairs]

    def _apply(self, number: int, sent: Sequence[Coefficients]) -> None:
        cell = self.fixture.cell
        rate, decay = self.fixture.rates(number * cell.local_steps)
        with torch.no_grad():
            apply(self.fixture.layout, self._committed, self._movements(sent, rate), decay)

    def _movements(self, sent: Sequence[Coefficients], rate: float) -> list[Movement]:
        cell = self.fixture.cell
        cap = code_max(rate, cell.local_steps, cell.top_k)
        return [Movement(1, cap, coefficients) for coefficients in sent]

    def _shares(self, first: int) -> list[Batches]:
        """The batches of each author in the round whose first step this is."""
        steps = range(first, first + self.fixture.cell.local_steps)
        return author_batches(self.fixture, (step % self._steps for step in steps))

    def _moved(self, batches: Batches, rate: float) -> Tensor:
        return recomputed(self.fixture, self._committed, batches, rate)

    def _audit(
        self, number: int, shares: Sequence[Batches], sent: Sequence[Coefficients], rate: float
    ) -> None:
        moved = [self._moved(part, rate) for part in shares]
        for author, payload in enumerate(sent):
            judged = {"honest": payload} | (self._cheats(sent) if author == 0 else {})
            for kind, given in judged.items():
                others = [*sent[:author], *sent[author + 1 :]]
                self._note(number, kind, given, moved[author], others, rate)
            if author >= CROSSED_AUTHORS:
                continue
            own, other = author, (author + 1) % len(sent)
            for kind in ("honest", "copied"):
                found = crossing(*(signs_followed(payload, moved[n]) for n in (own, other)))
                self.crossed[kind].append((number, found.own, found.differ))
                own, other = other, own  # as if the payload were the other author's
        self.places["two honest authors"].append(shared_places(sent[0], sent[1]))
        if before := self.honest[0].before:
            self.places["an author and its last round"].append(shared_places(sent[0], before))

    def _note(
        self,
        number: int,
        kind: str,
        given: Coefficients | None,
        moved: Tensor,
        others: Sequence[Coefficients],
        rate: float,
    ) -> None:
        """Record how far a payload agrees with `moved`, in a round with these others."""
        if given is None:
            return
        movements = self._movements((given, *others), rate)
        weights = acting_weights(movements, self.fixture.layout.chunks)[0]
        self.shares[kind].append((number, sign_agreement(given, moved, weights).share))

    def _cheats(self, sent: Sequence[Coefficients]) -> dict[str, Coefficients | None]:
        made = {kind: each.sent for kind, each in self.doubles.items() if kind != "uneven"}
        random = noise(sent[0], self._random)
        return {**made, "noise": random, "copied": sent[1], "stale": self.honest[0].before}


def recomputed(fixture: Fixture, committed: Parameters, batches: Batches, rate: float) -> Tensor:
    """What an auditor computes, by an optimizer that begins: float32 [chunks, 64, 64]."""
    optimizer = LocalOptimizer(fixture.trainee.model, fixture.trainee.parameters)
    moved = movement(fixture, committed, batches, optimizer, rate)
    return gradient_coefficients(fixture.layout, moved)


def part_of(batches: Batches, part: float) -> Batches:
    """The first samples of a round, as many as this part of them, at least one."""
    left, found = max(1, int(part * sum(map(len, batches)))), []
    for batch in batches:
        if left > 0:
            found.append(batch[:left])
        left -= len(batch)
    return found
