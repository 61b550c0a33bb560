"""A leased sample is trained by one payload that counts, or leased again, or recorded as lost."""

import pytest

from coordinator.machine.events.effects import Evict, OpenRound, SkipRound
from coordinator.machine.events.inputs import Heartbeat
from protocol.ids import PeerId
from protocol.shuffle import Share
from tests.coordinator.machine.driver import A, B, C, D, Driver, of_kind
from tests.coordinator.machine.rules.test_voiding import SOON_MS, poisoned


def positions(opened: OpenRound, *peers: PeerId) -> set[int]:
    """The positions that a round leases, to these members or to all."""
    return {
        each
        for asked in opened.assignments
        for share in asked.shares
        for each in range(share.first, share.end)
        if asked.peer in peers or not peers
    }


def books(driver: Driver) -> tuple[int, int, int]:
    """Samples that are trained, left out, lost."""
    totals = driver.machine.state.totals
    return totals.samples_counted, totals.samples_left_out, totals.samples_lost


def test_an_unused_part_of_a_share_returns_and_is_leased_first() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    assert driver.opened[0].assignments[0].shares == (Share(0, 8),)
    driver.announce(A, 0, samples=3)
    assert books(driver) == (0, 0, 0), "not before the round is decided"
    driver.announce(B, 0)
    assert books(driver) == (11, 0, 0)
    first = driver.opened[1].assignments[0].shares
    assert first[0] == Share(3, min(5, first[0].count))


def test_a_payload_without_copies_gives_its_samples_back_to_the_next_round() -> None:
    driver = Driver(A, B, C)
    left_out = positions(driver.opened[0], C)
    driver.announce(C, 0)
    driver.exchange(0, A, B)
    driver.wait(3000)
    assert driver.authors() == [A, B]
    assert books(driver) == (16, 8, 0)
    assert left_out <= positions(driver.opened[1])
    driver.exchange(1, A, B, C)
    assert books(driver) == (16 + len(positions(driver.opened[1])), 8, 0)


def test_samples_of_a_member_that_leaves_unannounced_come_back_once() -> None:
    driver = Driver(A, B, C)
    left_out = positions(driver.opened[0], C)
    driver.leave(C)
    assert books(driver) == (0, 8, 0)
    driver.leave(C)
    assert books(driver) == (0, 8, 0)
    driver.exchange(0, A, B)
    assert left_out <= positions(driver.opened[1])


def test_a_payload_that_others_hold_counts_when_its_author_has_left() -> None:
    driver = Driver(A, B, C)
    driver.announce(C, 0)
    driver.hold(A, 0, [C])
    driver.leave(C)
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B, C]
    assert books(driver) == (24, 0, 0)


def test_samples_of_a_lapsed_member_come_back() -> None:
    driver = Driver(A, B, C, rounds={"compute_ms": 5000}, membership={"lease_ms": 2000})
    driver.wait(1000)
    driver.tell(Heartbeat(A))
    driver.tell(Heartbeat(B))
    effects = driver.wait(1000)
    assert of_kind(Evict, effects) == [Evict(C, "silent for 2 s")]
    assert books(driver) == (0, 8, 0)


def test_samples_of_a_late_member_come_back_and_its_late_word_changes_nothing() -> None:
    driver = Driver(A, B, C)
    left_out = positions(driver.opened[0], C)
    driver.exchange(0, A, B)
    driver.wait(1500)
    assert left_out <= positions(driver.opened[1])
    driver.announce(C, 0)
    assert books(driver) == (16, 8, 0)


def test_the_work_of_a_muted_member_is_leased_again() -> None:
    driver = Driver(A, B, C)
    driver.mute(C)
    driver.exchange(0, A, B)
    left_out = positions(driver.opened[1], C)
    assert driver.opened[1].assignments[2].muted
    driver.announce(C, 1)
    driver.exchange(1, A, B)
    assert driver.authors() == [A, B]
    assert left_out <= positions(driver.opened[2])


def test_a_skipped_round_gives_all_its_samples_back() -> None:
    driver = Driver(A, B, C, rounds={"quorum": 3})
    driver.exchange(0, A, B)
    assert of_kind(SkipRound, driver.wait(1500))
    assert books(driver) == (0, 24, 0)
    assert positions(driver.opened[1]) <= positions(driver.opened[0])


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_void_payload_gives_its_samples_back(overlap: int) -> None:
    driver = poisoned(A, B, C, overlap=overlap)
    poison, before = positions(driver.opened[0], D), books(driver)
    driver.leave(D)
    for peer in (A, B, C):
        driver.lack(peer, 0, D)
    driver.wait(SOON_MS)
    assert len(driver.voids) == 1
    assert books(driver)[0] == before[0] - len(poison)
    returned = driver.machine.state.order.returned
    assert poison <= {each for share in returned for each in range(share.first, share.end)}


def test_where_nodes_mix_their_own_parameters_what_was_announced_is_trained() -> None:
    """Also of a member without a payload; of one that is silent nobody knows."""
    driver = Driver(A, B, C, D, algorithm={"name": "gossip-adam"})
    driver.exchange(0, A, B)
    driver.announce(C, 0, digest=b"")
    driver.wait(1500)
    assert driver.authors() == [A, B]
    assert books(driver) == (24, 8, 8)
    assert driver.machine.state.order.returned == []
