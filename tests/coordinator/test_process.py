"""A whole coordinator over real gRPC on loopback: runs, restarts, a disk that fails."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.state.standing import SALT_BYTES
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from protocol import wire_pb2 as wire
from protocol.codec.commits import commit_digest
from protocol.errors import AddressInUseError, SettingsError, StorageError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId
from protocol.limits import PROTOCOL_VERSION
from protocol.runfile import RunSpec, parse_run_json, run_id
from tests.coordinator.client import (
    COORDINATOR_KEY,
    check_chain,
    joined_pair,
    node_of,
    quiet_spec,
    running,
    train,
)
from tests.coordinator.disk import leave_pages
from tests.coordinator.machine.driver import payload_digest, run_spec

# ---- a run


async def test_the_operators_word_and_the_secret_of_a_public_run_outlive_a_restart(
    tmp_path: Path,
) -> None:
    spec = quiet_spec(membership={"trust": "public"})
    first, second = (PeerId(f"{number:032x}") for number in (1, 2))
    salts = []
    for vouched in ([first], [], [first, second]):
        settings = CoordinatorSettings(tmp_path, "127.0.0.1:0", vouch=tuple(vouched))
        process = CoordinatorProcess(spec, settings, COORDINATOR_KEY)
        try:
            await process.start()
            standing = process.rounds.members.standing
            salts.append(standing.salt)
            assert standing.vouched >= {first, *vouched}
        finally:
            await process.stop()
    assert len(salts[0]) == SALT_BYTES
    assert set(salts) == {salts[0]}


@pytest.mark.parametrize(
    ("advertise", "address"),
    [("run.example", "run.example:{port}"), ("run.example:1", "run.example:1")],
)
async def test_the_link_has_the_address_that_the_operator_names(
    tmp_path: Path, advertise: str, address: str
) -> None:
    settings = CoordinatorSettings(tmp_path, "0.0.0.0:0", advertise)
    process = CoordinatorProcess(quiet_spec(), settings, COORDINATOR_KEY)
    try:
        await process.start()
        port = process.address.rpartition(":")[2]
        assert process.link.address == address.format(port=port)
        assert (await process.desk.document())["link"] == process.link.text()
    finally:
        await process.stop()


async def test_a_run_among_people_that_know_each_other_has_no_secret(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        assert process.rounds.members.standing.salt == b""


async def test_two_nodes_train_to_commits_that_verify(tmp_path: Path) -> None:
    async with joined_pair(tmp_path, quiet_spec()) as (process, one, two):
        told = await train([one, two], 3)
        await one.ping()
        reply, commits = await one.commits_after(-1)
        assert commits == told
        assert (reply.decided_round, reply.head_round) == (2, 2)
        check_chain(process.run_id, commits)
        for commit in commits:
            assert [entry.author for entry in commit.entries] == sorted([one.peer, two.peer])
            assert [entry.digest for entry in commit.entries] == [
                payload_digest(author, commit.round) for author in sorted([one.peer, two.peer])
            ]
        _, later = await one.commits_after(1)
        assert later == told[2:]
        await two.ping()
        assert [row.digest_reports for row in (await one.commits_after(-1))[0].commits] == [2, 2, 2]


async def test_holders_come_in_the_order_of_entries(tmp_path: Path) -> None:
    async with joined_pair(tmp_path, quiet_spec()) as (_, one, two):
        await train([one, two], 1)
        told = next(
            message.committed for message in one.heard if message.WhichOneof("kind") == "committed"
        )
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
    async with joined_pair(tmp_path, quiet_spec()) as (process, one, two):
        await train([one, two], 1)
        await one.ping()
        served = msgspec.json.decode((await one.stub.GetStatus(wire.GetStatusRequest())).json)
        own = msgspec.json.decode(msgspec.json.encode(process.status()))
        for document in (served, own):
            del document["traffic"]["control_up_bytes"]  # to say it takes bytes as well
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
    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
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
        quiet_spec(schedule={"steps": 1}),
        CoordinatorSettings(tmp_path, "127.0.0.1:0", goodbye_ms=0),
        COORDINATOR_KEY,
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
        await node.say(node.hello(await node.connect()))
        assert (await node.hear("evicted")).evicted.reason == "silent for 0.2 s"
        await node.hear_end()
        assert process.status()["members"] == []


# ---- stop and start


async def test_the_same_directory_continues_the_run(tmp_path: Path) -> None:
    spec = quiet_spec()
    async with joined_pair(tmp_path, spec) as (process, one, two):
        told = await train([one, two], 2)
        await one.ping()
        await two.ping()
        first_run = process.run_id
    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
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


async def test_a_restart_forgets_neither_times_nor_reasons_nor_those_that_left(
    tmp_path: Path,
) -> None:
    spec = quiet_spec()
    async with joined_pair(tmp_path, spec) as (process, one, two):
        await train([one, two], 2)
        for node in (one, two):
            await node.say(wire.NodeMessage(leave=wire.Leave(reason="bored")))
            await node.ping()
        known, credit = process.history.after(-1), process.history.credit
        assert [each["outcome"] for each in known] == ["committed", "committed", "skipped"]
        assert known[-1]["reason"]
        assert all(each["seconds"] is not None for each in known)
    async with running(tmp_path, spec) as process:
        assert process.history.after(-1) == known
        assert process.history.names == {one.peer: "scripted", two.peer: "scripted"}
        assert process.history.credit == credit


async def test_a_round_in_flight_goes_on_after_a_restart(tmp_path: Path) -> None:
    spec = quiet_spec()
    async with joined_pair(tmp_path, spec) as (process, one, two):
        await one.announce((await one.hear("opened")).opened.round)
        await one.ping()
    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        await one.join(ready=False)
        await one.announce(0)  # as every node says again what it holds
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
        quiet_spec(schedule={"steps": 7}),
        CoordinatorSettings(tmp_path, "127.0.0.1:0"),
        COORDINATOR_KEY,
    )
    with pytest.raises(SettingsError, match=r"was changed \(schedule\.steps was \d+, is 7\)"):
        await other.start()
    await other.stop()
    stranger = CoordinatorProcess(
        quiet_spec(), CoordinatorSettings(tmp_path, "127.0.0.1:0"), Ed25519PrivateKey.generate()
    )
    with pytest.raises(SettingsError, match=r"so key\.pem is another: put the run's own key back"):
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


async def test_an_address_of_another_machine_is_no_taken_port(tmp_path: Path) -> None:
    settings = CoordinatorSettings(tmp_path, "192.0.2.1:50700")
    process = CoordinatorProcess(quiet_spec(), settings, COORDINATOR_KEY)
    with pytest.raises(SettingsError, match="the address is not this machine's"):
        await process.start()
    await process.stop()


async def test_a_port_that_needs_rights_is_no_taken_port(tmp_path: Path) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 80))
        except PermissionError:
            pass
        except OSError as error:
            pytest.skip(f"port 80 cannot be tried here: {error}")
        else:
            pytest.skip("this account may take ports below 1024")
    settings = CoordinatorSettings(tmp_path, "127.0.0.1:80")
    process = CoordinatorProcess(quiet_spec(), settings, COORDINATOR_KEY)
    with pytest.raises(SettingsError, match="choose a higher one"):
        await process.start()
    await process.stop()


async def test_stop_is_safe_before_start_and_twice(tmp_path: Path) -> None:
    process = CoordinatorProcess(
        quiet_spec(), CoordinatorSettings(tmp_path, "127.0.0.1:0"), COORDINATOR_KEY
    )
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


async def test_a_full_disk_ends_the_process_and_no_unwritten_commit_was_sent(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        ended = asyncio.create_task(process.finished())
        await one.join()
        await two.join()
        told = await train([one, two], 1)
        leave_pages(process.journal, 0)
        with pytest.raises(
            (AssertionError, TimeoutError, grpc.aio.AioRpcError, asyncio.CancelledError)
        ):
            await asyncio.wait_for(asyncio.gather(train([one, two], 1000), died(ended)), 60)
        with pytest.raises(StorageError, match="database or disk is full"):
            await asyncio.wait_for(ended, 20)
        assert process.unready() == "the coordinator's loop has stopped"
        heard = [
            message.committed for message in one.heard if message.WhichOneof("kind") == "committed"
        ]
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
    async with joined_pair(tmp_path, quiet_spec()) as (process, one, two):
        await one.hear("opened")
        for node, other in ((one, two), (two, one)):
            await node.announce(0)
            await node.ping()
            if node is one:
                await node.hold(0, other.peer)
                await node.ping()
        loop, writing, may_write = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        append = process.journal.append

        def slowly(*batch: Any, **trained: Any) -> None:
            loop.call_soon_threadsafe(writing.set)
            asyncio.run_coroutine_threadsafe(may_write.wait(), loop).result(20)
            append(*batch, **trained)

        monkeypatch.setattr(process.journal, "append", slowly)
        await two.hold(0, one.peer)
        await asyncio.wait_for(writing.wait(), 20)
        assert process.rounds.state.decided_round == 0
        reply, commits = await one.commits_after(-1)
        assert (commits, reply.decided_round, reply.head_round) == ([], -1, -1)
        may_write.set()
        await one.hear("committed")
        reply, commits = await one.commits_after(-1)
        assert (len(commits), reply.decided_round) == (1, 0)


def test_run_and_settings_name_the_process(tmp_path: Path) -> None:
    process = CoordinatorProcess(
        RunSpec(), CoordinatorSettings(tmp_path, "127.0.0.1:0"), COORDINATOR_KEY
    )
    assert process.run_id == run_id(RunSpec(), public_bytes(COORDINATOR_KEY))
    assert process.run_id != RunId("")
    process.journal.close()
