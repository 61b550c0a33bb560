"""What a relay's uplink counts for, by the links that members report."""

from typing import Any

import pytest

from coordinator.machine.events.acts import Vouch, ordered
from coordinator.machine.events.inputs import LinksMeasured
from coordinator.machine.rules.sums import planning
from coordinator.machine.rules.sums.relay_uplinks import relay_uplinks
from protocol.ids import PeerId
from protocol.mixing.link_report import MeasuredLink
from tests.coordinator.machine.summing import SummingDriver, peers

MEMBERS = peers(5)
RELAY, OTHER = PeerId("f" * 32), PeerId("e" * 32)
MEDIAN = 8_000_000
"""Bits a second: a megabyte."""


def run(**sections: dict[str, Any]) -> SummingDriver:
    """A run in whose first round nobody has reported a link yet."""
    driver = SummingDriver(*MEMBERS, **sections)
    driver.offer(RELAY)
    driver.offer(OTHER)
    return driver


def report(driver: SummingDriver, receiver: PeerId, relay_bit_s: int, *member_bit_s: int) -> None:
    """The receiver gets content from the relay at this rate, and from other members at these."""
    others = [peer for peer in MEMBERS if peer != receiver]
    links = [MeasuredLink(peer, 20, rate) for peer, rate in zip(others, member_bit_s, strict=False)]
    links.append(MeasuredLink(RELAY, 20, relay_bit_s))
    driver.tell(LinksMeasured(receiver, tuple(sorted(links, key=lambda link: link.peer))))


def counted(driver: SummingDriver) -> dict[PeerId, int]:
    return relay_uplinks(driver.machine, MEDIAN)


def test_a_relay_counts_as_the_median_member_until_three_members_have_measured_it() -> None:
    driver = run()
    for receiver in MEMBERS[:2]:
        report(driver, receiver, 4_000_000, 1_000_000)
    assert counted(driver) == {RELAY: 1_000_000, OTHER: 1_000_000}
    report(driver, MEMBERS[2], 4_000_000, 1_000_000)
    assert counted(driver) == {RELAY: 4_000_000, OTHER: 1_000_000}


def test_each_receiver_compares_it_with_the_median_member_that_it_gets_content_from() -> None:
    driver = run()
    report(driver, MEMBERS[0], 2_000_000, 1_000_000, 4_000_000, 9_000_000)  # half as quick
    report(driver, MEMBERS[1], 500_000, 1_000_000)  # half
    report(driver, MEMBERS[2], 90_000_000, 1_000_000)  # ninety times
    assert counted(driver)[RELAY] == 500_000


@pytest.mark.parametrize(("rate", "times"), [(1, 1 / 8), (10**12, 8)])
def test_no_rate_counts_for_more_than_eight_times_the_median_nor_for_less_than_an_eighth(
    rate: int, times: float
) -> None:
    driver = run()
    for receiver in MEMBERS:
        report(driver, receiver, rate, 1_000_000, 1_000_000)
    assert counted(driver)[RELAY] == 1_000_000 * times


def test_who_has_no_rate_of_the_relay_or_of_a_member_compares_nothing() -> None:
    driver = run()
    for receiver in MEMBERS[:2]:
        report(driver, receiver, 4_000_000, 1_000_000)
    report(driver, MEMBERS[2], 4_000_000)
    report(driver, MEMBERS[3], 0, 1_000_000)
    assert counted(driver)[RELAY] == 1_000_000


def test_a_minority_of_receivers_decides_nothing() -> None:
    driver = run()
    for receiver in MEMBERS[:2]:
        report(driver, receiver, 10**12, 1)
    for receiver in MEMBERS[2:]:
        report(driver, receiver, 2_000_000, 1_000_000)
    assert counted(driver)[RELAY] == 2_000_000


def test_in_a_public_run_only_members_with_standing_are_heard() -> None:
    driver = SummingDriver(membership={"trust": "public", "start_members": 5})
    payloads = driver.machine.members.standing.payloads
    for peer in MEMBERS[:3]:
        payloads[peer] = 50
    driver.join(*MEMBERS)
    driver.tell(ordered(Vouch(RELAY), 1_700_000_000, driver.machine.state.operator.head))
    driver.offer(RELAY)
    for receiver in MEMBERS:
        report(driver, receiver, 4_000_000, 1_000_000, 1_000_000)
    assert counted(driver) == {RELAY: 4_000_000}
    payloads[MEMBERS[0]] = 0
    assert counted(driver) == {RELAY: 1_000_000}, "two of five have standing"


def test_the_draw_goes_by_it() -> None:
    driver = run()
    for member in MEMBERS:
        driver.member(member).work.up_bit_s = MEDIAN
        report(driver, member, 4_000_000, 1_000_000)
    found = planning.plan(driver.machine.state.undecided[-1], driver.machine)
    assert found is not None
    assert dict(found.summers.others) == {RELAY: 4_000_000, OTHER: 1_000_000}
