"""Gossip Adam beside DeMo: predictions beside measurements, and both for real on two lines."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.gossip import beside_demo
from tests.benchmarks.gossip.beside_demo import (
    DEMO,
    GOSSIP,
    HOMES,
    METHODS,
    ROUNDS,
    beside,
    cell,
    document,
    predicted_crossover,
    trials,
)
from tests.benchmarks.gossip_adam.rounds import crossover, rounds
from tests.benchmarks.wan.links import Trial, run_spec
from tests.benchmarks.wan.results import Measurement, parameters_of
from tests.lockstep.wan.lab.fixture import needs_ground


def measurement(method: str, seconds: float, homes: int, profile: str = "cable") -> Measurement:
    return Measurement(
        profile=profile,
        method=method,
        nodes=homes,
        parameters=parameters_of("20m"),
        compute_s=2.0,
        step_s=(seconds,) * 3,
        up_bytes=1e6,
        down_bytes=1e6,
        up_bytes_most=1e6,
        computing=0.5,
        computing_alone=0.5,
        arithmetic_s=0.0,
        arithmetic_cpu_s=0.0,
        facts={},
    )


def found(demo_s: float, gossip_s: float, homes: int, profile: str = "cable") -> list[Any]:
    return [
        cell(Trial(profile, method, homes), measurement(method, seconds, homes, profile))
        for method, seconds in ((DEMO, demo_s), (GOSSIP, gossip_s))
    ]


def test_every_kind_of_line_and_number_of_homes_is_measured_with_both() -> None:
    everything = trials(quick=False)
    places = {(each.profile, each.nodes, each.method) for each in everything}
    expected = {
        (line, homes, method)
        for line in ("cable", "fibre")
        for homes in HOMES
        for method in METHODS
    }
    assert places == expected
    assert len(everything) == len(places)


def test_a_trial_of_gossip_adam_is_a_valid_run_without_a_mean_on_its_way() -> None:
    spec = run_spec(Trial("cable", GOSSIP, 4))
    assert spec.algorithm.facts.sends_parameters
    assert not any(spec.algorithm.mixing.is_mean(step, spec.schedule.steps) for step in range(99))
    assert not run_spec(Trial("cable", DEMO, 4)).algorithm.facts.sends_parameters


@pytest.mark.parametrize("homes", HOMES)
def test_predictions_are_those_of_the_study_where_the_arithmetic_costs_nothing(homes: int) -> None:
    predicted = [each["predicted_s"] for each in found(5.0, 5.0, homes)]
    assert predicted == pytest.approx([each.seconds for each in rounds("cable", homes)], rel=0.02)


def test_the_quicker_one_is_named_with_its_rounds_in_equal_time() -> None:
    (row,) = beside(found(8.0, 4.0, 4))
    assert row["measured_quicker"] == "gossip-adam"
    assert row["measured_gossip_rounds"] == 2 * ROUNDS
    assert row["predicted_quicker"] == "demo"
    assert row["predicted_gossip_rounds"] < ROUNDS
    assert beside(found(8.0, 4.0, 4)[:1]) == [], "one of them is not measured yet"


def test_the_crossover_is_the_least_number_of_homes_in_both() -> None:
    cells = [*found(3.0, 9.0, 4), *found(6.0, 9.0, 8), *found(12.0, 9.0, 16)]
    crossed = document(cells, [])["crossover"]
    assert crossed == {"cable": {"measured_homes": 16, "predicted_homes": crossover("cable")}}
    (never,) = document(found(3.0, 9.0, 4), [])["crossover"].values()
    assert never["measured_homes"] is None
    far = [measurement(DEMO, 1.0, 4, "fibre"), measurement(GOSSIP, 1.0, 4, "fibre")]
    assert predicted_crossover(far) == crossover("fibre")


@needs_ground
@pytest.mark.slow
def test_both_train_on_two_lines_and_the_document_has_them_beside_each_other(
    tmp_path: Path,
) -> None:
    cells: list[dict[str, Any]] = []
    path = tmp_path / "beside.json"
    beside_demo.measure(trials(quick=True), cells, path)
    assert [each["method"] for each in cells] == list(METHODS.values())
    assert all(each["measured_s"] > 0.05 for each in cells)
    assert all(each["measured_up_bytes"] > 0 for each in cells)
    (row,) = beside(cells)
    assert row["measured_gossip_rounds"] > 0
    before = path.read_bytes()
    beside_demo.measure(trials(quick=True), cells, path)
    assert path.read_bytes() == before, "known cells are not measured again"
