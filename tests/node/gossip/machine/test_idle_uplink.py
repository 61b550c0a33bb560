"""Promises of an idle uplink: it invites all peers in turn, and ever more rarely."""

from node.gossip.machine.idle_uplink import DOUBLINGS_MAX, INVITED, PAUSE_MS, IdleUplink
from protocol.ids import PeerId

PEERS = [PeerId(f"{number:032x}") for number in range(5)]


def invited(
    invitations: IdleUplink, until_ms: int, peers: list[PeerId]
) -> list[tuple[int, list[PeerId]]]:
    """(time, peers) of each invitation, with a look every hundredth of a second."""
    found = []
    for now_ms in range(0, until_ms, 10):
        if invitations.is_due(now_ms) and (chosen := invitations.invite(peers, now_ms)):
            found.append((now_ms, chosen))
    return found


def test_all_peers_are_invited_in_turn_and_after_each_cycle_the_pause_doubles() -> None:
    found = invited(IdleUplink(), 7 * PAUSE_MS, PEERS)
    assert [chosen for _, chosen in found] == [
        PEERS[0:2],
        PEERS[2:4],
        [PEERS[4], PEERS[0]],
        PEERS[1:3],
        PEERS[3:5],
    ]
    assert [now_ms // PAUSE_MS for now_ms, _ in found] == [0, 1, 2, 3, 5]


def test_the_pause_has_an_end() -> None:
    times = [now_ms for now_ms, _ in invited(IdleUplink(), 400_000, PEERS[:1])]
    assert times[-1] - times[-2] == PAUSE_MS << DOUBLINGS_MAX


def test_one_peer_is_invited_once_at_a_time_and_without_peers_none_is() -> None:
    invitations = IdleUplink()
    assert invitations.invite([], 0) == []
    assert invitations.is_due(0)
    assert INVITED > 1
    assert invitations.invite(PEERS[:1], 0) == PEERS[:1]
    assert not invitations.is_due(PAUSE_MS - 1)


def test_the_next_idle_time_begins_anew() -> None:
    invitations = IdleUplink()
    invited(invitations, 100_000, PEERS)
    assert not invitations.is_due(100_000)
    invitations.reset()
    assert invitations.is_due(100_000)
    assert invitations.invite(PEERS, 100_000) == PEERS[:INVITED]
