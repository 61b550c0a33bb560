"""Sessions: one per key, a bounded outbox, one encoding of a broadcast."""

from coordinator.sessions import (
    OUTBOX_MESSAGES_MAX,
    SHARED_MESSAGES_MAX,
    Message,
    NodeSession,
    SessionTable,
    SharedEncoding,
)
from protocol import wire_pb2 as wire
from tests.coordinator.machine.driver import A, B


def skipped(round: int) -> Message:
    return Message(skipped=wire.RoundSkipped(round=round))


def queued(session: NodeSession) -> list[Message | None]:
    return [session.outbox.get_nowait() for _ in range(session.outbox.qsize())]


def test_a_session_ends_after_its_queued_messages_and_the_last_one() -> None:
    session = NodeSession()
    session.send(skipped(0))
    session.close(skipped(1))
    assert queued(session) == [skipped(0), skipped(1), None]


def test_a_full_outbox_ends_the_session_and_the_oldest_message_makes_room() -> None:
    session = NodeSession()
    for round in range(OUTBOX_MESSAGES_MAX + 1):
        session.send(skipped(round))
    messages = queued(session)
    assert messages[0] == skipped(1)
    assert messages[-2:] == [skipped(OUTBOX_MESSAGES_MAX - 1), None]


def test_a_second_session_of_a_key_ends_the_first_with_the_reason() -> None:
    table, old, new = SessionTable("relay"), NodeSession(), NodeSession()
    table.put(A, old)
    table.put(A, new)
    refused, end = queued(old)
    assert refused is not None
    reason = "another session with this relay's key has opened; one key is one relay"
    assert (refused.refused.reason, end) == (reason, None)
    assert list(table) == [new]


def test_the_end_of_a_replaced_session_is_not_that_of_its_peer() -> None:
    table, old, new = SessionTable("node"), NodeSession(), NodeSession()
    table.put(A, old)
    table.put(A, new)
    assert not table.remove(A, old)
    assert A in table
    assert table.remove(A, new)
    assert A not in table
    assert not table.remove(A, new)


def test_messages_reach_the_session_of_their_peer_alone() -> None:
    table, first, second = SessionTable("node"), NodeSession(), NodeSession()
    table.put(A, first)
    table.put(B, second)
    table.send(A, skipped(0))
    table.close(B, skipped(1))
    assert (queued(first), queued(second)) == ([skipped(0)], [skipped(1), None])


def test_a_broadcast_is_encoded_once_and_kept_for_a_few_messages() -> None:
    encoding = SharedEncoding()
    for round in range(3 * SHARED_MESSAGES_MAX):
        message = skipped(round)
        encoding.share(message)
        assert encoding.encode(message) is encoding.encode(message)
    assert len(encoding) == SHARED_MESSAGES_MAX
    assert encoding.encode(skipped(7)) == skipped(7).SerializeToString()
