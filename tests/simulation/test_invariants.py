"""The simulations notice a machine whose invariants are broken."""

import pytest

from node.gossip.machine.pull_policy import PullPolicy
from tests.simulation.checkers import Violation
from tests.simulation.gossip import gossip
from tests.simulation.gossip_setting import EQUAL, Setting, links_among
from tests.simulation.scenario import Scenario


@pytest.fixture(autouse=True)
def sources_are_never_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PullPolicy, "_busy", lambda policy: set())


def test_a_scenario_ends_with_the_broken_invariant_as_its_violation() -> None:
    with pytest.raises(Violation, match=r"seed 0: 3 pulls from"):
        Scenario(0).run()


def test_a_simulated_gossip_ends_with_the_broken_invariant() -> None:
    star = links_among(*([0, other] for other in range(1, 6)))  # all pull from node 0
    with pytest.raises(AssertionError, match="3 pulls from"):
        gossip(Setting((EQUAL,) * 6, 1_000_000, links=star))
