"""When a relayed connection is closed to try for a direct one."""

from itertools import pairwise

import pytest

from node.transports.libp2p import hole_punching
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.hole_punching import OBSERVERS_MIN, PAUSE_MS, Attempts

LOW, HIGH = "12D3KooA", "12D3KooB"


def observers(count: int, network: str = "11.0.0.") -> list[Contact]:
    return [
        Contact(f"observer-{number}", f"/ip4/{network}{number}/tcp/1") for number in range(count)
    ]


def test_four_observers_at_public_addresses_of_their_own_are_needed() -> None:
    enough = observers(OBSERVERS_MIN)
    few = enough[1:]
    assert not Attempts(LOW).begin(HIGH, few, 0)
    assert not Attempts(LOW).begin(HIGH, [*few, few[0], Contact("other", few[0].address)], 0)
    assert not Attempts(LOW).begin(HIGH, [*few, Contact("home", "/ip4/192.168.1.9/tcp/1")], 0)
    assert not Attempts(LOW).begin(
        HIGH, [*few, Contact("far", "/ip4/11.0.9.9/tcp/1/p2p/x/p2p-circuit")], 0.0
    )
    assert not Attempts(LOW).begin(HIGH, [*few, Contact("strange", "/unknown/ff")], 0)
    assert Attempts(LOW).begin(HIGH, enough, 0)


def test_only_the_lower_peer_id_hangs_up() -> None:
    assert Attempts(LOW).begin(HIGH, observers(OBSERVERS_MIN), 0)
    assert not Attempts(HIGH).begin(LOW, observers(OBSERVERS_MIN), 0)


def test_attempts_with_one_peer_pause_longer_each_time_and_do_not_delay_another_peer() -> None:
    attempts, enough = Attempts(LOW), observers(OBSERVERS_MIN)
    made = [
        now_ms
        for now_ms in range(0, 48 * 3_600_000, 30_000)
        if attempts.begin(HIGH, enough, now_ms)
    ]
    pauses = [later - earlier for earlier, later in pairwise(made)]
    assert pauses[:3] == [PAUSE_MS[0], 2 * PAUSE_MS[0], 4 * PAUSE_MS[0]]
    assert pauses == sorted(pauses)
    assert max(pauses) == PAUSE_MS[1]
    assert attempts.begin(HIGH + "B", enough, 0)


def test_peers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_punching, "PEERS_MAX", 2)
    attempts, enough = Attempts(LOW), observers(OBSERVERS_MIN)
    assert [attempts.begin(peer, enough, 0) for peer in ("C", "D", "E", "E", "D", "C")] == [
        True
    ] * 3 + [
        False,
        False,
        True,
    ]
