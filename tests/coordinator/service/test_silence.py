"""Nodes that fell silent lose their session, and nobody else does. Virtual time."""

from collections.abc import Sequence

from coordinator.service.sessions import NodeSession, SessionTable
from coordinator.service.silence import HEARTBEATS_MIN, SilenceWatch
from protocol.ids import PeerId
from protocol.runfile import MembershipSpec
from tests.coordinator.machine.driver import A, B

SPEC = MembershipSpec(lease_ms=6_000, heartbeat_ms=500)
SILENCE_MS = 3_000


def at_work(now_ms: int) -> NodeSession:
    session = NodeSession(now_ms=now_ms)
    session.waits(now_ms)
    return session


def first_silent_ms(
    sessions: Sequence[tuple[PeerId, NodeSession]], from_ms: int, to_ms: int, watch: SilenceWatch
) -> dict[PeerId, int]:
    """When each is found silent for the first time; A sends a heartbeat at every look."""
    found: dict[PeerId, int] = {}
    for now_ms in range(from_ms, to_ms, watch.pause_ms):
        for peer, session in sessions:
            if peer == A:
                session.waits(now_ms)
        for peer in watch.look(sessions, now_ms):
            found.setdefault(peer, now_ms)
    return found


def test_a_node_that_says_nothing_for_half_a_lease_is_silent() -> None:
    sessions, watch = [(A, at_work(0)), (B, at_work(0))], SilenceWatch(SPEC)
    found = first_silent_ms(sessions, 0, 9_000, watch)
    assert found.keys() == {B}
    assert 0 <= found[B] - SILENCE_MS <= watch.pause_ms


def test_a_few_lost_heartbeats_are_no_silence() -> None:
    spec = MembershipSpec(lease_ms=4_000, heartbeat_ms=2_000)
    assert SilenceWatch(spec).silence_ms == HEARTBEATS_MIN * 2_000


def test_a_node_whose_message_waits_for_the_disk_is_not_silent() -> None:
    sessions, watch = [(B, at_work(0))], SilenceWatch(SPEC)
    sessions[0][1].hears(100)
    assert not first_silent_ms(sessions, 0, 20_000, watch)
    sessions[0][1].waits(20_000)
    assert first_silent_ms(sessions, 20_000, 30_000, watch)[B] >= 20_000 + SILENCE_MS


def test_a_session_that_is_being_opened_is_not_silent() -> None:
    assert not first_silent_ms([(B, NodeSession(now_ms=0))], 0, 20_000, SilenceWatch(SPEC))


def test_a_message_that_took_long_to_handle_was_heard_when_it_came() -> None:
    """Else a process that died with its hello on the way would seem to be at work for another."""
    session = at_work(0)
    session.hears(100)
    session.waits(20_000)
    assert (session.heard_ms, session.idle_ms) == (100, 20_000)


def test_a_coordinator_that_was_away_hears_its_nodes_before_it_judges() -> None:
    """SIGSTOP, a suspended machine: what they sent meanwhile is not read yet."""
    sessions, watch = [(A, at_work(0)), (B, at_work(0))], SilenceWatch(SPEC)
    assert not first_silent_ms(sessions, 0, 1_000, watch)
    found = first_silent_ms(sessions, 60_000, 70_000, watch)
    assert found.keys() == {B}
    assert found[B] >= 60_000 + SILENCE_MS


async def test_the_session_of_a_silent_node_ends() -> None:
    table, session = SessionTable("node"), at_work(0)
    table.put(B, session)
    assert table.items() == [(B, session)]
    table.retire(B)
    assert await session.outbox.get() is None
    table.retire(A)  # without a session
