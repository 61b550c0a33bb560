"""Sessions: one per key, a bounded outbox, one encoding of a broadcast."""

import asyncio

from coordinator.service.sessions import (
    OUTBOX_MESSAGES_MAX,
    SHARED_MESSAGES_MAX,
    TOLD_EVERY_MS,
    Message,
    NodeSession,
    SessionTable,
    SharedEncoding,
)
from protocol import wire_pb2 as wire
from tests.coordinator.machine.driver import A, B
from tests.support.virtual_time import loop_ms, virtually


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
    assert "another process with this relay's key has taken its place" in refused.refused.reason
    assert "one key is one relay" in refused.refused.reason
    assert end is None
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


# ---- one key, two processes


BEAT_MS = 1000


def contested(*heard_ms: int, newcomer: int = 2, ends_ms: int | None = None) -> tuple[str, int]:
    """The end of a contest for the key of process 1, which was heard last at these times after the
    newcomer's hello and whose stream ends at `ends_ms`, and the milliseconds that it took.
    """

    async def main() -> tuple[str, int]:
        table, holder = SessionTable("node"), NodeSession(1, "at 10.0.0.1:1", 0)
        table.put(A, holder)
        await asyncio.sleep(60)
        hello_ms = loop_ms()
        loop = asyncio.get_running_loop()
        for at_ms in heard_ms:
            if at_ms <= 0:
                holder.heard_ms = hello_ms + at_ms
            else:
                loop.call_later(at_ms / 1000, setattr, holder, "heard_ms", hello_ms + at_ms)
        if ends_ms is not None:
            loop.call_later(ends_ms / 1000, table.remove, A, holder)
        comes = NodeSession(newcomer, "at 10.0.0.2:1", hello_ms)
        keeps = await table.contest(A, comes, BEAT_MS, loop_ms)
        assert keeps in (None, holder)
        assert table.copies_refused == (keeps is holder)
        notices = [message.notice.text for message in queued(holder) if message]
        assert bool(notices) == (keeps is holder)
        assert all("at 10.0.0.2:1, tried to join with this key" in text for text in notices)
        return "refused" if keeps else "replaces", loop_ms() - hello_ms

    return virtually(main())


def test_a_reconnect_of_the_same_process_replaces_its_session_at_once() -> None:
    assert contested(0, 1000, 2000, newcomer=1) == ("replaces", 0)


def test_a_copy_is_refused_while_the_process_at_work_beats() -> None:
    end, took_ms = contested(-900, 100, 1100, 2100)
    assert end == "refused"
    assert took_ms <= 2 * BEAT_MS


def test_a_process_that_does_not_say_its_instance_is_not_taken_for_a_reconnect() -> None:
    assert contested(-900, 100, 1100, 2100, newcomer=0)[0] == "refused"


def test_a_restarted_process_does_not_wait_for_a_stream_that_has_ended() -> None:
    assert contested(-100, ends_ms=0) == ("replaces", 200)
    assert contested(-100, ends_ms=300) == ("replaces", 400)


def test_a_message_that_was_on_its_way_when_the_holder_died_does_not_refuse_its_successor() -> None:
    end, took_ms = contested(-100, 150)
    assert end == "replaces"
    assert took_ms <= 3 * BEAT_MS


def test_a_silent_holder_is_given_one_heartbeat_to_be_heard() -> None:
    """The coordinator itself may have slept, with heartbeats waiting at its door."""
    assert contested(-30_000) == ("replaces", BEAT_MS)
    assert contested(-30_000, 900, 1900)[0] == "refused"


def test_of_two_newcomers_one_gets_the_key_of_a_silent_holder() -> None:
    async def main() -> None:
        table = SessionTable("node")
        table.put(A, NodeSession(1))
        await asyncio.sleep(60)

        async def comes(session: NodeSession) -> bool:
            if await table.contest(A, session, BEAT_MS, loop_ms):
                return False
            table.put(A, session)
            for _ in range(10):
                session.heard_ms = loop_ms()
                await asyncio.sleep(BEAT_MS / 1000)
            return True

        newcomers = [NodeSession(number, now_ms=loop_ms()) for number in (2, 3)]
        assert sorted(await asyncio.gather(*map(comes, newcomers))) == [False, True]
        assert table.copies_refused == 1

    virtually(main())


def test_the_process_at_work_is_told_of_a_copy_once_a_minute() -> None:
    session = NodeSession(1)
    for now_ms in (0, 1000, TOLD_EVERY_MS, TOLD_EVERY_MS + 1):
        session.tell_of_copy("at 10.0.0.2:1", now_ms)
    assert len(queued(session)) == 2


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
