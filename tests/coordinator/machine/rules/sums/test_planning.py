"""Who may add a round: members with standing that rounds wait for and that others can reach, by
their uplinks.
"""

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from coordinator.machine.events.acts import Vouch, ordered
from coordinator.machine.rules.sums import planning
from protocol.ids import PeerId
from tests.coordinator.machine.summing import SummingDriver, peers

MEMBERS = peers(8)


def loads(driver: SummingDriver) -> Counter[PeerId]:
    """The ranges that each adds in the open round, if it were planned now."""
    undecided = driver.machine.state.undecided[-1]
    planned = planning.plan(undecided, driver.machine)
    return Counter(chain.from_iterable(planned.summers.pairs)) if planned else Counter()


def measured(driver: SummingDriver, *up_bit_s: int) -> None:
    for peer, rate in zip(MEMBERS, up_bit_s, strict=False):
        driver.member(peer).work.up_bit_s = rate


def test_in_a_first_round_all_count_equal_and_later_by_their_uplinks() -> None:
    driver = SummingDriver(*MEMBERS)
    assert set(loads(driver).values()) == {4}, "32 tasks of 8 members"
    measured(driver, *[8_000_000] * 4, *[24_000_000] * 4)
    found = loads(driver)
    assert [found[peer] for peer in MEMBERS[:4]] == [2] * 4
    assert [found[peer] for peer in MEMBERS[4:]] == [6] * 4


def test_one_that_is_not_measured_counts_as_the_least_measured_one() -> None:
    driver = SummingDriver(*MEMBERS)
    measured(driver, *[24_000_000] * 4, *[8_000_000] * 2)
    found = loads(driver)
    assert found[MEMBERS[-1]] in (1, 2, 3)
    assert found[MEMBERS[0]] in (5, 6, 7)


@pytest.mark.parametrize("fault", ["no address", "lost", "muted", "held", "demoted"])
def test_a_member_that_cannot_be_counted_on_adds_nothing(fault: str) -> None:
    driver = SummingDriver(*MEMBERS)
    driver.end_first_step(*MEMBERS)
    bad, state = MEMBERS[2], driver.machine.state
    match fault:
        case "no address":
            driver.member(bad).addresses = ()
        case "lost":
            driver.part(bad)
        case "muted":
            driver.mute(bad)
        case "held":
            state.verdicts.held[bad] = "its state differs"
        case "demoted":
            state.members.standing.demoted[bad] = None  # type: ignore[assignment]
    found = loads(driver)
    assert bad not in found
    assert len(found) == 7
    state.verdicts.held.clear()
    state.members.standing.demoted.clear()


def test_without_two_that_can_be_reached_there_is_no_plan() -> None:
    driver = SummingDriver(*MEMBERS)
    for peer in MEMBERS[1:]:
        driver.member(peer).addresses = ()
    assert not loads(driver)


def test_each_missed_round_halves_what_a_member_is_given() -> None:
    driver = SummingDriver(*MEMBERS)
    measured(driver, *[8_000_000] * 8)
    driver.member(MEMBERS[0]).work.halved = 2
    assert loads(driver)[MEMBERS[0]] in (1, 2), "a quarter of 4 and a bit"
    driver.member(MEMBERS[0]).work.halved = 16
    assert loads(driver)[MEMBERS[0]] <= 1


def test_among_strangers_only_standing_adds_and_nobody_counts_for_many() -> None:
    driver = SummingDriver(
        membership={"trust": "public", "start_members": 4}, rounds={"quorum": 2, "sums": 2}
    )
    for peer in MEMBERS[:4]:
        driver.machine.members.standing.payloads[peer] = 50
    driver.join(*MEMBERS[:6])
    driver.wait(1)
    measured(driver, 10**12, 8_000_000, 8_000_000, 8_000_000)
    found = loads(driver)
    assert set(found) == set(MEMBERS[:4])
    assert found[MEMBERS[0]] in (12, 13), "two fifths of 32 tasks: twice the median, no more"
    driver.tell(ordered(Vouch(MEMBERS[0]), 1_700_000_000, driver.machine.state.operator.head))
    assert loads(driver)[MEMBERS[0]] == 16, "half: each range once"


@pytest.mark.parametrize(("exchange_ms", "patience_ms"), [(1500, 2000), (30_000, 10_000)])
def test_the_patience_follows_the_rounds_own_slot(exchange_ms: int, patience_ms: int) -> None:
    driver = SummingDriver(*MEMBERS, rounds={"exchange_ms": exchange_ms})
    assert driver.sums(0).patience_ms == patience_ms


def test_the_plan_depends_on_the_secret_and_on_the_round() -> None:
    driver = SummingDriver(*MEMBERS)
    undecided = driver.machine.state.undecided[-1]

    def pairs(number: int, salt: bytes) -> Any:
        driver.machine.state.members.standing.salt = salt
        planned = planning.plan(replace(undecided, round=number), driver.machine)
        return planned.summers.pairs if planned else None

    assert pairs(0, b"") == pairs(0, b"")
    assert len({pairs(0, b""), pairs(1, b""), pairs(0, b"salt")}) == 3
