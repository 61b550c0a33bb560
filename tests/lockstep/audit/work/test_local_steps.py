"""The measured panels of local steps (`tests.benchmarks.work_audit`): the same judge finds cheats
in the number of audits that is promised, and accuses no honest author.
"""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from lockstep.audit.work.ages import Age, Ages
from lockstep.audit.work.auditing import drawn
from lockstep.audit.work.judge import Book
from protocol.audit.rule import (
    CROSS_ODDS,
    EARLY_ROUNDS,
    FAR_AUDITS,
    LESS_AUDITS,
    LIMIT,
)
from protocol.audit.thresholds import LOCAL_STEPS
from protocol.codec.evidence import CHANCE, WHOLE
from protocol.ids import PeerId
from tests.benchmarks.work_audit.judged import (
    UNLIKE,
    accused,
    found_after,
    ratios,
    sums_in_order,
)
from tests.benchmarks.work_audit.measured import SAMPLES, Measured
from tests.benchmarks.work_audit.measured import runs as measured_runs
from tests.lockstep.audit.work.panels import AUTHORS, DRAW, FIRST, RUN, audits_until, round_of

ENOUGH = 4096
"""Signs of a payload from which on half the work was told in runs of a hundred rounds and less."""

LONG_PANELS = 40
"""Audited rounds of a run that is so long that half the work was told with fewer signs too."""


@pytest.fixture(scope="module")
def runs() -> list[Measured]:
    return [run for run in measured_runs() if run.panels]


def having(kind: str, runs: list[Measured]) -> list[Measured]:
    """The runs in which a kind was measured, at least one."""
    found = [run for run in runs if kind in run.kinds]
    assert found
    return found


def tells_half(run: Measured) -> bool:
    return run.compared >= ENOUGH or len(run.panels) >= LONG_PANELS


@pytest.mark.parametrize("kind", ["other", "noise", "stale", "copied"])
def test_what_is_no_work_is_found_by_three_audits(kind: str, runs: list[Measured]) -> None:
    numbers = [number for run in having(kind, runs) for number in found_after(run, kind, 50)]
    share = sum(number == FAR_AUDITS for number in numbers) / len(numbers)
    assert share > 0.85, f"{share:.3f} after {FAR_AUDITS} audits"
    assert None not in numbers


@pytest.mark.parametrize("kind", ["half", "thin"])
def test_half_the_work_is_found_by_twenty_audits(kind: str, runs: list[Measured]) -> None:
    for run in filter(tells_half, having(kind, runs)):
        found = [number for number in found_after(run, kind, 50) if number is not None]
        assert len(found) > 45


def test_honest_work_raises_no_false_alarm_in_the_measured_panels(runs: list[Measured]) -> None:
    """Any round, and any four authors of it, again and again."""
    for run in runs:
        assert accused(run, 5_000)[0] == 0


def test_the_sums_of_honest_work_in_its_order_become_rare_as_the_limit_asks(
    runs: list[Measured],
) -> None:
    """Two heights more are reached four times more rarely, at least: from 6 to 13 that makes less
    than one audit in 10,000.
    """
    sums = [*chain.from_iterable(map(sums_in_order, runs))]
    reached = [sum(each >= height for each in sums) for height in (2, 4, 6)]
    assert len(sums) > 7_000
    assert reached[1] < reached[0] / 4
    assert reached[2] < reached[1] / 4
    assert reached[2] / len(sums) * 4 ** -((LIMIT - 6) / 2) < 1e-4


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_machine_that_rounds_unlike_sends_payloads_that_agree_in_as_much(kind: str) -> None:
    for run in having(kind, measured_runs()):
        apart = [panel[kind][0] - panel["honest"][0] for panel in run.rounds.values()]
        assert abs(np.mean(apart)) < 0.005
        assert np.abs(apart).max() < 0.02


def test_authors_that_compute_in_bfloat16_agree_in_as_much_as_others(runs: list[Measured]) -> None:
    mixed = [run for run in runs if run.float32 < run.authors]
    assert mixed
    for run in mixed:
        by_author = ratios(run, "honest")
        found = [
            np.median([*chain.from_iterable(those)])
            for those in (by_author[: run.float32], by_author[run.float32 :])
        ]
        assert abs(found[0] - found[1]) < 0.03


def test_honest_work_is_far_from_turned_signs_and_turned_signs_are_found(
    runs: list[Measured],
) -> None:
    for run in runs:
        assert min(run.honest) > CHANCE / WHOLE > LOCAL_STEPS.opposed / WHOLE
        for panel in run.panels:
            shares = panel["honest"][:4]
            (found,) = Book("local_steps").take_early(
                3, run.looks([1 - shares[0], *shares[1:]]), RUN
            )
            assert (found.author, len(found.audits)) == (FIRST, 1)


def test_no_honest_payload_follows_the_movement_of_another_author(runs: list[Measured]) -> None:
    for run in runs:
        for round, *found in run.crossed["honest"]:
            odds = CROSS_ODDS * (LOCAL_STEPS.early_cross_times if round < EARLY_ROUNDS else 1)
            for own, differ in zip(found[::2], found[1::2], strict=True):
                against = differ - 2 * own
                assert against < 0 or against**2 < odds * differ / 4


def test_a_slow_author_is_not_told_to_work_less_by_faster_ones_and_noise_of_it_is_found(
    runs: list[Measured],
) -> None:
    random = np.random.default_rng(4)
    for run in having("slow", runs):
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
    for run in filter(tells_half, having("half", runs)):
        panels = (
            run.looks([each.agreement for each in looks], 2 * SAMPLES)
            for looks in run.drawn("half", random, LESS_AUDITS)
        )
        assert audits_until(run.taught(), panels)


def test_a_round_of_fewer_samples_than_before_is_not_judged_beside_others() -> None:
    run = Measured({"settings": {"top_k": 192}, "crossed": {}, "by_step": {}})
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
