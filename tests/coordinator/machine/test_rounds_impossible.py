"""Events that only the machine itself can ask for, out of their order: the error names state, event
and history.
"""

import pytest

from coordinator.machine.events.inputs import Concluded, Event, InstantReached
from protocol.errors import LocalProtocolError
from tests.coordinator.machine.driver import A, B, Driver
from tests.simulation.checkers import portrait


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (InstantReached(0, "publish_by"), r"expected \('bell', 1001000\)"),
        (InstantReached(1, "bell"), "expected an instant of a round below 1"),
        (Concluded(), "expected a finished run"),
    ],
)
def test_an_impossible_event_raises_with_state_event_and_history(
    event: Event, expected: str
) -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    before = portrait(driver.machine)
    with pytest.raises(LocalProtocolError, match=expected) as caught:
        driver.tell(event)
    text = str(caught.value)
    assert f"got {event}; state: decided -1, undecided [(0, 'opened')]" in text
    assert text.index("Ready(") < text.index("Announced(")
    assert portrait(driver.machine) == before


def test_an_instant_that_was_reached_is_not_reached_again() -> None:
    driver = Driver(A, B)
    driver.wait(1000)
    with pytest.raises(LocalProtocolError, match=r"expected \('publish_by', 1001500\), got"):
        driver.tell(InstantReached(0, "bell"))


def test_time_never_runs_backwards() -> None:
    driver = Driver(A, B)
    driver.now_ms -= 1
    with pytest.raises(LocalProtocolError, match="expected time at or after 1000000, got 999999"):
        driver.announce(A, 0)


def test_an_instant_of_a_round_that_is_decided_meanwhile_is_ignored() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    assert driver.tell(InstantReached(0, "bell")) == []
