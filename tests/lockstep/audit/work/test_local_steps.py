"""The measured panels of local steps (`tests.benchmarks.work_audit`): the same judge finds cheats
in the number of audits that is promised, and accuses no honest author.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.audit.work.ages import Age, Ages
from lockstep.audit.work.auditing import drawn
from lockstep.audit.work.judge import RECENT_KEPT, Book, Look
from protocol.audit.rule import CROSS_ODDS, EARLY_ROUNDS, FAR_AUDITS, LESS_AUDITS
from protocol.audit.thresholds import LOCAL_STEPS
from protocol.codec.evidence import CHANCE, WHOLE
from protocol.ids import PeerId, sha256
from tests.lockstep.audit.work.panels import AUTHORS, DRAW, FIRST, RUN, audits_until, round_of

DATA = Path(__file__).parents[4] / "docs" / "results" / "data" / "work-audit-local.json"
CHUNKS = 32
SAMPLES = 20

ENOUGH = 4096
"""Signs of a payload from which on half the work was told in a network of a tenth of a million
parameters."""

Panel = dict[str, list[float]]
"""Agreements by kind: four or more of honest authors, one of each double of the first."""


class Measured:
    """One measured run, from round `EARLY_ROUNDS` on."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.compared = CHUNKS * document["settings"]["top_k"]
        self.crossed = document["crossed"]
        self.all = [share for _, share in document["by_step"]["honest"]]
        panels: dict[int, Panel] = {}
        for kind, rows in document["by_step"].items():
            for step, share in (row for row in rows if row[0] >= EARLY_ROUNDS):
                panels.setdefault(step, {}).setdefault(kind, []).append(share)
        self.panels = [panels[step] for step in sorted(panels)]
        self._recent: list[float] = []

    def looks(self, shares: Sequence[float], samples: int = SAMPLES) -> list[Look]:
        """The first author of these samples, and the others."""
        made = zip(AUTHORS, shares, (samples, *[SAMPLES] * 3), strict=False)
        return [
            Look(author, sha256(author.encode()), share, self.compared, 500, samples=count)
            for author, share, count in made
        ]

    def drawn(self, kind: str, random: np.random.Generator, audits: int) -> Iterator[list[Look]]:
        """Panels with that double in the place of the first author, any of them again."""
        for place in random.integers(len(self.panels), size=audits).tolist():
            panel = self.panels[place]
            yield self.looks([panel[kind][0], *panel["honest"][1:]])

    def taught(self) -> Book:
        """A book that has seen the honest authors of the run."""
        if not self._recent:
            book = Book("local_steps")
            for number, panel in enumerate([*self.panels] * 3):
                assert not book.take(round_of(number), self.looks(panel["honest"]), RUN, DRAW)
            self._recent = book.recent[-RECENT_KEPT:]
        return Book("local_steps", recent=self._recent)


@pytest.fixture(scope="module")
def runs() -> list[Measured]:
    return [Measured(document) for document in json.loads(DATA.read_text())]


@pytest.mark.parametrize("kind", ["other", "noise", "stale", "copied"])
def test_what_is_no_work_is_found_by_three_audits(kind: str, runs: list[Measured]) -> None:
    random = np.random.default_rng(1)
    numbers = [
        audits_until(run.taught(), run.drawn(kind, random, 8)) for run in runs for _ in range(50)
    ]
    share = sum(number == FAR_AUDITS for number in numbers) / len(numbers)
    assert share > 0.85, f"{share:.3f} after {FAR_AUDITS} audits"
    assert None not in numbers


@pytest.mark.parametrize("kind", ["half", "thin"])
def test_half_the_work_is_found_by_twenty_audits(kind: str, runs: list[Measured]) -> None:
    random = np.random.default_rng(2)
    for run in runs:
        numbers = [
            audits_until(run.taught(), run.drawn(kind, random, LESS_AUDITS)) for _ in range(50)
        ]
        found = [number for number in numbers if number is not None]
        assert len(found) > 45 or run.compared < ENOUGH


def test_honest_work_raises_no_false_alarm_in_the_measured_panels(runs: list[Measured]) -> None:
    """In any order of the panels."""
    random, audited = np.random.default_rng(3), 0
    for run in runs:
        for _ in range(50):
            book = run.taught()
            for number, place in enumerate(random.permutation(len(run.panels)).tolist()):
                audited += 4
                panel = run.looks(run.panels[place]["honest"])
                assert not book.take(round_of(number), panel, RUN, DRAW)
    print(f"honest: no evidence in {audited} audits of measured panels, in any order")  # noqa: T201
    assert audited > 3_000


def test_honest_work_is_far_from_turned_signs_and_turned_signs_are_found(
    runs: list[Measured],
) -> None:
    for run in runs:
        assert min(run.all) > CHANCE / WHOLE > LOCAL_STEPS.opposed / WHOLE
        for panel in run.panels:
            shares = panel["honest"]
            (found,) = Book("local_steps").take_early(
                3, run.looks([1 - shares[0], *shares[1:]]), RUN
            )
            assert (found.author, len(found.audits)) == (FIRST, 1)


def test_no_honest_payload_follows_the_movement_of_another_author(runs: list[Measured]) -> None:
    for run in runs:
        for _, own, differ in run.crossed["honest"]:
            against = differ - 2 * own
            assert against < 0 or against**2 < CROSS_ODDS * differ / 4


def test_a_slow_author_is_not_told_to_work_less_by_faster_ones_and_noise_of_it_is_found(
    runs: list[Measured],
) -> None:
    random = np.random.default_rng(4)
    for run in runs:
        for kind, expected in (("slow", None), ("noise", FAR_AUDITS)):
            panels = (
                run.looks([looks[0].agreement, *(each.agreement for each in looks[1:])], 10)
                for looks in run.drawn(kind, random, LESS_AUDITS)
            )
            assert audits_until(run.taught(), panels) == expected


def test_an_author_that_claims_more_than_all_others_is_held_against_them(
    runs: list[Measured],
) -> None:
    random = np.random.default_rng(5)
    for run in runs:
        panels = (
            run.looks([each.agreement for each in looks], 2 * SAMPLES)
            for looks in run.drawn("half", random, LESS_AUDITS)
        )
        assert audits_until(run.taught(), panels) or run.compared < ENOUGH


def test_a_round_of_fewer_samples_than_before_is_not_judged_beside_others() -> None:
    run = Measured({"settings": {"top_k": 192}, "crossed": {}, "by_step": {"honest": []}})
    book = Book("local_steps", recent=[0.05] * 64)
    for number in range(LESS_AUDITS):
        first, *others = run.looks([0.50, 0.65, 0.65, 0.65])
        uneven = replace(first, even=False)
        assert not book.take(round_of(number), [uneven, *others], RUN, DRAW)
    found = [
        book.take(round_of(number), run.looks([0.50, 0.65, 0.65, 0.65]), RUN, DRAW)
        for number in range(LESS_AUDITS, LESS_AUDITS + FAR_AUDITS)
    ]
    assert [len(each) for each in found] == [0, 0, 1]


def test_an_uneven_author_is_drawn_only_if_it_is_named() -> None:
    book, ages = Book("local_steps"), Ages()
    for round in range(EARLY_ROUNDS):
        ages.committed(round, dict.fromkeys(AUTHORS, 20))
    ages.committed(EARLY_ROUNDS, {**dict.fromkeys(AUTHORS, 20), FIRST: 10})
    for named, book_ in ((set[PeerId](), book), ({FIRST}, book), (set[PeerId](), Book())):
        found = drawn(DRAW, EARLY_ROUNDS, AUTHORS, frozenset(named), book=book_, ages=ages)
        assert (FIRST in found) == (FIRST in named or book_ is not book)


def test_an_author_is_best_held_against_one_of_like_age_and_no_more_samples() -> None:
    book, age = Book("local_steps"), Age(payloads=100, samples=100)
    assert book.compares(age, Age(payloads=100, samples=125))
    assert not book.compares(age, Age(payloads=100, samples=126))
    assert not book.compares(age, Age(payloads=1, samples=100))
    assert not book.compares(age, None)
    assert Book().compares(age, Age(payloads=100, samples=1000))
