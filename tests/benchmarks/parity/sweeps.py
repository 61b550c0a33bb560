"""The cells of each sweep of the parity study, and the file of its results.

The study changes the former default one setting at a time. Tries led to it or were meant to better
it. They follow older rules, so compare them with the study's cells only where both say the same.
Nearly all cells of DeMo are records by now (`Cell.is_record`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.benchmarks.parity.cells import FORMER, PUBLISHED, Cell, Task

_SEEDS = (0, 1, 2)

LONG = replace(FORMER, steps=2000, authors=8)
LONG_EARLY = replace(LONG, top_k=25, early_rounds=200, early_top_k=64, warmup_steps=25)
"""A tenth fewer bytes than `LONG`, more of them in the beginning."""

LONG_8 = replace(LONG, top_k=8, learning_rate=0.002)
LONG_8_EARLY = replace(LONG_8, top_k=7, early_rounds=200, early_top_k=16)
"""No more bytes than `LONG_8`, more of them in the beginning."""

LONG_7_VOTES = replace(LONG_8_EARLY, vote_rounds=2)
LONG_6_VOTES = replace(LONG_7_VOTES, top_k=6)
"""The same with every vote counting in two steps; the second has a tenth fewer bytes."""

ADAMW = Cell("adamw", 0.0015, 2000, adam_decays=(0.9, 0.99))
ADAMW_95 = replace(ADAMW, adam_decays=(0.9, 0.95))


def study_cells() -> Iterator[Cell]:
    """All cells of the study, in order of importance."""
    yield from _deciding_cells()
    yield from _rate_cells()
    yield from _overlap_cells()
    yield from _author_cells()
    yield from _change_cells()


def _deciding_cells() -> Iterator[Cell]:
    """Three seeds each: AdamW, the former default, a larger k in the first rounds only, k = 8, the
    votes of two rounds in a step, and the delay of a round.
    """
    for seed in _SEEDS:
        for cell in (
            ADAMW,
            LONG,
            LONG_EARLY,
            LONG_8,
            LONG_7_VOTES,
            LONG_6_VOTES,
            overlapping(LONG, 300),
            overlapping(LONG_8, 300),
        ):
            yield replace(cell, seed=seed)


def _rate_cells() -> Iterator[Cell]:
    """Both methods at other rates, AdamW at other settings too, so that it is tuned as well."""
    yield from (replace(ADAMW, learning_rate=rate) for rate in (0.001, 0.002))
    yield from (replace(ADAMW, final_fraction=fraction) for fraction in (0.0, 0.3))
    yield from (replace(ADAMW_95, seed=seed) for seed in _SEEDS)
    yield from (replace(ADAMW_95, learning_rate=rate) for rate in (0.00075, 0.003))
    yield replace(ADAMW_95, weight_decay=0.1)
    yield from (replace(ADAMW_95, learning_rate=rate, warmup_steps=25) for rate in (0.0015, 0.003))
    rates = {2: (0.002, 0.003), 8: (0.0015, 0.003), 128: (0.003, 0.005)}
    for top_k, of_k in rates.items():
        yield from (replace(LONG, top_k=top_k, learning_rate=rate) for rate in of_k)


def _overlap_cells() -> Iterator[Cell]:
    """The first overlapping round from which a delay costs nothing, and another k."""
    yield from (overlapping(LONG, first) for first in (0, 200))
    yield overlapping(replace(LONG, top_k=64, learning_rate=0.004), 300)


def _author_cells() -> Iterator[Cell]:
    """The same batch cut among more or fewer authors, and the same bytes in all from fewer or more
    of them.
    """
    yield from (replace(LONG, authors=authors) for authors in (1, 16))
    yield from (replace(FORMER, authors=authors) for authors in (1, 16))
    yield from (
        replace(FORMER, authors=authors, top_k=top_k) for authors, top_k in ((8, 16), (16, 8))
    )


def _change_cells() -> Iterator[Cell]:
    """One change at a time of the former default and of the baselines, at 600 steps."""
    adamw, sign = Cell("adamw", 0.0015, 600), replace(FORMER, update="sign", learning_rate=0.001)
    yield from (replace(adamw, learning_rate=rate) for rate in (0.0015, 0.003, 0.006))
    yield replace(adamw, weight_decay=0.1)
    yield from (Cell("signum", rate, 600, momentum_decay=0.9) for rate in (0.00025, 0.0005, 0.001))
    yield from (replace(FORMER, learning_rate=rate) for rate in (0.002, 0.003, 0.005))
    yield from (replace(FORMER, top_k=top_k) for top_k in (2, 8, 128))
    yield from (replace(FORMER, value_bits=bits) for bits in (2, 4, 8))
    yield from (replace(FORMER, alpha=alpha) for alpha in (0.2, 0.5))
    yield from (replace(FORMER, momentum_decay=decay) for decay in (0.95, 0.99, 0.995))
    yield replace(FORMER, recency=0.0)
    yield from (replace(FORMER, gradients=scale) for scale in ("plain", "unit"))
    yield from (
        replace(FORMER, overlap=1, guess=guess) for guess in ("none", "own", "payload", "last")
    )
    yield sign
    yield replace(sign, transform="float")
    yield from (replace(sign, transform="off", learning_rate=rate) for rate in (0.001, 0.003))


def overlapping(cell: Cell, first_round: int) -> Cell:
    return replace(cell, overlap=1, guess="own", overlap_from=first_round)


_STEADY = replace(FORMER, recency=0.0)
"""The former default with one beta throughout. These results kept the difference between a sent
coefficient and its sign in the momentum."""


def try_cells() -> Iterator[Cell]:
    """The published rule, the steps from it to the former default, and attempts to better it."""
    yield from _sign_cells()
    yield from _steady_cells()
    yield from _longer_cells()
    yield from _early_cells()
    yield from (replace(LONG, top_k=8, seed=seed) for seed in (1, 2))
    yield replace(overlapping(LONG, 0), seed=1)
    yield from (replace(LONG, overlap=1, guess="own", late=0.5, seed=seed) for seed in _SEEDS)
    yield replace(LONG, warmup_steps=25)
    yield replace(LONG, top_k=64, learning_rate=0.004)


def _longer_cells() -> Iterator[Cell]:
    """Twice as many steps: does k = 8 catch up?"""
    yield from (replace(LONG_8, steps=4000, seed=seed) for seed in _SEEDS)
    yield from (Cell("adamw", 0.001, 4000, seed=seed) for seed in _SEEDS)
    yield from (Cell("adamw", 0.0015, 4000, seed=seed) for seed in (0, 1))


def _early_cells() -> Iterator[Cell]:
    """A larger k throughout or in the first rounds only: other lengths, warm-ups, ends and
    memories, more rounds' votes, and overlap afterwards.
    """
    for seed in _SEEDS:
        yield replace(LONG, top_k=64, learning_rate=0.004, warmup_steps=25, seed=seed)
        yield replace(LONG_8_EARLY, seed=seed)
        yield replace(overlapping(LONG_EARLY, 300), seed=seed)
    yield replace(LONG_EARLY, warmup_steps=50)
    yield replace(LONG_8_EARLY, warmup_steps=25)
    yield replace(LONG_8, top_k=6, early_rounds=600, early_top_k=12)
    yield from (replace(LONG_8_EARLY, final_fraction=fraction) for fraction in (0.0, 0.3))
    yield replace(LONG_8_EARLY, top_k=6, final_fraction=0.3)
    yield replace(LONG_8_EARLY, recency=2.0)
    yield replace(LONG_8_EARLY, weight_decay=0.1)
    yield overlapping(LONG_8_EARLY, 300)
    yield from (replace(cell, vote_rounds=3) for cell in (LONG_7_VOTES, LONG_6_VOTES))
    yield from (replace(LONG_6_VOTES, vote_rounds_from=1000, seed=seed) for seed in _SEEDS)
    yield replace(LONG, vote_rounds=2)
    yield overlapping(LONG_7_VOTES, 300)


def _sign_cells() -> Iterator[Cell]:
    long = replace(PUBLISHED, steps=2000)
    unit = replace(PUBLISHED, learning_rate=0.003, update="orthogonal", gradients="unit")
    yield from (replace(PUBLISHED, learning_rate=rate) for rate in (0.0005, 0.001, 0.002, 0.004))
    yield replace(PUBLISHED, momentum_decay=0.99)
    yield replace(PUBLISHED, top_k=128)
    yield replace(PUBLISHED, overlap=1, guess="own")
    yield from (replace(PUBLISHED, transform=transform) for transform in ("float", "off"))
    yield replace(PUBLISHED, gradients="unit")
    yield long
    yield from (replace(long, authors=8, learning_rate=rate) for rate in (0.0005, 0.001))
    yield replace(long, authors=8, final_fraction=0.0)
    yield unit
    yield replace(unit, steps=2000, authors=8, final_fraction=0.0)


def _steady_cells() -> Iterator[Cell]:
    long = replace(_STEADY, steps=2000, authors=8)
    delayed = replace(_STEADY, overlap=1)
    yield from (replace(_STEADY, learning_rate=rate) for rate in (0.002, 0.005))
    yield from (replace(_STEADY, momentum_decay=decay) for decay in (0.9, 0.95, 0.99))
    yield from (replace(_STEADY, value_bits=bits) for bits in (2, 4))
    yield from (replace(_STEADY, alpha=alpha) for alpha in (0.2, 0.5))
    yield from (replace(_STEADY, top_k=top_k) for top_k in (8, 64, 128))
    yield replace(_STEADY, top_k=8, learning_rate=0.0015)
    yield replace(_STEADY, top_k=8, momentum_decay=0.95)
    yield from (replace(_STEADY, authors=authors) for authors in (1, 16))
    yield replace(_STEADY, authors=8, top_k=16)
    yield from (replace(delayed, guess=guess) for guess in ("none", "own", "payload"))
    yield replace(delayed, guess="own", momentum_decay=0.95)
    yield from (replace(long, seed=seed) for seed in _SEEDS)
    yield replace(long, momentum_decay=0.95)
    yield replace(long, top_k=8, learning_rate=0.005)
    yield replace(long, top_k=64, learning_rate=0.005)
    yield from (replace(long, top_k=64, learning_rate=0.004, seed=seed) for seed in _SEEDS)
    yield from (
        replace(long, overlap=1, guess="own", learning_rate=rate) for rate in (0.002, 0.003)
    )


def _try_32_cells() -> Iterator[Cell]:
    """Half the rounds, each of twice the text, at the bytes of 2000 rounds with k = 8."""
    yield replace(_STEADY, learning_rate=0.004, steps=1000, top_k=16, authors=8, warmup_steps=40)


def _try_64_cells() -> Iterator[Cell]:
    """A quarter of the rounds, each of four times the text, and both methods at such a batch for
    600 steps.
    """
    for rate in (0.003, 0.005):
        yield replace(_STEADY, learning_rate=rate, steps=500, authors=8, warmup_steps=20)
    yield Cell("adamw", 0.003, 600)
    yield replace(PUBLISHED, learning_rate=0.002, authors=8)


def _local_cells() -> Iterator[Cell]:
    """Local steps, and the former default at about the same bytes of a step; twenty rounds of
    them.
    """
    local = Cell("local_steps", 0.012, 300, top_k=192, local_steps=5)
    yield local
    yield replace(FORMER, steps=300)
    yield replace(local, steps=100, warmup_steps=15)


def _local_80_cells() -> Iterator[Cell]:
    """The former default in the twenty rounds of local steps: a batch five times as large."""
    yield replace(FORMER, steps=20, top_k=192, learning_rate=0.006, warmup_steps=3)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Cells that are trained on one task and may be compared."""

    cells: Callable[[], Iterator[Cell]]
    task: Task
    results: str
    """File of their results in the repository. Sweeps of different tasks may share one."""


_TRIES = "docs/results/data/parity-tries.jsonl.xz"


_LOCAL_STEPS = "docs/results/data/local-steps.jsonl"


SWEEPS = {
    "study": Sweep(study_cells, Task(), "docs/results/data/parity.jsonl"),
    "tries": Sweep(try_cells, Task(), _TRIES),
    "tries32": Sweep(_try_32_cells, Task(batch_samples=32), _TRIES),
    "tries64": Sweep(_try_64_cells, Task(batch_samples=64), _TRIES),
    "local": Sweep(_local_cells, Task(point_steps=50), _LOCAL_STEPS),
    "local80": Sweep(_local_80_cells, Task(batch_samples=80, point_steps=10), _LOCAL_STEPS),
}
"""Sweeps by name."""
