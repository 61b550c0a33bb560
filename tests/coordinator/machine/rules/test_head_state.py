"""A run that goes on only when a node comes back says so and names it, in virtual time."""

import pytest

from coordinator.machine.events.inputs import Restarted
from coordinator.machine.rules.head_state import held_by_nobody
from coordinator.machine.state.membership import FORMER_KEPT
from coordinator.status_document import status
from protocol.ids import PeerId
from tests.coordinator.machine.driver import A, B, C, D, Driver

LEASE_MS = 10_000


def driver_of(*peers: PeerId) -> Driver:
    return Driver(
        *peers,
        membership={"lease_ms": LEASE_MS, "start_members": 1},
        rounds={"quorum": 1, "copies_min": 0, "compute_ms": 10**6},
    )


def lost(driver: Driver) -> str:
    machine = driver.machine
    words = held_by_nobody(machine, driver.now_ms)
    document = status(machine, [], driver.now_ms)
    assert document["state_lost"] == words
    assert document["reason"] == words or not words
    return words


def trained(*peers: PeerId, rounds: int = 3) -> Driver:
    """A run of some rounds, all of which every peer has applied."""
    driver = driver_of(*peers)
    for round in range(rounds):
        driver.exchange(round, *peers)
        for peer in peers:
            driver.apply(peer, round)
    return driver


def beat(driver: Driver, peer: PeerId, seconds: int) -> None:
    """Time in which this node alone beats."""
    for _ in range(seconds):
        driver.wait(1000)
        driver.machine.members.renew(peer, driver.now_ms)


def test_a_fresh_disk_does_not_begin_again_and_the_status_names_who_had_the_state() -> None:
    driver = trained(A)
    driver.leave(A)
    driver.wait(2 * 3_600_000)
    assert lost(driver) == "", "nobody waits for it"
    driver.hello(B)
    assert lost(driver) == "", "it may have the state"
    beat(driver, B, LEASE_MS // 1000)
    words = lost(driver)
    assert words.startswith("round 2's state is held by nobody: 1 member waits with an older one")
    assert (
        f"bring back node {A} ('node 1', last seen 2 hours ago by the run's clock), with its disk"
        in words
    )
    assert driver.machine.state.head_round == 2
    driver.join(A)
    assert lost(driver) == ""


def test_two_disks_lost_under_the_same_keys_are_noticed_after_a_lease() -> None:
    driver = trained(A, B)
    driver.lapse(A, B)
    driver.hello(A)
    driver.hello(B)
    beat(driver, A, LEASE_MS // 1000 - 1)
    driver.machine.members.renew(B, driver.now_ms)
    assert lost(driver) == ""
    beat(driver, A, 2)
    words = lost(driver)
    assert "2 members wait" in words
    assert f"node {A} (" in words
    assert f" or node {B} (" in words


def test_a_disk_lost_within_the_lease_is_noticed_too() -> None:
    driver = trained(A)
    driver.part(A)
    driver.hello(A)
    beat(driver, A, LEASE_MS // 1000 + 1)
    assert "no node that had it is known here" in lost(driver)


def test_a_member_that_is_away_or_at_work_still_holds_the_state() -> None:
    driver = trained(A, B)
    driver.part(A)
    driver.leave(B)
    driver.hello(C)
    driver.wait(LEASE_MS - 1)
    assert lost(driver) == ""
    working = trained(A)
    working.hello(C)
    beat(working, A, 30)
    assert lost(working) == ""


def test_a_run_without_a_commit_has_genesis_on_every_node() -> None:
    driver = driver_of()
    driver.hello(A)
    beat(driver, A, 60)
    assert lost(driver) == ""


def test_a_state_older_than_the_head_is_named_as_such() -> None:
    driver = trained(A, rounds=2)
    driver.exchange(2, A)
    driver.lapse(A)  # it went before it said that it applied round 2
    driver.hello(B)
    beat(driver, B, LEASE_MS // 1000)
    assert (
        f"node {A} ('node 1', last seen 10 seconds ago by the run's clock), which had round 1, with"
        in lost(driver)
    )


def test_of_many_former_members_those_with_the_newest_states_are_kept_and_three_named() -> None:
    driver = trained(A, B, C, D)
    driver.leave(A, B, C, D)
    former = driver.machine.state.members.former
    for number in range(100, 140):
        driver.hello(PeerId(f"{number:032x}"))
        driver.leave(PeerId(f"{number:032x}"))
    assert set(former) == {A, B, C, D}, "who never had a state is not remembered"
    assert len(former) <= FORMER_KEPT
    driver.hello(PeerId("f" * 32))
    beat(driver, PeerId("f" * 32), LEASE_MS // 1000)
    assert lost(driver).count("node 0000") == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_a_restart_of_the_coordinator_does_not_forget_it(restarts: bool) -> None:
    driver = trained(A)
    driver.leave(A)
    driver.hello(B)
    beat(driver, B, LEASE_MS // 1000)
    if restarts:
        driver.tell(Restarted())
    assert f"bring back node {A}" in lost(driver)
