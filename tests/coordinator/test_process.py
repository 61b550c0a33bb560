"""A whole coordinator over real gRPC on loopback, with scripted nodes."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator import server
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from protocol import wire_pb2 as wire
from protocol.commits import check_link, commit_digest, genesis_digest
from protocol.errors import AddressInUseError, SettingsError, StorageError
from protocol.handshake import public_bytes, sign_hello
from protocol.ids import RunId
from protocol.limits import PROTOCOL_VERSION
from protocol.runfile import RunSpec, parse_run_json, run_id
from tests.coordinator.client import COORDINATOR_KEY, ScriptedNode, node_key, quiet_spec, running, train, until
from tests.coordinator.driver import payload_digest, run_spec

NAN = float("nan")


def node_of(process: CoordinatorProcess, number: int) -> ScriptedNode:
    return ScriptedNode(process.address, process.run_id, node_key(number))


# ---- the door


async def test_a_proven_node_is_welcomed_and_a_member(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        welcome = await node.join()
        assert (welcome.decided_round, welcome.head_round) == (-1, -1)
        assert [member.peer_id for member in welcome.members.members] == [node.peer]
        assert process.status()["members"][0]["peer_id"] == node.peer


async def test_every_session_has_its_own_nonce(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        nonces = {await node.connect() for _ in range(3)}
        assert len(nonces) == 3
        assert {len(nonce) for nonce in nonces} == {32}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"signature": bytes(64)}, "expected a hello signed by the key it names"),
        ({"signature": b"short"}, "expected a key of 32 and a signature of 64 bytes"),
        ({"public_key": public_bytes(node_key(9))}, "expected a hello signed by the key it names"),
        ({"public_key": bytes(31)}, "expected a key of 32 and a signature of 64 bytes"),
        ({"run_id": "ff" * 16}, "expected a node of run"),
        ({"run_id": "x" * 100_000}, "expected a node of run"),
        ({"protocol_version": PROTOCOL_VERSION + 1}, f"expected protocol version {PROTOCOL_VERSION}, got 2"),
        ({"protocol_version": 0}, f"expected protocol version {PROTOCOL_VERSION}, got 0"),
        ({"name": "n" * 10_000}, "expected texts of at most 256 bytes"),
        ({"addresses": ["a:1"] * 9}, "expected at most 8 addresses, got 9"),
    ],
)
async def test_a_wrong_hello_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
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
        assert "expected a hello signed by the key it names" in (await node.hear("refused")).refused.reason


async def test_anything_before_the_hello_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        for message, name in [(wire.NodeMessage(ready=wire.Ready(round=0)), "ready"), (wire.NodeMessage(), "None")]:
            await node.connect()
            await node.say(message)
            assert (await node.hear("refused")).refused.reason == f"expected a hello first, got {name}"


async def test_a_session_without_a_hello_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_SECONDS", 0.01)
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
        assert (await third.hear("refused")).refused.reason == "the run is full: 2 members"
        await third.hear_end()


async def test_a_second_session_with_one_key_closes_the_first_with_the_reason(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as node,
        node_of(process, 1) as copy,
    ):
        await node.join()
        await copy.join()
        reason = (await node.hear("refused")).refused.reason
        assert reason == "another session with this node's key has opened; one key is one node"
        await node.hear_end()
        await copy.ping()
        assert len(process.status()["members"]) == 1
        assert process.status()["members"][0]["state"] == "ready"


# ---- in the session


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.NodeMessage(), "expected an event of a round, got an empty message"),
        (wire.NodeMessage(hello=wire.Hello()), "expected an event of a round, got hello"),
        (wire.NodeMessage(announced=wire.Announced(loss=NAN)), "expected a finite loss"),
        (wire.NodeMessage(announced=wire.Announced(digest=bytes(31))), "expected a digest of 32 bytes, got 31 bytes"),
        (wire.NodeMessage(announced=wire.Announced(samples=2**63)), "expected counts below 2**48"),
        (wire.NodeMessage(announced=wire.Announced(samples=10_000)), "expected at most 8 samples used, got 10000"),
        (wire.NodeMessage(announced=wire.Announced(digest=bytes(32))), "expected a payload of 1..4096 bytes, got 0"),
        (wire.NodeMessage(announced=wire.Announced(round=-(2**63))), "expected a round of at least 0"),
        (wire.NodeMessage(ready=wire.Ready(round=-2)), "expected a round of at least -1, got -2"),
        (wire.NodeMessage(holding=wire.Holding(digests=[bytes(32)] * 4097)), "expected at most 4096 digests, got 4097"),
        (wire.NodeMessage(applied=wire.Applied(snapshot_sha256=b"x")), "expected a digest of 32 bytes, got 1 bytes"),
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


async def test_what_is_said_after_a_goodbye_does_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node, node_of(process, 2) as other:
        await node.join()
        await other.join()
        await node.hear("opened")
        await node.say(wire.NodeMessage(leave=wire.Leave(reason="done")))
        await node.announce(0)
        await node.hold(0, other.peer)
        await node.say(wire.NodeMessage(ready=wire.Ready(round=-1)))
        await node.ping()
        assert [member["peer_id"] for member in process.status()["members"]] == [other.peer]
        assert process.status()["data"] == {"samples_trained": 0, "samples_lost": 8}


async def test_a_lost_session_is_no_goodbye(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node, node_of(process, 2) as other:
        await node.join()
        await other.join()
        await node.hear("opened")

        def state() -> str:
            return next(row["state"] for row in process.status()["members"] if row["peer_id"] == node.peer)

        assert state() == "training"
        node.call.cancel()
        await until(lambda: state() == "away", other.ping)
        await node.join()
        assert (await node.hear("opened")).opened.round == 0
        assert state() == "training"


async def test_a_goodbye_in_a_replaced_session_does_not_end_the_new_one(tmp_path: Path) -> None:
    """Straight into the service: the old stream still holds a goodbye when the new session opens."""
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.join()
        service, goodbye = process._service, asyncio.Event()
        stale = server.NodeSession()

        async def old_stream() -> Any:
            await goodbye.wait()
            yield wire.NodeMessage(leave=wire.Leave(reason="too late"))

        joined = server.messages.joined(node.peer, wire.Hello())
        reader = asyncio.create_task(service._read(joined, stale, old_stream()))
        await node.ping()
        goodbye.set()
        await reader
        assert process.status()["members"][0]["peer_id"] == node.peer


# ---- a run


async def test_two_nodes_train_to_commits_that_verify(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        told = await train([one, two], 3)
        await one.ping()
        reply, commits = await one.commits_after(-1)
        assert commits == told
        assert (reply.decided_round, reply.head_round) == (2, 2)
        previous, previous_round = genesis_digest(process.run_id), -1
        for commit in commits:
            check_link(commit, process.run_id, previous, previous_round)
            previous, previous_round = commit_digest(commit), commit.round
            assert [entry.author for entry in commit.entries] == sorted([one.peer, two.peer])
            assert [entry.digest for entry in commit.entries] == [
                payload_digest(author, commit.round) for author in sorted([one.peer, two.peer])
            ]
        _, later = await one.commits_after(1)
        assert later == told[2:]
        await two.ping()
        assert [row.digest_reports for row in (await one.commits_after(-1))[0].commits] == [2, 2, 2]


async def test_holders_come_in_the_order_of_entries(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        await train([one, two], 1)
        told = next(message.committed for message in one.heard if message.WhichOneof("kind") == "committed")
        assert [list(row.peer_ids) for row in told.holders] == [sorted([one.peer, two.peer])] * 2


async def test_the_run_is_served_with_a_name_that_can_be_checked(tmp_path: Path) -> None:
    spec = quiet_spec()
    async with running(tmp_path, spec) as process, node_of(process, 1) as node:
        run = await node.stub.GetRun(wire.GetRunRequest())
        served = parse_run_json(run.run_json, "coordinator")
        assert served == spec
        assert run.run_id == run_id(served, run.coordinator_key) == process.run_id
        assert run.coordinator_key == public_bytes(COORDINATOR_KEY)
        assert run.protocol_version == PROTOCOL_VERSION


async def test_the_status_is_the_same_document_everywhere(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        await train([one, two], 1)
        await one.ping()
        served = msgspec.json.decode((await one.stub.GetStatus(wire.GetStatusRequest())).json)
        own = msgspec.json.decode(msgspec.json.encode(process.status()))
        for document in (served, own):
            for member in document["members"]:
                del member["member_seconds"]
        assert served == own
        assert served["address"] == process.address
        assert served["steps"]["committed"] == 1


@pytest.mark.parametrize("after_round", [-(2**63), 2**63 - 1])
async def test_any_after_round_can_be_asked(tmp_path: Path, after_round: int) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        reply, commits = await node.commits_after(after_round)
        assert (commits, reply.decided_round) == ([], -1)


async def test_a_finished_run_ends_when_its_nodes_have_left(tmp_path: Path) -> None:
    spec = quiet_spec(schedule={"steps": 1})
    async with running(tmp_path, spec) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        ended = asyncio.create_task(process.finished())
        await one.join()
        await two.join()
        await train([one, two], 1)
        for node in (one, two):
            finished = (await node.hear("finished")).finished
            assert (finished.head_round, finished.reason) == (0, "all 1 steps are done")
            await node.ping()
        assert not ended.done()
        for node in (one, two):
            await node.say(wire.NodeMessage(leave=wire.Leave()))
        await asyncio.wait_for(ended, 20)


async def test_a_finished_run_does_not_wait_for_ever(tmp_path: Path) -> None:
    process = CoordinatorProcess(
        quiet_spec(schedule={"steps": 1}), CoordinatorSettings(tmp_path, "127.0.0.1:0", goodbye_ms=0), COORDINATOR_KEY
    )
    await process.start()
    async with node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        await train([one, two], 1)
        await asyncio.wait_for(process.finished(), 20)
    await process.stop()


async def test_a_silent_member_is_evicted_with_the_reason(tmp_path: Path) -> None:
    spec = run_spec(membership={"lease_ms": 200, "heartbeat_ms": 100})
    async with running(tmp_path, spec) as process, node_of(process, 1) as node:
        await node.join()
        assert (await node.hear("evicted")).evicted.reason == "silent for 0.2 s"
        await node.hear_end()
        assert process.status()["members"] == []


# ---- stop and start


async def test_the_same_directory_continues_the_run(tmp_path: Path) -> None:
    spec = quiet_spec()
    async with running(tmp_path, spec) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        told = await train([one, two], 2)
        await one.ping()
        await two.ping()
        first_run = process.run_id
    async with running(tmp_path, spec) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        assert process.run_id == first_run
        assert process.status()["steps"]["committed"] == 2
        welcome = await one.join()
        assert (welcome.decided_round, welcome.head_round) == (1, 1)
        await two.join()
        told += await train([one, two], 2)
        assert [commit.round for commit in told] == [0, 1, 2, 3]
        assert told[2].previous == commit_digest(told[1])
        _, commits = await one.commits_after(-1)
        assert commits == told


async def test_a_round_in_flight_goes_on_after_a_restart(tmp_path: Path) -> None:
    spec = quiet_spec()
    async with running(tmp_path, spec) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        await one.announce((await one.hear("opened")).opened.round)
        await one.ping()
    async with running(tmp_path, spec) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        assert (await two.hear("opened")).opened.round == 0
        await two.announce(0)
        await two.hold(0, one.peer)
        await one.hold(0, two.peer)
        assert (await one.hear("committed")).committed.commit.body


async def test_another_runs_directory_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()):
        pass
    other = CoordinatorProcess(
        quiet_spec(schedule={"steps": 7}), CoordinatorSettings(tmp_path, "127.0.0.1:0"), COORDINATOR_KEY
    )
    with pytest.raises(SettingsError, match="belongs to run"):
        await other.start()
    await other.stop()
    stranger = CoordinatorProcess(
        quiet_spec(), CoordinatorSettings(tmp_path, "127.0.0.1:0"), Ed25519PrivateKey.generate()
    )
    with pytest.raises(SettingsError, match="belongs to run"):
        await stranger.start()
    await stranger.stop()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async with running(tmp_path / "one", quiet_spec()) as process:
        second = CoordinatorProcess(
            quiet_spec(), CoordinatorSettings(tmp_path / "two", process.address), COORDINATOR_KEY
        )
        with pytest.raises(AddressInUseError, match=f"cannot listen on {process.address}"):
            await second.start()
        await second.stop()
        async with node_of(process, 1) as node:
            await node.join()


async def test_stop_is_safe_before_start_and_twice(tmp_path: Path) -> None:
    process = CoordinatorProcess(quiet_spec(), CoordinatorSettings(tmp_path, "127.0.0.1:0"), COORDINATOR_KEY)
    assert process.unready() == "the coordinator is starting"
    await process.stop()
    await process.stop()


async def test_a_stop_ends_every_session(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as node:
        await node.join()
        await process.stop()
        with suppress(grpc.aio.AioRpcError):  # ended or cut off: in any case not left waiting
            await node.hear_end()


# ---- a disk that fails


async def test_a_full_disk_ends_the_process_and_no_unwritten_commit_was_told(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        ended = asyncio.create_task(process.finished())
        await one.join()
        await two.join()
        told = await train([one, two], 1)
        database = process._journal._database
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises((AssertionError, TimeoutError, grpc.aio.AioRpcError, asyncio.CancelledError)):
            await asyncio.wait_for(asyncio.gather(train([one, two], 1000), died(ended)), 60)
        with pytest.raises(StorageError, match="database or disk is full"):
            await asyncio.wait_for(ended, 20)
        assert process.unready() == "the coordinator's loop has stopped"
        heard = [message.committed for message in one.heard if message.WhichOneof("kind") == "committed"]
        reply, commits = await one.commits_after(-1)
        assert commits[: len(told)] == told
        assert {row.body for row in reply.commits} >= {message.commit.body for message in heard}
        assert reply.decided_round == commits[-1].round


async def died(ended: "asyncio.Task[None]") -> None:
    """Return never; raise once the process has ended."""
    await asyncio.wait([ended])
    raise TimeoutError


async def test_a_commit_that_is_being_written_is_neither_served_nor_taken_for_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 1) as one, node_of(process, 2) as two:
        await one.join()
        await two.join()
        await one.hear("opened")
        for node, other in ((one, two), (two, one)):
            await node.announce(0)
            await node.ping()
            if node is one:
                await node.hold(0, other.peer)
                await node.ping()
        loop, writing, may_write = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        record = process._core._record

        def slowly(batch: Any) -> Any:
            loop.call_soon_threadsafe(writing.set)
            asyncio.run_coroutine_threadsafe(may_write.wait(), loop).result(20)
            return record(batch)

        monkeypatch.setattr(process._core, "_record", slowly)
        await two.hold(0, one.peer)
        await asyncio.wait_for(writing.wait(), 20)
        assert process._rounds.decided_round == 0
        reply, commits = await one.commits_after(-1)
        assert (commits, reply.decided_round, reply.head_round) == ([], -1, -1)
        may_write.set()
        await one.hear("committed")
        reply, commits = await one.commits_after(-1)
        assert (len(commits), reply.decided_round) == (1, 0)


def test_run_and_settings_name_the_process(tmp_path: Path) -> None:
    process = CoordinatorProcess(RunSpec(), CoordinatorSettings(tmp_path, "127.0.0.1:0"), COORDINATOR_KEY)
    assert process.run_id == run_id(RunSpec(), public_bytes(COORDINATOR_KEY))
    assert process.run_id != RunId("")
    process._journal.close()
