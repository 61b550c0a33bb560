"""When a relayed connection is given up for the hope of a direct one."""

from itertools import pairwise

import pytest

from node.transports.libp2p import hole_punching
from node.transports.libp2p.daemon_control import Contact
from node.transports.libp2p.hole_punching import OBSERVERS_MIN, PAUSE_S, Attempts

LOW, HIGH = "12D3KooA", "12D3KooB"


def observers(count: int, network: str = "11.0.0.") -> list[Contact]:
    return [
        Contact(f"observer-{number}", f"/ip4/{network}{number}/tcp/1") for number in range(count)
    ]


def test_four_observers_at_public_addresses_of_their_own_are_needed() -> None:
    enough = observers(OBSERVERS_MIN)
    few = enough[1:]
    assert not Attempts(LOW).due(HIGH, few, 0.0)
    assert not Attempts(LOW).due(HIGH, [*few, few[0], Contact("other", few[0].address)], 0.0)
    assert not Attempts(LOW).due(HIGH, [*few, Contact("home", "/ip4/192.168.1.9/tcp/1")], 0.0)
    assert not Attempts(LOW).due(
        HIGH, [*few, Contact("far", "/ip4/11.0.9.9/tcp/1/p2p/x/p2p-circuit")], 0.0
    )
    assert not Attempts(LOW).due(HIGH, [*few, Contact("strange", "/unknown/ff")], 0.0)
    assert Attempts(LOW).due(HIGH, enough, 0.0)


def test_only_the_lower_peer_id_hangs_up() -> None:
    assert Attempts(LOW).due(HIGH, observers(OBSERVERS_MIN), 0.0)
    assert not Attempts(HIGH).due(LOW, observers(OBSERVERS_MIN), 0.0)


def test_attempts_with_one_peer_come_ever_more_seldom_and_say_nothing_of_another() -> None:
    attempts, enough = Attempts(LOW), observers(OBSERVERS_MIN)
    made = [
        second for second in range(0, 48 * 3600, 30) if attempts.due(HIGH, enough, float(second))
    ]
    pauses = [later - earlier for earlier, later in pairwise(made)]
    assert pauses[:3] == [PAUSE_S[0], 2 * PAUSE_S[0], 4 * PAUSE_S[0]]
    assert pauses == sorted(pauses)
    assert max(pauses) == PAUSE_S[1]
    assert attempts.due(HIGH + "B", enough, 0.0)


def test_peers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_punching, "PEERS_MAX", 2)
    attempts, enough = Attempts(LOW), observers(OBSERVERS_MIN)
    assert [attempts.due(peer, enough, 0.0) for peer in ("C", "D", "E", "E", "D", "C")] == [
        True
    ] * 3 + [
        False,
        False,
        True,
    ]
