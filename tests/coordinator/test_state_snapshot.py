"""A run's state as bytes: nothing forgotten, nothing changed."""

from dataclasses import fields

import pytest

from coordinator.machine.rounds import Rounds
from coordinator.state_snapshot import OF_MEMBERS, MachineState, durable, recall, remember
from protocol.errors import StorageError
from tests.coordinator.machine.driver import RUN, A, B, C, Driver

UNCHANGED = {"_spec", "_no_lapse_before_ms"}
"""Of the member list: what it was made with, and what it reckons from the roster."""


def busy() -> Driver:
    """A machine with something in every field: commits, a round under way, a lapsed member, votes,
    strikes.
    """
    driver = Driver(A, B, C, schedule={"steps": 9}, rounds={"overlap": 1})
    driver.exchange(0, A, B, C)
    driver.apply(A, 0)
    driver.apply(B, 0)
    driver.announce(A, 1)
    driver.hold(B, 1, [A])
    driver.part(C)
    driver.wait(2500)
    return driver


def test_every_field_that_a_machine_changes_is_remembered() -> None:
    machine = busy().machine
    changed = (
        set(vars(machine)) - {"spec", "run_id", "members"} | set(vars(machine.members)) - UNCHANGED
    )
    assert changed == {field.name for field in fields(MachineState)}
    assert set(OF_MEMBERS) == set(vars(machine.members)) - UNCHANGED


def test_a_recalled_machine_is_the_same_and_goes_on_the_same() -> None:
    driver = busy()
    twin = Rounds(driver.machine.spec, RUN)
    recall(twin, remember(driver.machine))
    assert durable(remember(twin)) == durable(remember(driver.machine))
    again = Driver(schedule={"steps": 9}, rounds={"overlap": 1})
    again.machine, again.now_ms = twin, driver.now_ms
    for each in (driver, again):
        each.join(C)
        for round in range(each.machine.decided_round + 1, each.machine.next_round + 3):
            each.exchange(round, A, B, C)
            each.wait(10)
    assert again.effects[-1] == driver.effects[-1]
    assert durable(remember(again.machine)) == durable(remember(driver.machine))
    assert driver.machine.committed > 2


def test_heartbeats_change_nothing_durable() -> None:
    driver = busy()
    before = remember(driver.machine)
    driver.wait(1)
    driver.hello(A)
    assert durable(before) != durable(remember(driver.machine))
    other = busy()
    other.machine.members.renew(A, other.now_ms + 5)
    assert remember(other.machine) != before
    assert durable(remember(other.machine)) == durable(before)


@pytest.mark.parametrize("state", [b"", b"\x80", b"\xc1", b"\xff" * 9])
def test_bytes_that_are_no_state_are_refused(state: bytes) -> None:
    with pytest.raises(StorageError, match="expected a snapshot of a run's state"):
        recall(Rounds(Driver(A).machine.spec, RUN), state)
