"""How well sign agreement tells honest work: `python -m tests.benchmarks.work_audit`.

The parity study's network and text, R authors of DeMo as published, and beside the first of them
doubles of it that see the same parameters, and most of them cheat:

    young      does all its work, and begins again without momentum every `YOUNG_STEPS` steps
    half       trains half of its share
    other      trains other samples than its own
    noise      sends random places and signs
    stale      sends its payload of the round before
    copied     sends the payload of another author

Their payloads are not counted: the run is that of the honest. With `--late` everybody's gradients
are taken where the round before is not applied yet, as where rounds overlap, and the auditor's
where it is. Every `--every` steps an auditor
computes the gradient of each author's share anew (`node.demo.sign_audit`) and compares. Printed as
JSON (`--json PATH`: kept too): for each kind the shares that agree, by step, their least, median
and most, and the places that the copied payload and two honest ones share.
"""

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from node.demo.aggregate import apply
from node.demo.engine import Engine
from node.demo.sign_audit import gradient_coefficients, shared_places, sign_agreement
from node.demo.vote_sum import Contribution
from protocol.codec.payload import Coefficients
from protocol.limits import CHUNK_ENTRIES
from tests.benchmarks.parity.cells import PUBLISHED, Cell, Task
from tests.benchmarks.parity.task import Fixture, open_corpus

DOUBLES = ("young", "half", "other")
KINDS = ("honest", *DOUBLES, "noise", "stale", "copied")

YOUNG_STEPS = 100
"""Life of an author that begins again and again."""

Samples = npt.NDArray[np.int64]


class Author:
    """One momentum and its last two payloads."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self._engine = Engine(fixture.layout, fixture.cell.demo, "cpu")
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
        made = {**doubles, "noise": self._noise(sent[0]), "copied": sent[1]}
        made["stale"] = self.honest[0].before
        return {kind: payload for kind, payload in made.items() if payload is not None}

    def _noise(self, like: Coefficients) -> Coefficients:
        places = [
            np.sort(self._random.choice(CHUNK_ENTRIES, count, replace=False)).astype(np.uint16)
            for count in like.counts
        ]
        signs = self._random.choice(np.array([-1, 1], np.int16), len(like.values))
        return Coefficients(like.counts, np.concatenate(places), signs)


def cell_of(authors: int, steps: int, top_k: int, seed: int) -> Cell:
    """DeMo as published."""
    return replace(PUBLISHED, steps=steps, top_k=top_k, authors=authors, seed=seed)


def summed_up(study: Study) -> dict[str, Any]:
    """Least, median and most share of each kind, and every share by step."""
    return {
        "agreement": {kind: spread([share for _, share in study.shares[kind]]) for kind in KINDS},
        "shared_places": {name: spread(found) for name, found in study.places.items()},
        "by_step": {
            kind: [[step, round(share, 4)] for step, share in study.shares[kind]] for kind in KINDS
        },
    }


def spread(shares: Sequence[float]) -> Mapping[str, float]:
    """The least, the median and the most of some shares, and their number."""
    if not shares:
        return {"audits": 0}
    found = {"least": min(shares), "median": statistics.median(shares), "most": max(shares)}
    return {name: round(value, 4) for name, value in found.items()} | {"audits": len(shares)}


def main() -> None:
    """Measure and print."""
    program = "python -m tests.benchmarks.work_audit"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--every", type=int, default=20, help="steps from one audit to the next")
    parser.add_argument("--authors", type=int, default=4)
    parser.add_argument("--top-k", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--late", action="store_true", help="gradients are a round late")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    task = replace(Task(), layers=wanted.layers, hidden=wanted.hidden)
    cell = cell_of(wanted.authors, wanted.steps, wanted.top_k, wanted.seed)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = open_corpus(Path(scratch) / "corpus")
        fixture = Fixture(task, cell, corpus)
        study = Study(fixture, corpus.samples(task.sequence_length), late=wanted.late)
        for number in range(wanted.steps):
            study.step(number, audited=(number + 1) % wanted.every == 0)
    names = ("steps", "every", "authors", "top_k", "layers", "hidden", "seed", "late")
    document = {"settings": {name: getattr(wanted, name) for name in names}, **summed_up(study)}
    text = json.dumps(document, indent=1)
    if wanted.json:
        wanted.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
