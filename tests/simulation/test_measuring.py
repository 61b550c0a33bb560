"""Members of simulated runs measure the validation loss in turn, through faults."""

import pytest

from tests.simulation.scenario import Scenario


@pytest.mark.parametrize("seed", [3, 11])
def test_losses_are_measured_of_the_states_that_they_are_said_of(seed: int) -> None:
    scenario = Scenario(seed)
    outcome = scenario.run()
    judged = scenario.coordinator.loss_judge
    assert judged.measured >= 1, f"nothing was measured in {outcome.commits} commits"
