"""The cells of the study, and those from which the learning rates were chosen."""

from dataclasses import replace

from tests.benchmarks.gossip_adam.train import Cell

FIRST, SHORT, LONG, LONGEST = 50, 200, 400, 1600
SEEDS = (0, 1, 2)
RATE_SEED = 9
"""The seed of the cells that chose the rates; not one of the study's."""

WINDOW_BETAS = (0.656, 0.922)
"""0.9 and 0.98 to the power of four: with windows of four gradients the moments forget as fast as
Adam's."""

RATE_CELLS = [
    *(Cell("adamw", SHORT, rate, RATE_SEED) for rate in (0.004, 0.008, 0.016, 0.032)),
    *(Cell("gossip", SHORT, rate, RATE_SEED) for rate in (0.008, 0.016, 0.032)),
    *(
        Cell("gossip", SHORT, rate, RATE_SEED, accumulate=4)
        for rate in (0.004, 0.008, 0.016, 0.032)
    ),
    *(
        Cell("gossip", SHORT, rate, RATE_SEED, accumulate=4, betas=WINDOW_BETAS)
        for rate in (0.008, 0.016, 0.032)
    ),
    *(Cell("adamw", LONGEST, rate, RATE_SEED) for rate in (0.002, 0.004, 0.008, 0.016)),
    *(Cell("gossip", LONGEST, rate, RATE_SEED) for rate in (0.004, 0.008, 0.016)),
    *(
        Cell("gossip", LONGEST, rate, RATE_SEED, accumulate=4, betas=WINDOW_BETAS)
        for rate in (0.004, 0.008, 0.016)
    ),
]

SYNCHRONOUS = Cell("adamw", SHORT, 0.008, 0)
PLAIN = Cell("gossip", SHORT, 0.016, 0)
WINDOWS = replace(PLAIN, accumulate=4, betas=WINDOW_BETAS)

ROWS = {
    "synchronous Adam, 50 steps": replace(SYNCHRONOUS, steps=FIRST),
    "plain, 50 steps": replace(PLAIN, steps=FIRST),
    "synchronous Adam": SYNCHRONOUS,
    "plain": PLAIN,
    "plain, complete": replace(PLAIN, topology="complete"),
    "plain, int8": replace(PLAIN, wire="int8"),
    "plain, a mean every 50 steps": replace(PLAIN, mean_every=50),
    "plain, a mean every 50 steps, int8 to it": replace(PLAIN, mean_every=50, wire="int8-to-mean"),
    "plain, mixing-only rounds": replace(PLAIN, critical=1.2),
    "accumulate 4": WINDOWS,
    "synchronous Adam, 400 steps": replace(SYNCHRONOUS, steps=LONG),
    "plain, 400 steps": replace(PLAIN, steps=LONG),
    "synchronous Adam, 1600 steps": replace(SYNCHRONOUS, steps=LONGEST),
    "plain, 1600 steps": replace(PLAIN, steps=LONGEST, learning_rate=0.008),
    "accumulate 4, 1600 steps": replace(WINDOWS, steps=LONGEST, learning_rate=0.004),
}
"""The study's cells by title, with seed 0: one-peer exponential, float16 and 200 steps where not
named.
"""

COMPARISONS = {
    "complete, against one-peer exponential": ("plain, complete", "plain"),
    "accumulate 4, against plain": ("accumulate 4", "plain"),
    "plain, against synchronous Adam, 50 steps": (
        "plain, 50 steps",
        "synchronous Adam, 50 steps",
    ),
    "plain, against synchronous Adam": ("plain", "synchronous Adam"),
    "plain, against synchronous Adam, 400 steps": (
        "plain, 400 steps",
        "synchronous Adam, 400 steps",
    ),
    "plain, against synchronous Adam, 1600 steps": (
        "plain, 1600 steps",
        "synchronous Adam, 1600 steps",
    ),
    "accumulate 4, against plain, 1600 steps": ("accumulate 4, 1600 steps", "plain, 1600 steps"),
    "accumulate 4, against synchronous Adam": ("accumulate 4", "synchronous Adam"),
    "int8 differences, against whole float16": ("plain, int8", "plain"),
    "int8 to the newest mean, against whole float16": (
        "plain, a mean every 50 steps, int8 to it",
        "plain, a mean every 50 steps",
    ),
    "with mixing-only rounds, against without": ("plain, mixing-only rounds", "plain"),
}
"""Titles of `ROWS` whose ends are compared."""

STUDY = [replace(cell, seed=seed) for cell in ROWS.values() for seed in SEEDS]
