"""Relays that offer to add: which of them are drawn, and what follows when they go, are silent, or
come again.
"""

from typing import Any

import pytest

from coordinator.machine.events.acts import Vouch, ordered
from coordinator.machine.events.inputs import (
    Heartbeat,
    NotHeld,
    OfferEnded,
    Restarted,
    SumsOffered,
)
from coordinator.machine.rules.sums import planning
from coordinator.machine.screening import screened
from coordinator.machine.state.sums.relays import OFFERS_MAX
from coordinator.state_snapshot import decode_state, encode_state
from protocol.ids import PeerId
from tests.coordinator.machine.summing import SummingDriver, added, peers

MEMBERS = peers(4)
RELAY, OTHER = PeerId("f" * 32), PeerId("e" * 32)
LEASE_MS = 60_000


def adding(*relays: PeerId, **sections: dict[str, Any]) -> SummingDriver:
    """A run whose open round, its second, was planned with these relays."""
    driver = SummingDriver(*MEMBERS, **sections)
    for relay in relays:
        driver.offer(relay)
    driver.make_sums(*MEMBERS)
    return driver


def tasks(driver: SummingDriver, round: int = 1) -> dict[PeerId, int]:
    pairs = [peer for pair in driver.sums(round).summers.pairs for peer in pair]
    return {peer: pairs.count(peer) for peer in pairs}


def planned(driver: SummingDriver) -> set[PeerId]:
    """The nodes that the newest round may draw, if it were planned now."""
    found = planning.plan(driver.machine.state.undecided[-1], driver.machine)
    return {peer for pair in found.summers.pairs for peer in pair} if found else set()


def all_parts(driver: SummingDriver, round: int = 1) -> list[Any]:
    """All announce, and every summer holds their parts; returns what followed."""
    for each in MEMBERS:
        driver.announce(each, round)
    return driver.spread(round, MEMBERS)


def test_a_relay_that_offers_adds_every_range_beside_a_member_and_signs_for_the_commit() -> None:
    driver = adding(RELAY)
    assert tasks(driver)[RELAY] == driver.sums(1).ranges, "who gains nothing has half of the tasks"
    driver.add(all_parts(driver))
    commit = driver.commits[-1]
    assert len(commit.holders) == 16
    assert all(RELAY in signers for signers in commit.holders)
    assert driver.machine.state.relays.known[RELAY].work.ranges_added == 16


def test_a_relay_without_an_offer_adds_nothing_and_is_not_heard() -> None:
    driver = adding()
    assert RELAY not in tasks(driver)
    before = driver.machine.state.relays
    driver.parts(RELAY, 1, MEMBERS)
    driver.go(RELAY)
    assert driver.machine.state.relays == before
    assert RELAY not in driver.sums(1).parts.named


def test_others_are_asked_at_once_in_the_place_of_a_relay_that_goes() -> None:
    driver = adding(RELAY)
    told = added(driver.go(RELAY))
    assert sorted(number for _, number in told) == list(range(16))
    assert {peer for peer, _ in told} <= set(MEMBERS)
    driver.add(all_parts(driver))
    assert [commit.commit.round for commit in driver.commits] == [0, 1]
    assert RELAY not in planned(driver)


def test_a_relay_that_goes_while_it_adds_is_followed_and_the_round_is_committed() -> None:
    driver = adding(RELAY)
    effects = all_parts(driver)
    driver.add(effects, silent={RELAY})
    assert len(driver.commits) == 1
    gone = driver.go(RELAY)
    driver.add([*gone, *driver.spread(1, MEMBERS)])
    assert len(driver.commits) == 2


def test_each_round_that_a_relay_is_silent_in_quarters_what_it_is_given() -> None:
    driver = adding(RELAY)
    effects = all_parts(driver)
    while len(driver.commits) < 2:
        driver.add(effects, silent={RELAY})
        effects = driver.wait(driver.sums(1).patience_ms) if len(driver.commits) < 2 else []
    assert driver.machine.state.relays.known[RELAY].work.halved == 2
    assert 6 <= tasks(driver, 2)[RELAY] <= 7, "a quarter to the others' whole: a fifth of 32"
    driver.machine.state.relays.known[RELAY].work.halved = 16
    assert tasks(driver, 2)[RELAY] > 0
    assert RELAY not in planned(driver)


def test_what_a_relay_has_missed_is_remembered_when_it_comes_again() -> None:
    driver = adding(RELAY)
    driver.machine.state.relays.known[RELAY].work.halved = 3
    driver.go(RELAY)
    driver.offer(RELAY, instance=2)
    assert driver.machine.state.relays.known[RELAY].work.halved == 3


def test_the_same_process_with_a_new_session_goes_on_and_is_asked_again() -> None:
    driver = adding(RELAY)
    asked = [question for who, question in driver.asks(all_parts(driver)) if who == RELAY]
    again = driver.offer(RELAY)
    assert [(RELAY, question) for question in asked] == driver.asks(again)
    assert not added(again)


def test_a_relay_that_comes_as_another_process_is_gone_from_the_rounds_that_are_open() -> None:
    driver = adding(RELAY)
    effects = driver.offer(RELAY, instance=2)
    assert len(added(effects)) == 16
    assert RELAY in driver.sums(1).gone
    assert RELAY in planned(driver)


def test_in_a_public_run_a_relay_that_nobody_has_named_is_no_news_and_later_it_is() -> None:
    driver = SummingDriver(membership={"trust": "public", "start_members": 4})
    for peer in MEMBERS:
        driver.machine.members.standing.payloads[peer] = 50
    driver.join(*MEMBERS)
    offer = SumsOffered(RELAY, "relay", 1)
    assert screened(offer, driver.machine) == Heartbeat(RELAY)
    driver.tell(offer)
    assert RELAY not in planned(driver)
    driver.tell(ordered(Vouch(RELAY), 1_700_000_000, driver.machine.state.operator.head))
    driver.tell(offer)
    assert RELAY in planned(driver)
    driver.machine.members.standing.vouched.discard(RELAY)
    assert RELAY not in planned(driver)


def test_a_demoted_key_adds_nothing_among_people_that_know_each_other_too() -> None:
    driver = adding(RELAY)
    demoted = driver.machine.state.members.standing.demoted
    demoted[RELAY] = None  # type: ignore[assignment]
    assert RELAY not in planned(driver)
    demoted.clear()


def test_a_key_that_is_a_member_adds_as_one() -> None:
    driver = adding(RELAY)
    driver.offer(MEMBERS[0])
    assert driver.machine.state.relays.here() == [RELAY]
    driver.hello(RELAY)
    assert driver.machine.state.relays.here() == []
    assert RELAY in driver.sums(1).gone


@pytest.mark.parametrize("alive", [True, False])
def test_after_a_restart_of_the_coordinator_a_relay_has_a_lease_to_come_back(alive: bool) -> None:
    driver = adding(RELAY)
    driver.machine.install(decode_state(encode_state(driver.machine.state)))
    driver.now_ms += 10 * LEASE_MS
    driver.tell(Restarted())
    assert driver.machine.state.relays.here() == [RELAY]
    driver.wait(LEASE_MS - 1)
    if alive:
        driver.tell(Heartbeat(RELAY))
    driver.wait(1)
    assert driver.machine.state.relays.here() == ([RELAY] if alive else [])


def test_its_uplink_counts_as_the_median_of_the_measured_members() -> None:
    driver = adding(RELAY, OTHER)
    for peer, rate in zip(MEMBERS, (8_000_000, 16_000_000, 160_000_000, 0), strict=True):
        driver.member(peer).work.up_bit_s = rate
    found = planning.plan(driver.machine.state.undecided[-1], driver.machine)
    assert found is not None
    assert dict(found.summers.others) == {RELAY: 2_000_000, OTHER: 2_000_000}


def test_a_bounded_number_is_remembered_and_those_that_went_make_room() -> None:
    driver = SummingDriver(*MEMBERS)
    relays = [PeerId(f"{number:032x}") for number in range(100, 100 + OFFERS_MAX + 1)]
    for relay in relays:
        driver.offer(relay)
    assert driver.machine.state.relays.here() == relays[:-1]
    driver.go(relays[5])
    driver.offer(relays[-1])
    assert relays[-1] in driver.machine.state.relays.here()
    assert relays[5] not in driver.machine.state.relays.known


def test_a_sum_that_a_relay_has_signed_is_not_given_up_at_once_while_it_is_here() -> None:
    driver = adding(RELAY)
    driver.add(all_parts(driver))
    digest, voids = driver.commits[-1].commit.needed[0].digest, driver.machine.state.voids
    for each in MEMBERS:
        driver.tell(NotHeld(each, 1, (digest,)))
    assert voids.reason(1, digest) == "most lack it"
    driver.go(RELAY)
    assert voids.reason(1, digest) == "nobody has it"


def test_an_end_that_nobody_waits_for_is_no_news() -> None:
    driver = adding()
    assert screened(OfferEnded(RELAY), driver.machine) == Heartbeat(RELAY)
