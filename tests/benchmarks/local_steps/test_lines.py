"""Local steps over shaped lines: all rounds overlap, or none, and medians are compared."""

from pathlib import Path

import pytest

from tests.benchmarks.local_steps.lines import Found, spec_of, summed_up


@pytest.mark.parametrize("overlap", [0, 1])
def test_all_rounds_overlap_or_none(overlap: int, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, 20, overlap)
    assert spec.algorithm.name == "local_steps"
    assert {spec.rounds.overlap_at(round) for round in range(20)} == {overlap}


def test_the_medians_of_both_are_compared() -> None:
    runs = [
        Found(overlap, samples, 0.1, 100, 10.0, nats)
        for overlap, samples, nats in (
            (0, 10.0, 2.0),
            (1, 30.0, 2.2),
            (0, 20.0, 2.0),
            (1, 30.0, 2.2),
        )
    ]
    found = summed_up(runs)
    assert found["overlap_over_none"] == {
        "samples_per_second": 2.0,
        "rounds_per_second": 1.0,
        "validation_nats": 1.1,
    }
    assert [run["overlap"] for run in found["runs"]] == [0, 1, 0, 1]
