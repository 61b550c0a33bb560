"""The computed parts of docs/results/short-memory.md."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from statistics import fmean
from typing import NamedTuple

from tests.benchmarks.headline.look import half_width
from tests.benchmarks.headline.texts import TextName
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.headline import shown, signed
from tests.benchmarks.parity.comparison import Difference
from tests.benchmarks.short_memory.keep import Kept, read_cells
from tests.benchmarks.short_memory.study import (
    BLOCKS,
    MEAN_EXPECTED,
    RATE,
    TODAY,
    Rule,
    jobs,
    rule_of,
)


class Setting(NamedTuple):
    """Cells that differ by their seed alone."""

    text: TextName
    corpus: str
    authors: int
    rule: Rule
    rate: float
    lost: float

    @property
    def today(self) -> "Setting":
        """Today's rule on the same ground, with nothing lost."""
        return self._replace(rule=TODAY, rate=RATE, lost=0.0)


Figure = Callable[[Kept], float | None]


@cache
def settings() -> dict[Setting, dict[int, Kept]]:
    """The kept cells by setting."""
    return by_setting(read_cells().values())


def by_setting(cells: Iterable[Kept]) -> dict[Setting, dict[int, Kept]]:
    """Cells by setting, in the order of the study, then by seed."""
    places = {job: place for place, job in enumerate(jobs())}
    found: dict[Setting, dict[int, Kept]] = {}
    for each in sorted(cells, key=lambda each: places[each.key.job]):
        job, cell = each.key.job, each.key.job.cell
        ground = job.text, each.key.corpus, cell.authors
        setting = Setting(*ground, rule_of(job), cell.learning_rate, cell.lost)
        found.setdefault(setting, {})[cell.seed] = each
    return found


def expected() -> str:
    """What stood in the code before the first cell of each block was trained, and how many of its
    cells are there, of one corpus for each text.
    """
    there = read_cells()
    lines = []
    for block in BLOCKS:
        counts = Counter((key.job.text, key.corpus) for key in there if key.job in block.jobs)
        most = dict(sorted(((text, count) for (text, _), count in counts.items())))
        count = sum(most.values())
        lines.append((block.name, block.expected, f"{count} of {len(block.jobs)}"))
    return table(("block", "expected", "cells"), [*lines, ("mean", MEAN_EXPECTED, "")], left=2)


def validation_split() -> str:
    """The settings that nobody has judged on the test split yet, on the validation split."""
    return _compared(lambda each: each.finished.choosing, if_judged=False)


def test_split() -> str:
    """The settings of blocks that were looked at, on the test split."""
    return _compared(lambda each: each.look.last if each.look else None)


def means() -> str:
    """The mean of the commits beside the last commit, on both splits, where there are several
    seeds.
    """
    lines = []
    for setting, cells in settings().items():
        if len(cells) < 2:
            continue
        on_validation = [
            each.mean - each.finished.choosing for each in cells.values() if each.mean is not None
        ]
        on_test = [
            each.look.mean - each.look.last
            for each in cells.values()
            if each.look and each.look.mean is not None
        ]
        if on_validation:
            told = (
                signed(Difference(tuple(found))) if found else ""
                for found in (on_validation, on_test)
            )
            lines.append((*_about(setting), *told))
    return table((*_ABOUT, "validation", "test"), lines)


_ABOUT = ("text", "R", "fade", "gain", "rate", "lost")


def _about(setting: Setting) -> tuple[str, ...]:
    corpora = {each.corpus for each in settings() if each.text == setting.text}
    text = setting.text if len(corpora) == 1 else f"{setting.text} {setting.corpus[:8]}"
    numbers = (*setting.rule, setting.rate, setting.lost)
    return text, f"{setting.authors}", *(f"{number:g}" for number in numbers)


def _compared(figure: Figure, *, if_judged: bool = True) -> str:
    lines = []
    for setting, cells in settings().items():
        judged = all(each.look for each in cells.values())
        if not (ends := _ends(cells, figure)) or (judged and not if_judged):
            continue
        half = half_width(list(ends.values()))
        mean = f"{fmean(ends.values()):.3f}" + ("" if half is None else f" ± {half:.3f}")
        beside = _ends(settings().get(setting.today, {}), figure)
        pairs = [ends[seed] - beside[seed] for seed in ends if seed in beside]
        found = Difference(tuple(pairs))
        told = ("", "") if setting == setting.today or not pairs else (signed(found), shown(found))
        listed = ", ".join(f"{seed}: {end:.3f}" for seed, end in sorted(ends.items()))
        lines.append((*_about(setting), listed, mean, *told))
    head = (*_ABOUT, "bits per byte by seed", "mean", "beside today's rule (95 %)", "shown")
    return table(head, lines)


def _ends(cells: dict[int, Kept], figure: Figure) -> dict[int, float]:
    """A figure by seed, of the cells that have it."""
    found = {seed: figure(each) for seed, each in cells.items()}
    return {seed: end for seed, end in found.items() if end is not None}
