"""Predicted beside measured time of a round, and the reason when they part."""

from typing import Any

import pytest

from coordinator.forecast import forecast
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import payload_bytes
from protocol.planner.sums import exchanged_bytes
from tests.coordinator.machine.driver import A, B, C, Driver
from tests.coordinator.machine.summing import SummingDriver

COMPUTE_MS, EXCHANGE_MS = 600, 250


def steady(count: int, /, **sections: dict[str, Any]) -> Driver:
    """Three members with passes of 0.6 s, whose payloads reach others in 0.25 s."""
    section = {"overlap": 1, "payload_bytes_max": 10**8}
    sections["rounds"] = section | sections.pop("rounds", {})
    driver = Driver(A, B, C, **sections)
    for round in range(count):
        exchange(driver, round)
    return driver


def exchange(driver: Driver, round: int) -> None:
    spec, undecided = driver.machine.spec, driver.machine.undecided(round)
    assert undecided is not None
    size = int(payload_bytes(spec.algorithm, size_of(spec.model)))
    driver.wait(max(0, undecided.instants.opened + COMPUTE_MS - driver.now_ms))
    for peer in (A, B, C):
        driver.announce(peer, round, compute_ms=COMPUTE_MS, payload_bytes=size)
    driver.wait(EXCHANGE_MS)
    for peer in (A, B, C):
        driver.hold(peer, round, [other for other in (A, B, C) if other != peer])


def test_before_anything_was_measured_nothing_is_said() -> None:
    assert forecast(Driver(A, B).machine) == {"predicted": None, "measured": None, "round": ""}


def test_measured_and_predicted_time_agree_where_nothing_is_in_the_way() -> None:
    found = forecast(steady(8).machine)
    assert found["measured"] == pytest.approx(0.6, rel=0.05)
    assert found["predicted"] == pytest.approx(0.6, rel=0.25), "shares are above what fits"
    assert found["round"].startswith("rounds take 0.6 s, predicted 0.")


def test_without_overlap_the_exchange_comes_after_the_passes() -> None:
    apart, hidden = (forecast(steady(8, rounds={"overlap": on}).machine) for on in (0, 1))
    assert apart["measured"] == pytest.approx(0.85, rel=0.05)
    assert apart["predicted"] > hidden["predicted"] + 0.2


def test_of_a_crowd_that_adds_parts_and_results_are_predicted() -> None:
    """Members with lines on which the exchange is all of a round."""
    found = dict[int, float]()
    size = size_of(Driver(A, B).machine.spec.model)
    for sums in (0, 3):
        driver = SummingDriver(A, B, C, sums=sums, algorithm={"top_k": 384})
        for peer in (A, B, C):
            member = driver.member(peer)
            member.work.speed, member.work.up_bit_s = 1e6, 8_000
        found[sums] = float(forecast(driver.machine)["predicted"])
        payload, results = exchanged_bytes(driver.machine.spec, size, 3)
        sent = 2 * payload + results if sums else 2 * payload
        assert found[sums] == pytest.approx(sent / 1000, rel=0.05)
    assert found[3] > found[0], "three are too few to gain"


def test_a_late_member_is_named_where_rounds_take_longer() -> None:
    driver = steady(4)
    driver.member(C).strikes = 1
    driver.machine.state.period.milliseconds = 9000
    assert forecast(driver.machine)["round"].endswith("late members are node 3")


def test_rounds_that_end_by_the_clock_and_rounds_that_are_quicker_are_told_apart() -> None:
    driver = steady(4)
    driver.machine.state.period.milliseconds = 60_000
    assert "last until their deadlines" in forecast(driver.machine)["round"]
    driver.machine.state.period.milliseconds = 10
    assert "faster than they were measured" in forecast(driver.machine)["round"]


def test_a_run_that_waited_measures_no_round() -> None:
    driver = steady(4)
    driver.lapse(A, B)
    driver.wait(60_000)
    driver.join(A, B)
    exchange(driver, driver.machine.state.undecided[-1].round)
    assert driver.machine.state.period.milliseconds < 5000


def test_nodes_that_mix_are_predicted_by_their_topology() -> None:
    algorithm = {"name": "gossip-adam", "mixing": {"topology": "complete"}}
    found = forecast(steady(8, algorithm=algorithm, membership={"members_max": 16}).machine)
    assert found["measured"] == pytest.approx(0.6, rel=0.05)
    assert found["predicted"] == pytest.approx(0.6, rel=0.25)
