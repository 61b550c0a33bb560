"""A coordinator that is shown a commit of its own which it lacks decides nothing more."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import JOURNAL_NAME
from coordinator.process import CoordinatorProcess
from coordinator.service.heads import TOO_OLD, TWO_HISTORIES
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, sign_commit
from protocol.codec.heads import PROOF_NAME, head_of, read_proof
from protocol.errors import EquivocationError, StorageError
from tests.coordinator.client import (
    COORDINATOR_KEY,
    PATIENCE_S,
    ScriptedNode,
    joined_pair,
    node_key,
    node_of,
    quiet_spec,
    running,
    train,
)
from tests.support.waiting import until

SPEC = quiet_spec()
FORGER = Ed25519PrivateKey.from_private_bytes(b"x" * 32)


def head(commit: Commit, key: Ed25519PrivateKey = COORDINATOR_KEY) -> wire.Head:
    return head_of(commit, sign_commit(commit, key)).message


class Busier(ScriptedNode):
    """A node that trains more samples than others."""

    async def announce(self, round: int, **changes: Any) -> None:
        await super().announce(round, samples=2, **changes)


@pytest.fixture
async def history(tmp_path: Path) -> list[Commit]:
    """Five commits, in `new`; the directory as it was after the second is in `old`, and one of the
    same two commits and two others in `other`.
    """
    told = []
    async with joined_pair(tmp_path / "new", SPEC) as (_, one, two):
        told += await train([one, two], 2)
        await one.ping()
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    async with joined_pair(tmp_path / "new", SPEC) as (_, one, two):
        told += await train([one, two], 3)
    shutil.copytree(tmp_path / "old", tmp_path / "other")
    async with (
        running(tmp_path / "other", SPEC) as process,
        Busier(process.address, process.run_id, node_key(1)) as one,
        Busier(process.address, process.run_id, node_key(2)) as two,
    ):
        await one.join()
        await two.join()
        other = await train([one, two], 2)
    assert other[0].step == told[2].step
    assert other[0] != told[2]
    return told


@asynccontextmanager
async def shown(
    directory: Path, said: wire.Head
) -> AsyncIterator[tuple[CoordinatorProcess, ScriptedNode, wire.CoordinatorMessage]]:
    """A coordinator, a node that said this in its hello, and the answer."""
    async with running(directory, SPEC) as process, node_of(process, 1) as node:
        await node.say(node.hello(await node.connect(), head=said))
        yield process, node, await node.hear("welcome", "refused")


async def ended(process: CoordinatorProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await process.finished()


async def test_a_coordinator_from_an_old_copy_stops_and_says_what_to_do(
    tmp_path: Path, history: list[Commit]
) -> None:
    async with shown(tmp_path / "old", head(history[4])) as (process, node, answer):
        assert answer.refused.retry, "the node waits for the newer directory"
        with pytest.raises(StorageError) as error:
            await ended(process)
        assert process.status()["heads"]["fault"] == str(error.value)
    words = str(error.value)
    assert f"{tmp_path / 'old'} is an old copy of this coordinator's directory" in words
    assert f"has shown the commit of round {history[4].round}" in words
    assert f"the newest one here is of round {history[1].round}" in words
    assert "Put the directory back from a copy that has that commit" in words
    assert answer.refused.reason == TOO_OLD, "nothing of the operator's machine"
    assert node.peer[:8] in words


async def test_the_key_alone_in_a_new_directory_is_refused(
    tmp_path: Path, history: list[Commit]
) -> None:
    async with shown(tmp_path / "empty", head(history[0])) as (process, _, _):
        with pytest.raises(StorageError, match=r"or a new one with its key: .* none is here"):
            await ended(process)


async def test_nothing_is_decided_once_a_newer_commit_is_known(
    tmp_path: Path, history: list[Commit]
) -> None:
    """Not even a round that was about to be committed leaves the process."""
    async with joined_pair(tmp_path / "old", SPEC) as (process, one, two):
        opened = [(await node.hear("opened")).opened.round for node in (one, two)]
        for node in (one, two):
            await node.announce(opened[0])
        async with node_of(process, 3) as third:
            await third.say(third.hello(await third.connect(), head=head(history[4])))
            await third.hear("refused")
        for node, other in ((one, two), (two, one)):
            await node.hold(opened[0], other.peer)
        with pytest.raises(StorageError):
            await ended(process)
        await process.stop()
        await one.hear_end()
        assert not [message for message in one.heard if message.HasField("committed")]


async def test_what_was_being_written_when_a_newer_commit_was_shown_is_told_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined_pair(tmp_path, SPEC) as (process, one, two):
        append = process.journal.append

        def shown_meanwhile(events: Any, commits: Any, *others: Any, **named: Any) -> None:
            append(events, commits, *others, **named)
            if commits:
                process.service.heads.fault = StorageError("an old copy")

        monkeypatch.setattr(process.journal, "append", shown_meanwhile)
        opened = [(await node.hear("opened")).opened.round for node in (one, two)]
        for node, other in ((one, two), (two, one)):
            await node.announce(opened[0])
            await node.hold(opened[0], other.peer)
        await until(lambda: process.journal.last_commits(1))
        await process.stop()
        await one.hear_end()
        assert not [message for message in one.heard if message.HasField("committed")]


async def test_a_member_that_learns_of_a_newer_commit_later_stops_it_too(
    tmp_path: Path, history: list[Commit]
) -> None:
    async with joined_pair(tmp_path / "old", SPEC) as (process, one, _):
        beat = wire.Heartbeat(sent_ms=1, head=head(history[2]))
        await one.say(wire.NodeMessage(heartbeat=beat))
        assert (await one.hear("refused")).refused.retry
        with pytest.raises(StorageError):
            await ended(process)


async def test_a_relay_that_knows_a_newer_commit_stops_it_too(
    tmp_path: Path, history: list[Commit]
) -> None:
    async with running(tmp_path / "old", SPEC) as process, node_of(process, 9) as relay:
        await relay.say(relay.hello(await relay.connect(), relay=True))
        await relay.hear("welcome")
        beat = wire.Heartbeat(sent_ms=1, head=head(history[2]))
        await relay.say(wire.NodeMessage(heartbeat=beat))
        await relay.hear("refused")
        with pytest.raises(StorageError):
            await ended(process)


@pytest.mark.parametrize("newer", [0, 1], ids=["of a step it has", "while it has gone further"])
async def test_two_histories_stop_it_and_leave_a_proof(
    tmp_path: Path, history: list[Commit], newer: int
) -> None:
    async with shown(tmp_path / "other", head(history[2 + newer])) as (process, _, answer):
        assert answer.refused.retry
        assert answer.refused.reason == TWO_HISTORIES
        with pytest.raises(EquivocationError, match="has signed two different commits of") as error:
            await ended(process)
    proof = read_proof((tmp_path / "other" / PROOF_NAME).read_bytes())
    assert proof.second.message == head(history[2 + newer])
    assert str(tmp_path / "other" / PROOF_NAME) in str(error.value)


@pytest.mark.parametrize("known", range(5))
async def test_old_heads_and_the_newest_are_welcome(
    tmp_path: Path, history: list[Commit], known: int
) -> None:
    async with shown(tmp_path / "new", head(history[known])) as (process, _, answer):
        assert answer.welcome.head == head(history[4]), "the coordinator shows its own"
        assert process.service.heads.fault is None


async def test_forged_heads_are_counted_and_stop_nobody(
    tmp_path: Path, history: list[Commit]
) -> None:
    newest = history[4]
    forged = [
        head(replace(newest, round=99, step=99), FORGER),
        head(replace(newest, decay_bits=9), FORGER),
        wire.Head(round=99, step=99, digest=bytes(32), signature=head(newest).signature),
        wire.Head(round=-1, step=-1, digest=bytes(5), signature=bytes(9)),
        wire.Head(),
    ]
    async with running(tmp_path / "new", SPEC) as process:
        for number, said in enumerate(forged, 1):
            async with node_of(process, number) as node:
                await node.say(node.hello(await node.connect(), head=said))
                await node.hear("welcome")
            assert process.status()["heads"] == {"forged": number, "fault": ""}
        assert process.service.heads.fault is None


async def test_a_damaged_signature_of_the_newest_commit_is_damage(
    tmp_path: Path, history: list[Commit]
) -> None:
    with closing(sqlite3.connect(tmp_path / "new" / JOURNAL_NAME)) as database:
        database.execute("UPDATE commits SET signature = zeroblob(64)")
        database.commit()
    with pytest.raises(StorageError, match=f"commit of round {history[4].round} is damaged"):
        async with running(tmp_path / "new", SPEC):
            pass


async def test_a_commit_is_shown_as_soon_as_it_is_told(tmp_path: Path) -> None:
    async with joined_pair(tmp_path, SPEC) as (process, one, two), node_of(process, 3) as third:
        for commit in await train([one, two], 3):
            assert process.service.heads.newest is not None
            assert process.service.heads.newest.round >= commit.round
        welcome = await third.join()
        assert welcome.head.round == welcome.head_round == 2
