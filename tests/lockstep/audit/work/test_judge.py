"""What panels of audits prove: cheats are found in the number of audits that is promised, honest
authors are not accused, companions can neither frame nor hide one another while they are few.

The measured panels are those of `tests.benchmarks.work_audit` (docs/results/data/work-audit.json):
four honest authors at many steps of a run, and doubles of the first that cheat.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lockstep.audit.work.judge import LEARNED, Book, PayloadAudit, companions_of
from protocol.audit.rule import (
    EARLY_ROUNDS,
    FAR_AUDITS,
    LESS_AUDITS,
    OPPOSED_COMPARED,
    SPACING_ROUNDS,
    expectation,
)
from protocol.audit.thresholds import DEMO, LOCAL_STEPS, Thresholds
from protocol.codec.evidence import AUDITS_MAX, CHANCE, WHOLE, Evidence, words
from protocol.ids import PeerId, sha256
from tests.lockstep.audit.work.panels import (
    AUTHORS,
    DRAW,
    FIRST,
    OTHERS,
    RUN,
    audits_until,
    round_of,
)

DATA = Path(__file__).parents[4] / "docs" / "results" / "data" / "work-audit.json"
COMPARED = 4736
"""Signs of a payload in the measured run: 148 chunks of 32."""

Panel = tuple[int, dict[str, list[float]]]
"""A step, and the agreements by kind: four of honest authors, one of each cheat."""


def measured() -> list[list[Panel]]:
    """The panels of each measured run, by step."""
    runs = []
    for document in json.loads(DATA.read_text()):
        panels: dict[int, dict[str, list[float]]] = {}
        for kind, rows in document["by_step"].items():
            for step, share in (row for row in rows if row[0] >= EARLY_ROUNDS):
                panels.setdefault(step, {}).setdefault(kind, []).append(share)
        runs.append(sorted(panels.items()))
    return runs


def look(author: PeerId, share: float, age: int = 500, *, settled: bool = True) -> PayloadAudit:
    share = min(1.0, max(0.0, share))
    return PayloadAudit(author, sha256(author.encode()), share, COMPARED, age, settled)


def looks(shares: Sequence[float], age: int = 500) -> list[PayloadAudit]:
    return [look(author, share, age) for author, share in zip(AUTHORS, shares, strict=False)]


def drawn(panels: list[Panel], random: np.random.Generator, audits: int) -> Iterator[Panel]:
    """Panels of one run, each at most once, in the order of their steps."""
    for place in sorted(random.permutation(len(panels))[:audits].tolist()):
        yield panels[place]


def taught() -> Book:
    """A book that knows how honest work spreads in its run."""
    return Book(recent=[0.03] * LEARNED)


# ---- the measured runs


@pytest.mark.parametrize("kind", ["other", "noise", "stale", "copied"])
def test_what_is_no_work_is_found_by_three_audits(kind: str) -> None:
    random, numbers = np.random.default_rng(1), []
    for run in measured():
        for _ in range(200):
            known = [each for each in run if kind in each[1]]
            panels = (
                looks([shares[kind][0], *shares["honest"][1:]], step)
                for step, shares in drawn(known, random, 12)
            )
            numbers.append(audits_until(taught(), panels))
    print(f"{kind}: found after {sorted(set(map(str, numbers)))} audits, {len(numbers)} times")  # noqa: T201
    share = sum(number == FAR_AUDITS for number in numbers) / len(numbers)
    assert share > 0.7, f"{share:.3f} after {FAR_AUDITS} audits"
    assert {*numbers} <= {FAR_AUDITS, FAR_AUDITS + 1}


def test_half_the_work_is_found_by_twenty_audits_for_the_most_part() -> None:
    random, numbers = np.random.default_rng(2), []
    for run in measured():
        for _ in range(300):
            panels = (
                looks([shares["half"][0], *shares["honest"][1:]], step)
                for step, shares in drawn(run, random, LESS_AUDITS)
            )
            numbers.append(audits_until(taught(), panels))
    found = [number for number in numbers if number is not None]
    share = len(found) / len(numbers)
    print(f"half: {share:.3f} found, after {np.median(found):.0f} audits in the median")  # noqa: T201
    assert share > 0.9


def test_honest_work_raises_no_false_alarm_in_the_measured_panels() -> None:
    """In any order of the panels."""
    random, audited = np.random.default_rng(3), 0
    for run in measured():
        for _ in range(150):
            book = taught()
            for number, place in enumerate(random.permutation(len(run)).tolist()):
                audited += 4
                assert not book.take(round_of(number), looks(run[place][1]["honest"]), RUN, DRAW)
    print(f"honest: no evidence in {audited} audits of measured panels, in any order")  # noqa: T201
    assert audited > 20_000


# ---- synthetic ones


def honest_panels(
    random: np.random.Generator, count: int, spread: float
) -> Iterator[list[PayloadAudit]]:
    """Honest authors of a run whose agreement falls from 0.98 to 0.80; `spread` is that of the
    ratio.
    """
    for number in range(count):
        level = 0.30 + 0.18 * np.exp(-number / 20)
        yield looks(0.5 + level * (1 + spread * random.standard_normal(4)), 10 * number + 10)


@pytest.mark.slow
def test_honest_work_of_the_measured_spread_is_not_accused_once_in_100_000_audits() -> None:
    random, accused, audited = np.random.default_rng(4), 0, 0
    for _ in range(250):
        book = taught()
        for number, panel in enumerate(honest_panels(random, 100, 0.04)):
            audited += len(panel)
            accused += len(book.take(round_of(number), panel, RUN, DRAW))
    print(f"synthetic: {accused} accused in {audited} audits")  # noqa: T201
    assert audited == 100_000
    assert accused == 0


def test_noise_is_found_by_three_audits_at_any_level_of_honest_work() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        panels = (
            [look(FIRST, 0.5 + 0.01 * random.standard_normal(), panel[0].age), *panel[1:]]
            for panel in honest_panels(random, 10, 0.04)
        )
        assert audits_until(taught(), panels) == FAR_AUDITS


def test_one_audit_far_below_makes_a_suspect_and_no_verdict() -> None:
    book = taught()
    assert not book.take(round_of(0), looks([0.5, 0.9, 0.9, 0.9]), RUN, DRAW)
    assert book.suspects == {FIRST}
    for number in range(1, 5):
        assert not book.take(round_of(number), looks([0.9, 0.9, 0.9, 0.9]), RUN, DRAW)
    assert not book.suspects


def test_evidence_names_the_audits_that_prove_it_and_they_are_used_once() -> None:
    book, found = taught(), list[Evidence]()
    for number in range(6):
        found += book.take(round_of(number), looks([0.52, 0.91, 0.90, 0.92]), RUN, DRAW)
    assert [[audit.round for audit in each.audits] for each in found] == [
        [round_of(number) for number in numbers] for numbers in ((0, 1, 2), (3, 4, 5))
    ]
    assert {each.finding for each in found} == {"other work"}
    assert [(audit.agreement, audit.expected) for audit in found[0].audits] == [(5200, 9100)] * 3


def test_less_work_is_proven_by_many_audits_within_the_bound_of_evidence() -> None:
    random, found = np.random.default_rng(6), list[Evidence]()
    book = taught()
    for number in range(60):
        first = 0.5 + 0.35 * 0.85 * (1 + 0.03 * random.standard_normal())
        found += book.take(round_of(number), looks([first, 0.85, 0.85, 0.85]), RUN, DRAW)
    assert found
    assert {(each.author, each.finding) for each in found} == {(FIRST, "less work")}
    assert all(4 <= len(each.audits) <= AUDITS_MAX for each in found)


def test_one_companion_in_three_can_neither_frame_nor_hide_an_author() -> None:
    """It sends the bare gradient, which agrees in all signs; or nothing of use."""
    random = np.random.default_rng(7)
    framed = taught()
    for number, panel in enumerate(honest_panels(random, 200, 0.04)):
        framing = [*panel[:3], look(AUTHORS[3], 1.0, panel[0].age)]
        assert not framed.take(round_of(number), framing, RUN, DRAW)
    hidden = (
        [look(FIRST, 0.5, panel[0].age), *panel[1:3], look(AUTHORS[3], 0.5, panel[0].age)]
        for panel in honest_panels(random, 10, 0.04)
    )
    book = taught()
    found = [
        each.author
        for number, panel in enumerate(hidden)
        for each in book.take(round_of(number), panel, RUN, DRAW)
    ]
    assert {FIRST, AUTHORS[3]} == set(found)


def test_a_young_momentum_agrees_better_and_accuses_no_old_one() -> None:
    book = taught()
    for number in range(100):
        panel = [look(FIRST, 0.80, 1000), *(look(each, 0.97, 10 + number) for each in OTHERS)]
        assert not book.take(round_of(number), panel, RUN, DRAW)
    assert not companions_of(panel[0], panel)
    assert expectation(companions_of(panel[1], panel)) == 9700


def test_one_that_was_away_is_found_by_noise_and_not_by_a_little_less() -> None:
    book = taught()
    for number in range(60):
        back = look(FIRST, 0.80, settled=False)
        assert not book.take(round_of(number), [back, *looks([0.9] * 4)[1:]], RUN, DRAW)
    panels = ([look(FIRST, 0.5, settled=False), *looks([0.9] * 4)[1:]] for _ in range(5))
    assert audits_until(taught(), panels) == FAR_AUDITS


def test_where_chance_is_near_nobody_is_judged_and_it_says_so() -> None:
    book = taught()
    for number in range(20):
        assert not book.take(
            round_of(number),
            looks([0.5, DEMO.telling / WHOLE - 0.01, 0.55, DEMO.telling / WHOLE - 0.01]),
            RUN,
            DRAW,
        )
    assert "cannot judge" in book.words
    assert book.audits == 0
    book.take(round_of(20), looks([0.9] * 4), RUN, DRAW)
    assert book.words == "4 payloads audited"


def test_audits_of_an_author_alone_say_nothing() -> None:
    book = taught()
    assert not book.take(round_of(0), [look(FIRST, 0.5)], RUN, DRAW)
    assert (book.audits, book.suspects) == (0, set())


def test_a_round_that_a_replay_comes_to_again_counts_once_and_a_book_survives_a_restart() -> None:
    book = taught()
    for number in (0, 1, 1, 0, 1):
        assert not book.take(round_of(number), looks([0.5, 0.9, 0.9, 0.9]), RUN, DRAW)
    again = msgspec.json.decode(msgspec.json.encode(book), type=Book)
    assert again == book
    assert again.take(round_of(2), looks([0.5, 0.9, 0.9, 0.9]), RUN, DRAW)


def test_a_run_in_which_honest_work_spreads_more_accuses_nobody_of_a_little_less() -> None:
    random = np.random.default_rng(8)
    for _ in range(30):
        book = Book()
        for number, panel in enumerate(honest_panels(random, 100, 0.10)):
            assert not [each.author for each in book.take(round_of(number), panel, RUN, DRAW)]
    assert 800 < (book.spread or 0) < 1600


def test_an_author_is_audited_again_after_some_rounds_alone() -> None:
    book = Book()
    book.take(10, looks([0.9] * 4), RUN, DRAW)
    assert not book.is_due(FIRST, 9 + SPACING_ROUNDS)
    assert book.is_due(FIRST, 10 + SPACING_ROUNDS)


# ---- turned signs


@pytest.mark.parametrize("early", [False, True])
def test_one_audit_of_turned_signs_is_evidence_whatever_the_companions_do(early: bool) -> None:
    book = Book()

    def take(round: int, panel: list[PayloadAudit]) -> list[Evidence]:
        return book.take_early(round, panel, RUN) if early else book.take(round, panel, RUN, DRAW)

    (found,) = take(3, looks([0.12, 0.9, 0.9, 0.9]))
    assert (found.author, found.finding, len(found.audits)) == (FIRST, "other work", 1)
    assert found.audits[0].expected == CHANCE
    assert words(found) == (
        "work audit: agreed in 12 % of signs where chance agrees in 50 %; round 3"
    )
    framed = take(20, looks([0.9, 0.1, 0.1, 0.1]))
    assert {each.author for each in framed} == {*OTHERS}, "those that turn theirs, and nobody else"


def test_the_first_rounds_prove_nothing_but_turned_signs_and_space_the_audits() -> None:
    book = Book()
    for number in range(0, 4 * FAR_AUDITS, SPACING_ROUNDS):
        assert not book.take_early(number, looks([DEMO.opposed / WHOLE, 0.5, 0.9, 0.95]), RUN)
        assert not book.is_due(FIRST, number + SPACING_ROUNDS - 1)
        assert book.is_due(FIRST, number + SPACING_ROUNDS)
    assert (book.audits, book.suspects) == (0, set())


def test_an_author_next_to_chance_is_not_accused_of_turned_signs_once_in_a_million_audits() -> None:
    """With the fewest signs that may be compared; noise, and honest work that cannot be told from
    it, are there.
    """
    right = np.random.default_rng(9).binomial(OPPOSED_COMPARED, 0.5, 1_000_000)
    assert right.min() >= DEMO.opposed / WHOLE * OPPOSED_COMPARED
    few = PayloadAudit(FIRST, sha256(b""), 0.0, OPPOSED_COMPARED - 1, 500)
    assert not Book().take_early(0, [few], RUN)


@pytest.mark.parametrize(("name", "by"), [("attack-demo.json", DEMO), ("attack.json", LOCAL_STEPS)])
def test_measured_honest_work_is_far_from_turned_signs_from_the_first_round_on(
    name: str, by: Thresholds
) -> None:
    document = json.loads((DATA.parent / name).read_text())
    shares = [
        share
        for case in document["cases"]
        for _, author, share in case["audits"]
        if author < 8 - case["hostile"]
    ]
    assert len(shares) > 300
    assert min(shares) > by.opposed / WHOLE + 0.1
