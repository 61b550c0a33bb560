"""The cells of the study of local steps, block by block, and what each block was expected to show.

The ground is the headline's: its first text, the network of two layers, the same tokens, genesis,
data order and schedule; every choice and every figure is of the validation split. A block yields
its cells in order, and may yield the next ones by what the first ones came to: `waiting` is the
cell to train next. The best rate of R and of widths is swept for, a factor of two apart and beyond
an end that is best; of H and k two rates are tried.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from protocol.errors import SettingsError
from tests.benchmarks.headline.study import AUTHORS, LONG_STEPS, SEEDS, STEPS, TASKS, cell
from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.parity.sweeps import overlapping

Arrival = Literal["at once", "half a round late", "a round late", "not taken in"]
"""The time of a commit, seen from the next round's steps: before them, after the first half of
them, or after them. "not taken in": after them, and then the author's model is not put to it, which
is a fault that nodes had."""

RATE = 0.024
"""The best rate of local steps in 450 steps, on the headline's page."""

DEFAULT_RATE = 0.008
"""The same of DeMo, orthogonalised, which was the default then. Its cells are records."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One cell. `SettingsError` for one that cannot be trained."""

    method: Literal["local_steps", "default"]
    rate: float
    steps: int = LONG_STEPS
    seed: int = SEEDS[0]
    authors: int = AUTHORS
    hidden: int = 64
    """Width of the network."""

    local_steps: int = 5
    """H, the steps of a round on the mean over authors."""

    top_k: int = 192
    speeds: tuple[int, ...] = ()
    """h_i, the steps of each author in every round; none: H of each."""

    arrival: Arrival = "at once"
    overlap_from: int = 0
    """With another arrival than at once: the first step for whose round it holds."""

    weights: Literal["samples", "equal"] = "samples"
    """What an author weighs in a commit: its samples, as in a run, or as much as every other."""

    def __post_init__(self) -> None:
        for author_steps in self.speeds:
            if author_steps < 1:
                raise SettingsError(f"expected speeds of at least 1, got {self.speeds}")
        if self.speeds and (
            len(self.speeds) != self.authors
            or sum(self.speeds) != self.local_steps * self.authors
            or self.steps % self.local_steps
        ):
            raise SettingsError(
                f"expected {self.authors} speeds of {self.local_steps} steps on the mean, which "
                f"divide {self.steps} steps, got {self.speeds}"
            )
        if self.method == "default" and self.arrival not in ("at once", "a round late"):
            raise SettingsError(f"expected the default at once or a round late, got {self.arrival}")

    @property
    def cell(self) -> Cell:
        """The cell of the parity study with these settings, as far as it has them."""
        found = replace(
            cell(self.method, self.rate, self.seed, self.steps),
            authors=self.authors,
            top_k=self.top_k,
            local_steps=self.local_steps,
        )
        late = self.method == "default" and self.arrival != "at once"
        return overlapping(found, self.overlap_from) if late else found

    @property
    def task(self) -> Task:
        """Network and text, with three points on the curve."""
        return replace(TASKS["library"], hidden=self.hidden, point_steps=self.steps // 3)

    def speeds_of(self, steps: int) -> tuple[int, ...]:
        """h_i of a round of this many steps on the mean: the last round may be shorter."""
        return self.speeds or (steps,) * self.authors


Found = Mapping[Trial, float]
"""Bits per byte of the cells that are trained; infinite for one that blew up."""

LOCAL = Trial("local_steps", RATE)
DEFAULT = Trial("default", DEFAULT_RATE, local_steps=1, top_k=32)

UNLIKE = ((8, 6, 4, 2), (14, 2, 2, 2))
MORE_UNLIKE = (20, 12, 6, 2)

HORIZONS = {2: 60, 5: 192, 10: 480, 20: 1400}
"""k by H, for equal bytes of a step: places cost less each when there are more of them, so k grows
faster than H."""

HORIZON_RATES = {2: RATE * 2, 5: RATE * 2, 10: RATE / 2, 20: RATE / 2}
"""The second rate that is tried for each H; that of H = 5 was swept for by the headline."""

AUTHOR_COUNTS = (1, 4, 16)
WIDTHS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Block:
    """A question of the study."""

    expected: str
    """Written before the first cell of the block was trained."""

    trials: Callable[[Found], Iterator[Trial]]
    """The cells, as far as those that are there say which."""


def waiting(found: Found, names: tuple[str, ...] = ()) -> Trial | None:
    """The next cell to train, of these blocks or of all; records never wait."""
    for name, block in BLOCKS.items():
        if not names or name in names:
            for trial in block.trials(found):
                if trial not in found and not trial.cell.is_record:
                    return trial
    return None


def sweep(found: Found, base: Trial, rates: tuple[float, ...]) -> Iterator[Trial]:
    """One seed at rates a factor of two apart, which go on beyond an end that is best."""
    while True:
        trials = [replace(base, rate=rate) for rate in rates]
        yield from trials
        if any(trial not in found for trial in trials):
            return
        best = min(rates, key=lambda rate: found[replace(base, rate=rate)])
        if rates[0] < best < rates[-1]:
            return
        rates = (best / 2, *rates) if best == rates[0] else (*rates, best * 2)


def best_rate(found: Found, base: Trial) -> float:
    """The best of the rates at which a cell was trained; `ValueError` if it was at none."""
    return min((bits, trial.rate) for trial, bits in found.items() if _but_rate(trial, base))[1]


def optimum(found: Found, base: Trial) -> float | None:
    """The rate at the bottom of a parabola in the logarithm of the rate through the best rate and
    the two beside it; None if the best is at an end.
    """
    tried = sorted((trial.rate, bits) for trial, bits in found.items() if _but_rate(trial, base))
    rates, ends = [math.log(rate) for rate, _ in tried], [bits for _, bits in tried]
    place = ends.index(min(ends))
    if not 0 < place < len(ends) - 1 or not all(map(math.isfinite, ends[place - 1 : place + 2])):
        return None
    (left, middle, right), (low, least, high) = (
        each[place - 1 : place + 2] for each in (rates, ends)
    )
    rise, fall = (high - least) * (middle - left), (low - least) * (right - middle)
    bent = rise * (middle - left) - fall * (right - middle)
    return math.exp(middle - bent / (rise + fall) / 2)


def _but_rate(trial: Trial, base: Trial) -> bool:
    return replace(trial, rate=base.rate) == base


def _least(found: Found, base: Trial) -> float | None:
    """Bits per byte at the best rate; None if none is trained."""
    return min((bits for trial, bits in found.items() if _but_rate(trial, base)), default=None)


# ---- the blocks


def _speeds(found: Found) -> Iterator[Trial]:
    for seed in SEEDS:
        yield from (replace(LOCAL, seed=seed, speeds=speeds) for speeds in ((), *UNLIKE))


def _overlap(found: Found) -> Iterator[Trial]:
    late = replace(LOCAL, arrival="a round late")
    for seed in SEEDS:
        yield from (replace(each, seed=seed) for each in (LOCAL, late, DEFAULT))
        yield replace(DEFAULT, arrival="a round late", seed=seed)
    yield replace(late, arrival="not taken in")


def _horizons(found: Found) -> Iterator[Trial]:
    bases = [replace(LOCAL, local_steps=steps, top_k=k) for steps, k in HORIZONS.items()]
    yield from bases
    yield from (replace(base, rate=HORIZON_RATES[base.local_steps]) for base in bases)
    ends = [_least(found, base) for base in bases]
    if None not in ends:
        best = bases[ends.index(min(end for end in ends if end is not None))]
        yield from (replace(best, rate=best_rate(found, best), seed=seed) for seed in SEEDS)


def _wide_speeds(found: Found) -> Iterator[Trial]:
    base = replace(LOCAL, local_steps=10, top_k=HORIZONS[10])
    if _least(found, base) is not None:
        unlike = replace(base, rate=best_rate(found, base), speeds=MORE_UNLIKE)
        yield unlike
        yield replace(unlike, weights="equal")


def _more(found: Found) -> Iterator[Trial]:
    """One seed each, for what the first two blocks leave open."""
    unlike, late = replace(LOCAL, speeds=UNLIKE[1]), replace(LOCAL, arrival="a round late")
    yield replace(unlike, weights="equal")
    yield replace(late, overlap_from=LONG_STEPS // 3)
    yield replace(late, arrival="half a round late")
    yield replace(late, rate=RATE / 2)
    yield replace(unlike, rate=RATE / 2)
    yield replace(DEFAULT, arrival="a round late", overlap_from=LONG_STEPS // 3)


def _weights(found: Found) -> Iterator[Trial]:
    yield from (replace(LOCAL, speeds=UNLIKE[1], weights="equal", seed=seed) for seed in SEEDS)
    yield from (replace(LOCAL, speeds=UNLIKE[0], weights="equal", seed=seed) for seed in SEEDS)


def _unlike_rates(found: Found) -> Iterator[Trial]:
    half = replace(LOCAL, speeds=UNLIKE[1], rate=RATE / 2)
    yield replace(half, weights="equal")
    yield from (replace(half, seed=seed) for seed in SEEDS)
    yield replace(LOCAL, speeds=UNLIKE[0], rate=RATE / 2)


def _authors(found: Found) -> Iterator[Trial]:
    short = replace(LOCAL, steps=STEPS)
    for authors in AUTHOR_COUNTS:
        yield from sweep(found, replace(short, authors=authors), (0.024, 0.048, 0.096))


def _widths(found: Found) -> Iterator[Trial]:
    yield from _at(found, WIDTHS[:-1])


def _widest(found: Found) -> Iterator[Trial]:
    yield from _at(found, WIDTHS[-1:])


def _at(found: Found, widths: tuple[int, ...]) -> Iterator[Trial]:
    for width in widths:
        for base, rates in (
            (LOCAL, (0.024, 0.048, 0.096)),
            (DEFAULT, (0.008, 0.016, 0.032)),
        ):
            starts = rates if width == WIDTHS[0] else tuple(rate / 2 for rate in rates)
            swept = replace(base, steps=STEPS, hidden=width)
            yield from sweep(found, swept, starts)


BLOCKS = {
    "speeds": Block(
        "8, 6, 4, 2 within 0.03 of 5 each; 14, 2, 2, 2 behind by 0.04 to 0.15: weighed by samples, "
        "the mean movement is 6 and 10.4 steps long where 5 each make 5, and more of it is one "
        "author's",
        _speeds,
    ),
    "overlap": Block(
        "local steps a round (5 steps) late behind by 0.03 to 0.15; the default a round (1 step) "
        "late behind by 0.05 to 0.15, by the published cells of 600 steps. Never taken in: behind "
        "by more than 0.5",
        _overlap,
    ),
    "authors": Block(
        "local steps: the best rate is near 0.024 for R = 1, 0.045 for R = 4 and 0.07 for R = 16, "
        "as the mean of more and noisier movements is shorter: not within a factor of 1.5",
        _authors,
    ),
    "widths": Block(
        "both: the best rate falls by 1.4 when the width doubles, as a step with entries of one "
        "size is longer in its largest direction by the root of the width: not within a factor of "
        "1.5 over 64 to 256, and rate ~ 1 / sqrt(width) makes it so",
        _widths,
    ),
    "horizons": Block(
        "H = 2 within 0.05 of H = 5, to either side; H = 10 behind it by 0.00 to 0.06 and H = 20 "
        "by 0.05 to 0.20; the best of rates a factor of two apart is 0.024 for all but H = 20, "
        "where it is 0.012",
        _horizons,
    ),
    "more": Block(
        "14, 2, 2, 2 weighed equally is 0.00 to 0.06 better than by samples. Late commits from a "
        "third of the steps on cost less than half of what they cost from the first on, and half "
        "a round late half of it",
        _more,
    ),
    "weights": Block(
        "written when seed 0 of 14, 2, 2, 2 weighed equally was known, 0.083 ahead of samples: the "
        "other seeds ahead by 0.04 to 0.10; 8, 6, 4, 2 ahead by 0.00 to 0.04",
        _weights,
    ),
    "wide speeds": Block(
        "20, 12, 6, 2 behind 10 each by 0.02 to 0.08: the mean movement is 14.6 steps long; "
        "weighed equally ahead of that by 0.00 to 0.06",
        _wide_speeds,
    ),
    "widest": Block("width 256: as the widths", _widest),
    "half the rate": Block(
        "written when seed 0 of 14, 2, 2, 2 by samples at 0.012 was known, 0.107 ahead of 5 each: "
        "the other seeds ahead by 0.05 to 0.12; weighed equally it is behind that by 0.00 to 0.08, "
        "as its step is half as long; 8, 6, 4, 2 by samples within 0.03 of its end at 0.024",
        _unlike_rates,
    ),
}
"""The blocks in order of importance."""
