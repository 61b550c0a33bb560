"""The door and the sessions of a coordinator over real gRPC on loopback, honest and hostile."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from coordinator.machine.events.effects import Evict
from coordinator.process import CoordinatorProcess
from coordinator.sequencer import Outcome
from coordinator.service import door, member_list, node_messages, server, sessions
from coordinator.service.sessions import NodeSession
from node.control.members import MemberList
from protocol import wire_pb2 as wire
from protocol.handshake import public_bytes, sign_hello
from protocol.limits import PROTOCOL_VERSION
from tests.coordinator.client import (
    ScriptedNode,
    node_key,
    node_of,
    quiet_spec,
    running,
    until_after,
)

NAN = float("nan")


def state_of(process: CoordinatorProcess, node: ScriptedNode) -> str:
    """In the member list of the status."""
    return next(row["state"] for row in process.status()["members"] if row["peer_id"] == node.peer)


# ---- the door


async def test_a_proven_node_is_welcomed_and_a_member(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        welcome = await node.join()
        assert (welcome.decided_round, welcome.head_round) == (-1, -1)
        assert [member.peer_id for member in welcome.members.members] == [node.peer]
        assert process.status()["members"][0]["peer_id"] == node.peer


async def test_a_connection_is_a_strangers_until_its_key_may_come_in(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        nonce = await node.connect()
        assert process.status()["connections"]["unproven"] == 1
        await node.say(node.hello(nonce, run_id="ff" * 16))
        await node.hear("refused")
        assert process.status()["connections"]["unproven"] == 1
        await node.join()
        counts = {"place": 0, "time": 0, "waste": 0}
        assert process.status()["connections"] == {"open": 1, "unproven": 0, "cut": counts}


async def test_every_session_has_its_own_nonce(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        nonces = {await node.connect() for _ in range(2)}
        assert len(nonces) == 2
        assert {len(nonce) for nonce in nonces} == {32}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"signature": bytes(64)}, "expected a signature of the key that is named"),
        ({"signature": b"short"}, "expected a key of 32 and a signature of 64 bytes"),
        (
            {"public_key": public_bytes(node_key(9))},
            "expected a signature of the key that is named",
        ),
        ({"public_key": bytes(31)}, "expected a key of 32 and a signature of 64 bytes"),
        ({"run_id": "ff" * 16}, "expected a node of run"),
        ({"run_id": "x" * 1_000}, "expected a node of run"),
        (
            {"protocol_version": PROTOCOL_VERSION + 1},
            f"expected protocol version {PROTOCOL_VERSION}, got 2",
        ),
        ({"protocol_version": 0}, f"expected protocol version {PROTOCOL_VERSION}, got 0"),
        ({"name": "n" * 1_000}, "expected texts of at most 256 bytes"),
        ({"addresses": ["a:1"] * 9}, "expected at most 8 addresses, got 9"),
    ],
)
async def test_a_wrong_hello_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.say(node.hello(await node.connect(), **changes))
        assert words in (await node.hear("refused")).refused.reason
        await node.hear_end()
        assert process.status()["members"] == []
        await node.join()
        assert len(process.status()["members"]) == 1


async def test_a_proof_of_another_session_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        old = await node.connect()
        await node.connect()
        await node.say(node.hello(b"", signature=sign_hello(node.key, node.run_id, old)))
        assert (
            "expected a signature of the key that is named"
            in (await node.hear("refused")).refused.reason
        )


async def test_anything_before_the_hello_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        for message, name in [
            (wire.NodeMessage(ready=wire.Ready(round=0)), "ready"),
            (wire.NodeMessage(), "None"),
        ]:
            await node.connect()
            await node.say(message)
            assert (
                await node.hear("refused")
            ).refused.reason == f"expected a hello first, got {name}"


async def test_a_session_without_a_hello_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HELLO_S", 0.01)
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.connect()
        await node.hear_end()


async def test_a_full_run_refuses_and_says_its_size(tmp_path: Path) -> None:
    spec = quiet_spec(membership={"members_max": 2})
    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as first,
        node_of(process, 2) as second,
        node_of(process, 3) as third,
    ):
        await first.join()
        await second.join()
        await third.say(third.hello(await third.connect()))
        refused = (await third.hear("refused")).refused
        assert (refused.reason, refused.retry) == ("the run is full: 2 members", True)
        await third.hear_end()


BRISK = {"heartbeat_ms": 100}
"""Membership of a run in which a contest for a key takes a third of a second."""


class Clock:
    """The run's clock, moved by heartbeats alone: a busy machine makes no node silent."""

    def __init__(self, process: CoordinatorProcess, patch: pytest.MonkeyPatch) -> None:
        self._now_ms = process._sequencer.now_ms()
        patch.setattr(process._sequencer, "now_ms", lambda: self._now_ms)

    async def beating(self, node: ScriptedNode) -> None:
        """Heartbeats without an end, whose answers are read."""
        while True:
            await node.ping()
            await asyncio.sleep(0.02)
            self._now_ms += 20


async def test_a_copied_key_is_refused_while_its_node_is_at_work_and_both_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running(tmp_path, quiet_spec(membership=BRISK)) as process,
        node_of(process, 1) as node,
        node_of(process, 1) as copy,
    ):
        copy.instance = 2
        await node.join()
        at_work = asyncio.create_task(Clock(process, monkeypatch).beating(node))
        for _ in range(3):  # as under `while true`
            await copy.say(copy.hello(await copy.connect(), name="the copy"))
            reason = (await copy.hear("refused")).refused.reason
            assert reason.startswith("this key is at work at 127.0.0.1:1 as 'scripted' since 20")
            assert "give this machine a directory of its own" in reason
            await copy.hear_end()
        await until_after(lambda: "notice" in kinds(node), lambda: asyncio.sleep(0.05))
        assert not at_work.done()
        at_work.cancel()
        assert kinds(node).count("notice") == 1, "told once a minute"
        (told,) = [message.notice.text for message in node.heard if message.HasField("notice")]
        assert told.startswith("another process, at 127.0.0.1:1 as 'the copy', tried to join")
        assert [member["state"] for member in process.status()["members"]] == ["ready"]
        metrics = generate_latest(process.registry).decode()
        assert "lockstep_coordinator_copied_keys_refused_total 3.0" in metrics


def kinds(node: ScriptedNode) -> list[str | None]:
    return [message.WhichOneof("kind") for message in node.heard]


async def test_a_node_that_was_killed_and_started_again_is_welcomed(tmp_path: Path) -> None:
    """Its new process has another instance, and its old stream has ended."""
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as killed,
        node_of(process, 1) as again,
    ):
        again.instance = 2
        await killed.join()
        await killed.channel.close()
        await again.join()
        assert len(process.status()["members"]) == 1


async def test_another_process_takes_the_place_of_a_silent_one_which_is_told(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, quiet_spec(membership=BRISK)) as process,
        node_of(process, 1) as node,
        node_of(process, 1) as copy,
    ):
        copy.instance = 2
        await node.join()
        await copy.join()
        reason = (await node.hear("refused")).refused.reason
        assert "another process at 127.0.0.1:1 as 'scripted' with this node's key" in reason
        assert "one key is one node" in reason
        await node.hear_end()
        await copy.ping()
        assert process.status()["members"][0]["state"] == "ready"


async def test_after_a_restart_the_key_is_kept_for_the_process_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy says hello first, as one does that tries all the time."""
    spec = quiet_spec(membership=BRISK)
    async with running(tmp_path, spec) as process, node_of(process, 1) as node:
        await node.join()
    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as node,
        node_of(process, 1) as copy,
    ):
        copy.instance, clock = 2, Clock(process, monkeypatch)
        await copy.say(copy.hello(await copy.connect()))
        refused = asyncio.create_task(copy.hear("refused", "welcome"))
        await node.join()
        at_work = asyncio.create_task(clock.beating(node))
        assert "this key is at work" in (await refused).refused.reason
        at_work.cancel()


async def test_after_a_restart_a_new_process_has_the_key_when_the_old_one_does_not_come(
    tmp_path: Path,
) -> None:
    spec = quiet_spec(membership=BRISK)
    async with running(tmp_path, spec) as process, node_of(process, 1) as node:
        await node.join()
    async with running(tmp_path, spec) as process, node_of(process, 1) as again:
        again.instance = 2
        await again.join()
        assert [member["peer_id"] for member in process.status()["members"]] == [again.peer]


async def test_a_copied_relay_key_is_refused_while_its_relay_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running(tmp_path, quiet_spec(membership=BRISK)) as process,
        node_of(process, 1) as relay,
        node_of(process, 1) as copy,
    ):
        copy.instance = 2
        await relay.say(relay.hello(await relay.connect(), relay=True))
        await relay.hear("welcome")
        at_work = asyncio.create_task(Clock(process, monkeypatch).beating(relay))
        await copy.say(copy.hello(await copy.connect(), relay=True))
        assert "this key is at work" in (await copy.hear("refused")).refused.reason
        at_work.cancel()
        assert process.service.copies_refused == 1


# ---- in the session


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.NodeMessage(), "expected an event of a round, got an empty message"),
        (wire.NodeMessage(hello=wire.Hello()), "expected an event of a round, got hello"),
        (wire.NodeMessage(announced=wire.Announced(loss=NAN)), "expected a finite loss"),
        (
            wire.NodeMessage(announced=wire.Announced(digest=bytes(31))),
            "expected a digest of 32 bytes, got 31 bytes",
        ),
        (wire.NodeMessage(announced=wire.Announced(samples=2**63)), "expected counts below 2**48"),
        (
            wire.NodeMessage(announced=wire.Announced(samples=10_000)),
            "expected at most 8 samples used, got 10000",
        ),
        (
            wire.NodeMessage(announced=wire.Announced(digest=bytes(32))),
            "expected a payload of 1..4096 bytes, got 0",
        ),
        (
            wire.NodeMessage(announced=wire.Announced(round=-(2**63))),
            "expected a round of at least 0",
        ),
        (wire.NodeMessage(ready=wire.Ready(round=-2)), "expected a round of at least -1, got -2"),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[bytes(32)] * 4097)),
            "expected at most 4096 digests, got 4097",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(snapshot_sha256=b"x")),
            "expected a digest of 32 bytes, got 1 bytes",
        ),
    ],
)
async def test_a_hostile_message_ends_its_session_and_nothing_else(
    tmp_path: Path, message: wire.NodeMessage, words: str
) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as hostile,
        node_of(process, 2) as honest,
    ):
        await hostile.join()
        await honest.join()
        await honest.hear("opened")
        await hostile.say(message)
        assert words in (await hostile.hear("refused")).refused.reason
        await hostile.hear_end()
        assert (await honest.ping()).sent_ms == 1


async def test_a_far_future_round_is_told_to_resync(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.join(ready=False)
        await node.say(wire.NodeMessage(ready=wire.Ready(round=2**63 - 1)))
        resync = (await node.hear("resync")).resync
        assert resync.reason == f"round {2**63 - 1} is ahead of the log's -1"
        assert process.status()["members"][0]["state"] == "catching up"


async def test_a_heartbeat_is_answered_with_ordered_times(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.join()
        reply = await node.ping()
        assert reply.sent_ms == 1
        assert 0 < reply.received_ms <= reply.replied_ms
        assert reply.steps == quiet_spec().schedule.steps


async def test_messages_after_a_goodbye_do_nothing(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as node,
        node_of(process, 2) as other,
    ):
        await node.join()
        await other.join()
        await node.hear("opened")
        await node.say(wire.NodeMessage(leave=wire.Leave(reason="done")))
        await node.announce(0)
        await node.hold(0, other.peer)
        await node.say(wire.NodeMessage(ready=wire.Ready(round=-1)))
        await node.ping()
        assert [member["peer_id"] for member in process.status()["members"]] == [other.peer]
        assert process.status()["data"]["samples_left_out"] == 8


async def test_a_lost_session_is_no_goodbye(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as node,
        node_of(process, 2) as other,
    ):
        await node.join()
        await other.join()
        await node.hear("opened")
        assert state_of(process, node) == "training"
        node.call.cancel()
        await until_after(lambda: state_of(process, node) == "away", other.ping)
        await node.join()
        assert (await node.hear("opened")).opened.round == 0
        assert state_of(process, node) == "training"


async def test_a_client_that_never_reads_is_cut_off_and_holds_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STALL_S", 3)  # a client that reads takes any message sooner
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as deaf,
        node_of(process, 2) as other,
    ):
        await deaf.join()
        await other.join()
        for _ in range(10):  # more than any window between the two takes
            process.service.delivery.broadcast(
                wire.CoordinatorMessage(skipped=wire.RoundSkipped(reason="x" * 3_000_000))
            )
        await until_after(lambda: state_of(process, deaf) == "away", other.ping)
        assert deaf.peer not in process.service.node_sessions
        assert (await other.ping()).sent_ms == 1


async def test_a_replaced_session_whose_client_does_not_read_is_cut_off_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REPLACED_S", 0.1)
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as deaf,
        node_of(process, 1) as again,
    ):
        await deaf.join()
        (old,) = process.service.node_sessions
        for _ in range(10):  # more than any window between the two takes
            old.send(wire.CoordinatorMessage(skipped=wire.RoundSkipped(reason="x" * 3_000_000)))
        await again.join()
        stream = old._stream
        assert stream is not None
        await until_after(stream.done, again.ping)


async def test_a_host_that_calls_without_end_is_told_to_slow_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "CALLS_PER_HOST", (0.001, 2))
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        for _ in range(2):
            await node.stub.GetStatus(wire.GetStatusRequest(), timeout=20)
        with pytest.raises(grpc.aio.AioRpcError, match="calls per second from one host"):
            await node.stub.GetRun(wire.GetRunRequest(), timeout=20)
        await node.join()


async def test_a_key_that_joins_without_end_is_turned_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "JOINS_PER_KEY", (0.001, 1))
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.join()
        await node.say(node.hello(await node.connect()))
        with pytest.raises(grpc.aio.AioRpcError, match="joined several times"):
            await node.hear("welcome")


async def test_a_long_member_list_comes_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_list, "MEMBERS_PAGE_BYTES", 100)
    async with running(tmp_path, quiet_spec()) as process, AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(node_of(process, n)) for n in range(1, 7)]
        told = MemberList()
        for node in nodes:
            told.update((await node.join()).members)
        while told.member_count < len(nodes):
            told.update((await nodes[-1].hear("members")).members)
        assert sorted(told.members) == sorted(node.peer for node in nodes)


async def test_a_stranger_may_ask_for_the_member_list(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as node,
        node_of(process, 2) as asker,
    ):
        await node.join()
        members = (await asker.stub.GetMembers(wire.GetMembersRequest(), timeout=20)).members
        assert [(member.peer_id, list(member.addresses)) for member in members] == [
            (node.peer, ["127.0.0.1:1"])
        ]
        assert len(process.status()["members"]) == 1


async def test_members_are_told_arrivals_and_departures_instead_of_the_list(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as node,
        node_of(process, 2) as other,
    ):
        await node.join()
        await other.join()
        came = (await node.hear("members")).members
        if [member.peer_id for member in came.members] == [
            node.peer
        ]:  # its own coming, perhaps before the welcome
            came = (await node.hear("members")).members
        assert (came.changes, [member.peer_id for member in came.members], list(came.gone)) == (
            True,
            [other.peer],
            [],
        )
        await other.say(wire.NodeMessage(leave=wire.Leave(reason="done")))
        gone = (await node.hear("members")).members
        assert (gone.changes, list(gone.members), list(gone.gone)) == (True, [], [other.peer])


async def test_a_node_that_is_wrong_twice_is_evicted_and_refused_as_the_one_at_fault(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as broken,
    ):
        await one.join()
        await two.join()
        await broken.join(ready=False)
        await broken.say(wire.NodeMessage(ready=wire.Ready(round=-1, state_digest=666)))
        assert (await broken.hear("resync")).resync.number == 1
        verdict = "this machine computes wrong results: wrong states twice in a row"
        process.service.delivery.emit(Outcome((Evict(broken.peer, verdict, True),), {}))
        refused_until_ms = 2 * int(time.time() * 1000)
        record = process.rounds.state.verdicts.records[broken.peer]
        record.refused_until_ms = refused_until_ms
        evicted = (await broken.hear("evicted")).evicted
        assert evicted.wrong_results
        assert "this machine computes wrong results" in evicted.reason
        await broken.hear_end()
        await broken.say(broken.hello(await broken.connect()))
        refused = (await broken.hear("refused")).refused
        assert (refused.wrong_results, "more minutes" in refused.reason) == (
            True,
            True,
        )


async def test_a_goodbye_in_a_replaced_session_does_not_end_the_new_one(tmp_path: Path) -> None:
    """Straight into the service: the old stream still holds a goodbye when the new session
    opens.
    """
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.join()
        goodbye, stale = asyncio.Event(), NodeSession()

        async def old_stream() -> Any:
            await goodbye.wait()
            yield wire.NodeMessage(leave=wire.Leave(reason="too late"))

        joined = node_messages.joined(node.peer, wire.Hello(), "127.0.0.1")
        reader = asyncio.create_task(process.service.read_node(joined, stale, old_stream()))
        await node.ping()
        goodbye.set()
        await reader
        assert process.status()["members"][0]["peer_id"] == node.peer
