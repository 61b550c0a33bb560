"""A run of each algorithm begins with values of its own, and the run file's are local steps'."""

import pytest

from lockstep.presets import PRESETS, run_of
from protocol.errors import SettingsError
from protocol.runfile import RunSpec


def test_local_steps_begin_with_the_run_files_defaults() -> None:
    assert run_of("local_steps") == RunSpec()
    assert RunSpec().algorithm.facts.steps_within_round
    assert RunSpec().rounds.overlap == 0


def test_given_values_take_precedence_over_those_an_algorithm_begins_with() -> None:
    assert run_of("demo").algorithm.top_k == 32
    spec = run_of("demo", rounds={"batch_samples_max": 8}, schedule={"steps": 10})
    assert (spec.rounds.batch_samples_max, spec.schedule.steps) == (8, 10)
    assert spec.schedule.learning_rate == PRESETS["demo"]["schedule"]["learning_rate"]


def test_a_name_of_no_algorithm_is_refused_and_the_ones_there_are_named() -> None:
    with pytest.raises(SettingsError, match="expected 'demo', 'local_steps' or 'gossip-adam'"):
        run_of("adam")
