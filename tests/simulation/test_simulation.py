"""Fifty seeds of bad luck. To see one: `.venv/bin/python -m tests.simulation.test_simulation SEED`."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.scenario import Scenario

SEEDS = range(50)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_with_faults_keeps_its_promises_and_then_makes_progress(seed: int) -> None:
    outcome = Scenario(seed).run()
    assert outcome.commits >= 10


def test_the_seeds_see_commits_skips_and_restarts() -> None:
    """A simulation in which nothing goes wrong tests nothing."""
    outcomes = [Scenario(seed).run() for seed in range(10)]
    assert sum(outcome.commits for outcome in outcomes) > 100
    assert sum(outcome.skipped for outcome in outcomes) > 10
    assert sum(outcome.restarts for outcome in outcomes) > 10


def fingerprint(seed: int) -> str:
    return hashlib.sha256("\n".join(Scenario(seed).run().log).encode()).hexdigest()


def test_a_seed_is_a_history() -> None:
    assert fingerprint(3) == fingerprint(3) != fingerprint(4)


def test_a_seed_is_the_same_history_under_another_hash_seed() -> None:
    program = "from tests.simulation.test_simulation import fingerprint; print(fingerprint(5))"
    root = Path(__file__).parents[2]
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1] == f"{fingerprint(5)}\n"


if __name__ == "__main__":
    print("\n".join(Scenario(int(sys.argv[1])).run().log))
