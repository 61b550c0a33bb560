"""Whole runs with summers: the real machines, swarms and summers, with every fault of the
simulation, and with a third of the nodes hostile.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from tests.simulation import summers
from tests.simulation.test_simulation import violations
from tests.simulation.verdicts import judge, processes
from tests.support.draw import Draw

SEEDS, QUICK, DRAWN = 500, 2, 4
"""Seeds in all, those of `make test`, and those that one landing draws."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with processes(2) as pool:
        yield pool


@pytest.mark.timeout(900)
def test_runs_with_summers_keep_their_promises(pool: ProcessPoolExecutor) -> None:
    keep_promises(pool, range(QUICK))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drawn_runs_with_summers_keep_their_promises(pool: ProcessPoolExecutor, draw: Draw) -> None:
    keep_promises(pool, draw.seeds("sums", DRAWN, SEEDS))


def keep_promises(pool: ProcessPoolExecutor, seeds: Sequence[int]) -> None:
    found = list(pool.map(partial(judge, sums=True), seeds, chunksize=2))
    assert not violations(found)
    assert sum(verdict.commits for verdict in found) > 20 * len(seeds)


@pytest.mark.timeout(900)
def test_a_third_of_lying_summers_costs_little() -> None:
    assert summers.cast_of(0).kind == "liars"
    assert not violations([summers.judge(0)])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_third_of_hostile_summers_costs_little(pool: ProcessPoolExecutor, draw: Draw) -> None:
    seeds = draw.seeds("hostile summers", DRAWN, SEEDS)
    assert not violations(list(pool.map(summers.judge, seeds)))
