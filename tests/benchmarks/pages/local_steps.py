"""The computed parts of docs/results/local-steps.md."""

import math
from dataclasses import replace
from functools import cache
from statistics import fmean

from tests.benchmarks.headline.study import LONG_STEPS, SEEDS, STEPS
from tests.benchmarks.local_steps.study import (
    AUTHOR_COUNTS,
    BLOCKS,
    DEFAULT,
    HORIZONS,
    LOCAL,
    WIDTHS,
    Found,
    Trial,
    best_rate,
    optimum,
)
from tests.benchmarks.local_steps.train import Row, all_rows, found_in, trial_of
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.parity.comparison import Difference


@cache
def rows() -> dict[Trial, Row]:
    """The kept rows by trial."""
    return {trial_of(row): row for row in all_rows()}


@cache
def found() -> Found:
    """Bits per byte by trial."""
    return found_in(rows().values())


LABELS = {"local_steps": "local steps", "default": "the former default"}

FIRST_BLOCKS = ("speeds", "overlap", "horizons", "authors", "widths")


def expected(*, later: bool = False) -> str:
    """What stood in the code before the first cell of each block was trained."""
    told = [(name, block.expected) for name, block in BLOCKS.items()]
    return table(("", "expected"), [row for row in told if (row[0] in FIRST_BLOCKS) != later], 2)


def speeds() -> str:
    """Unlike speeds beside equal ones, from the same samples."""
    lines = []
    for trial in _of_seed_0("speeds", "more", "weights", "half the rate", "wide speeds"):
        if trial.arrival != "at once" or trial.method == "default":
            continue
        equal = _best(replace(trial, speeds=(), weights="samples"))
        told = trial.speeds or (trial.local_steps,) * trial.authors
        lines.append(
            (
                ", ".join(map(str, told)),
                f"{trial.top_k}",
                f"{trial.weights}, {sum(h * h for h in told) / sum(told):.1f}"
                if trial.weights == "samples"
                else f"equal, {trial.local_steps:.1f}",
                *_line(trial, equal),
            )
        )
    head = ("h_i", "k", "weight, length")
    return table((*head, *_HEAD, "beside equal speeds (95 %)"), lines)


def overlap() -> str:
    """Late commits beside commits at once."""
    lines = []
    for trial in _of_seed_0("overlap", "more"):
        if trial.speeds:
            continue
        lines.append(
            (
                LABELS[trial.method],
                trial.arrival + (f", from step {trial.overlap_from}" * bool(trial.overlap_from)),
                *_line(trial, _best(replace(trial, arrival="at once", overlap_from=0))),
            )
        )
    return table(("", "commits come", *_HEAD, "beside at once (95 %)"), lines, left=2)


def horizons() -> str:
    """H and k at equal bytes of a step."""
    lines = []
    for steps, top_k in HORIZONS.items():
        base = replace(LOCAL, local_steps=steps, top_k=top_k)
        if not _tried(base):
            continue
        best = replace(base, rate=best_rate(found(), base))
        lines.append(
            (
                *(f"{steps}", f"{top_k}", f"{rows()[best]['up_bytes'] / LONG_STEPS:.0f}"),
                *(_swept(base), *_line(best, _best(replace(LOCAL)))[1:]),
            )
        )
    head = ("H", "k", "bytes of a step", "rate: bits per byte, seed 0")
    return table((*head, *_HEAD[1:], "beside H = 5 (95 %)"), lines, left=0)


def rates() -> str:
    """The best rate by authors and by width, 150 steps, one seed."""
    lines = []
    bases = [replace(LOCAL, steps=STEPS, authors=authors) for authors in AUTHOR_COUNTS]
    bases += [
        replace(base, steps=STEPS, hidden=width) for base in (LOCAL, DEFAULT) for width in WIDTHS
    ]
    for base in dict.fromkeys(bases):
        if not _tried(base):
            continue
        bottom = optimum(found(), base)
        lines.append(
            (
                LABELS[base.method],
                *(f"{base.authors}", f"{base.hidden}", _swept(base)),
                "" if bottom is None else f"{bottom:.2g}",
            )
        )
    head = ("", "R", "width", "rate: bits per byte", "bottom of the parabola")
    return table(head, lines, left=1)


_HEAD = ("rate", "bits per byte of seeds 0, 1, 2", "mean")


def _of_seed_0(*names: str) -> list[Trial]:
    """The trained cells of blocks, seed 0."""
    trials = dict.fromkeys(trial for name in names for trial in BLOCKS[name].trials(found()))
    return [trial for trial in trials if trial in found() and trial.seed == SEEDS[0]]


def _line(trial: Trial, beside: Trial) -> tuple[str, str, str, str]:
    """Rate, ends, mean, and the difference to another trial by seed; none to itself."""
    ends = _ends(trial)
    told = "" if trial == beside else _signed(ends, _ends(beside))
    listed = ", ".join(f"{end:.3f}" for end in ends.values())
    return f"{trial.rate:g}", listed, f"{fmean(ends.values()):.3f}", told


def _ends(trial: Trial) -> dict[int, float]:
    of_seed = {seed: replace(trial, seed=seed) for seed in SEEDS}
    return {seed: found()[each] for seed, each in of_seed.items() if each in found()}


def _signed(ours: dict[int, float], theirs: dict[int, float]) -> str:
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs:
        return ""
    difference = Difference(tuple(pairs))
    if difference.interval is None:
        return f"{difference.mean:+.3f} (one seed)"
    low, high = difference.interval
    return f"{difference.mean:+.3f} ({low:+.3f} to {high:+.3f})"


def _best(base: Trial) -> Trial:
    return replace(base, rate=best_rate(found(), base))


def _tried(base: Trial) -> dict[float, float]:
    """Bits per byte by rate, ascending."""
    tried = {t.rate: bits for t, bits in found().items() if replace(t, rate=base.rate) == base}
    return dict(sorted(tried.items()))


def _swept(base: Trial) -> str:
    tried = _tried(base)
    best = min(tried, key=tried.__getitem__)
    told = {
        rate: f"{bits:.3f}" if math.isfinite(bits) else "blew up" for rate, bits in tried.items()
    }
    return ", ".join(f"**{r:g}: {t}**" if r == best else f"{r:g}: {t}" for r, t in told.items())
