"""Seeds of bad luck: twenty that stay, and forty that each landing draws among five hundred, which
`make soak` plays all.

The whole history of one seed: `python -m tests.simulation --seeds 1 --first-seed N
--history`.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.faults import Faults
from tests.simulation.scenario import ROUNDS
from tests.simulation.verdicts import Verdict, judge, processes, summed_up
from tests.support.draw import Draw

SEEDS, QUICK, DRAWN = 500, 12, 40
"""Seeds in all, those of `make test`, and those that one landing draws."""

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with processes(min(2, os.cpu_count() or 1)) as pool:
        yield pool


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    """The verdicts on the blocks that this process has run."""
    return []


@pytest.mark.timeout(900)
def test_runs_with_faults_keep_their_promises_and_then_make_progress(
    pool: ProcessPoolExecutor, verdicts: list[Verdict]
) -> None:
    verdicts += pool.map(judge, range(QUICK), chunksize=5)
    assert not violations(verdicts)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drawn_runs_keep_the_same_promises(pool: ProcessPoolExecutor, draw: Draw) -> None:
    seeds = draw.seeds("faults", DRAWN, SEEDS)
    assert not violations(pool.map(judge, seeds, chunksize=5))


@pytest.mark.timeout(900)
def test_runs_with_local_steps_keep_the_same_promises(pool: ProcessPoolExecutor) -> None:
    keep_promises_with_local_steps(pool, range(4))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drawn_runs_with_local_steps_keep_the_same_promises(
    pool: ProcessPoolExecutor, draw: Draw
) -> None:
    keep_promises_with_local_steps(pool, draw.seeds("local steps", DRAWN // 2, SEEDS))


def keep_promises_with_local_steps(pool: ProcessPoolExecutor, seeds: Sequence[int]) -> None:
    found = list(pool.map(partial(judge, local_steps=True), seeds, chunksize=2))
    assert not violations(found)
    assert sum(verdict.commits for verdict in found) > 20 * len(seeds)


def violations(verdicts: Iterable[Verdict]) -> list[str]:
    return [verdict.violation for verdict in verdicts if verdict.violation]


def test_the_seeds_see_every_fault_and_every_end(verdicts: list[Verdict]) -> None:
    """A simulation in which nothing goes wrong tests nothing."""
    assert len(verdicts) == QUICK, "it judges what the first test of this file has seen"
    faults: Counter[str] = sum((verdict.faults for verdict in verdicts), Counter())
    kinds = {*Faults.KINDS, "lost", "doubled", "corrupt", "broken"}
    assert {kind: faults[kind] for kind in sorted(kinds) if not faults[kind]} == {}, summed_up(
        verdicts
    )
    assert max(verdict.nodes for verdict in verdicts) >= 8
    assert sum(verdict.rounds >= ROUNDS for verdict in verdicts) > len(verdicts) / 2
    assert sum(verdict.rounds for verdict in verdicts) > sum(
        verdict.commits for verdict in verdicts
    ) + 2 * len(verdicts)


@pytest.mark.parametrize("asked", [["--first-seed", "15"], ["--first-seed", "100", "--sums"]])
def test_a_seed_is_the_same_history_in_another_process_under_another_hash_seed(
    asked: list[str],
) -> None:
    def told(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "1", *asked]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout.splitlines()[-1]

    history = told("1")
    assert " violations=0 history=" in history
    assert told("2") == history


def test_the_command_sums_up_and_tells_seeds_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--first-seed", "4"]) == 0
    first = capsys.readouterr().out
    assert first.startswith("seeds=1 rounds=")
    assert main(["--seeds", "1", "--first-seed", "8"]) == 0
    assert capsys.readouterr().out.split()[-1] != first.split()[-1]
