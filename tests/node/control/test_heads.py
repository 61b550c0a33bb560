"""What a process does with the heads that it knows: it keeps them, compares them, and leaves a
coordinator that has signed two histories.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control import heads as keeping
from node.control.heads import NOTE_NAME, HeadKeeper
from node.system.run_notes import write_note
from protocol import wire_pb2 as wire
from protocol.codec.heads import PROOF_NAME, read_proof
from protocol.errors import (
    EquivocationError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from protocol.handshake import public_bytes
from protocol.run_info import RunInfo
from protocol.runfile import run_id
from tests.support.history import History
from tests.support.tiny import tiny_spec
from tests.support.waiting import until

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
SPEC = tiny_spec()
INFO = RunInfo(SPEC, run_id(SPEC, public_bytes(KEY)), public_bytes(KEY))
HISTORY = History(KEY, INFO.run_id, 20)
OTHER = History(KEY, INFO.run_id, 20, fork=5)

Fetch = Callable[[int], Awaitable[wire.Commits]]


async def silence(after_round: int) -> wire.Commits:
    await asyncio.Event().wait()
    raise AssertionError("nobody answers")


def keeper(directory: Path, steps: int, fetch: Fetch = silence) -> HeadKeeper:
    """One that has taken so many commits."""
    made = HeadKeeper(INFO, directory, fetch)
    for commit in HISTORY.signed[:steps]:
        made.heads.take(*commit)
    return made


def greeting(history: History, steps: int) -> wire.Welcome:
    head = history.head(steps - 1)
    return wire.Welcome(decided_round=head.round, head_round=head.round, head=head.message)


@asynccontextmanager
async def watched(
    made: HeadKeeper, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[asyncio.Task[None], wire.Hello, list[wire.NodeMessage]]]:
    """The watch under way, the hello that it fills, and what it sends."""
    monkeypatch.setattr(keeping, "LOOK_S", 0.01)
    hello, sent = wire.Hello(), list[wire.NodeMessage]()
    watching = asyncio.create_task(made.watch(hello, sent.append))
    try:
        yield watching, hello, sent
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


# ---- the coordinator


@pytest.mark.parametrize("steps", [8, 9])
def test_a_coordinator_with_all_that_this_node_has_is_greeted(tmp_path: Path, steps: int) -> None:
    keeper(tmp_path, 8).greeted(greeting(HISTORY, steps))
    keeper(tmp_path, 0).greeted(greeting(HISTORY, steps))
    keeper(tmp_path, 0).greeted(wire.Welcome(decided_round=-1, head_round=-1))


def test_a_coordinator_from_an_old_copy_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as error:
        keeper(tmp_path, 8).greeted(greeting(HISTORY, 3))
    assert str(error.value) == (
        "the coordinator was started from an old copy of its directory: its newest commit is of "
        "round 2, and this process has its commit of round 7; waits for the newer directory"
    )


def test_a_coordinator_with_the_key_alone_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="it has no commit, and this process has its"):
        keeper(tmp_path, 8).greeted(wire.Welcome(decided_round=-1, head_round=-1))


def test_what_only_peers_know_blames_no_coordinator(tmp_path: Path) -> None:
    """A peer may hear of a commit before this node does."""
    made = keeper(tmp_path, 8)
    made.heads.show(HISTORY.head(9).message)
    made.greeted(greeting(HISTORY, 8))


async def test_a_head_that_only_peers_know_is_shown_to_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keeper(tmp_path, 8)
    async with watched(made, monkeypatch) as (_, hello, sent):
        await until(lambda: hello.head == HISTORY.head(7).message)
        assert sent == [], "what the coordinator gave is not said again"
        made.heads.show(HISTORY.head(9).message)
        await until(lambda: sent and hello.head == HISTORY.head(9).message)
        assert sent[0].heartbeat.head == HISTORY.head(9).message
        for commit in HISTORY.signed[8:10]:
            made.heads.take(*commit)
        hello.Clear()
        count = len(sent)
        await until(lambda: hello.HasField("head"))
        assert len(sent) == count


# ---- two histories


async def test_a_proof_is_kept_and_ends_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = keeper(tmp_path, 8)
    async with watched(made, monkeypatch) as (watching, _, _):
        made.heads.show(OTHER.head(6).message)
        with pytest.raises(EquivocationError) as error:
            await watching
    proof = read_proof((tmp_path / PROOF_NAME).read_bytes())
    assert (proof.first, proof.second) == (HISTORY.head(6), OTHER.head(6))
    assert "has signed two different commits of round 6" in str(error.value)
    assert f"The proof, which lockstep verify --proof checks, is in {tmp_path / PROOF_NAME}" in str(
        error.value
    )
    assert made.document()["equivocation"] == proof.words
    assert [record.message for record in caplog.records] == ["two histories"]


async def test_a_coordinator_that_is_greeted_with_another_history_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keeper(tmp_path, 8)
    made.greeted(greeting(OTHER, 8))
    async with watched(made, monkeypatch) as (watching, _, _):
        with pytest.raises(EquivocationError):
            await watching


async def test_a_newer_head_of_another_history_is_found_by_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keeper(tmp_path, 8, OTHER.fetch)
    made.greeted(greeting(OTHER, 20))
    assert made.heads.equivocation is None
    async with watched(made, monkeypatch) as (watching, _, _):
        with pytest.raises(EquivocationError):
            await watching


async def test_a_chain_that_does_not_hold_is_explained_by_two_histories(tmp_path: Path) -> None:
    async def broken() -> None:
        raise RemoteProtocolError("commit of round 8 does not follow the one before it")

    with pytest.raises(EquivocationError):
        await keeper(tmp_path / "one", 8, OTHER.fetch).explained(broken())
    with pytest.raises(RemoteProtocolError, match="does not follow"):
        await keeper(tmp_path / "two", 8, HISTORY.fetch).explained(broken())


async def test_a_coordinator_that_is_silent_explains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "COMPARE_S", 0.01)
    await keeper(tmp_path, 8).compare()


async def test_a_disk_that_takes_no_proof_is_no_reason_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keeper(tmp_path, 8)
    made.heads.show(OTHER.head(6).message)
    (tmp_path / PROOF_NAME).mkdir()
    with pytest.raises(EquivocationError, match="The proof is not kept: "):
        await made.compare()


# ---- from one start to the next


def test_a_kept_proof_refuses_the_run_at_the_next_start(tmp_path: Path) -> None:
    made = keeper(tmp_path, 8)
    made.heads.show(OTHER.head(6).message)
    with pytest.raises(EquivocationError):
        asyncio.run(made.compare())
    with pytest.raises(EquivocationError, match="leaves the run"):
        keeper(tmp_path, 0)


@pytest.mark.parametrize("blob", [b"", b"{}", b"\xff" * 9])
def test_a_file_that_proves_nothing_refuses_nothing(tmp_path: Path, blob: bytes) -> None:
    (tmp_path / PROOF_NAME).write_bytes(blob)
    keeper(tmp_path, 0)


async def test_the_newest_head_is_known_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keeper(tmp_path, 8)
    async with watched(made, monkeypatch) as (_, hello, _):
        await until(lambda: hello.HasField("head"))
        made.heads.take(*HISTORY.signed[8])
    again = keeper(tmp_path, 0)
    assert again.heads.own == HISTORY.head(8)
    with pytest.raises(UnavailableError):
        again.greeted(greeting(HISTORY, 3))


async def test_a_slow_disk_keeps_the_newest_head_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, newer, written = threading.Event(), threading.Event(), list[int]()

    def slow(path: Path, note: Any) -> None:
        is_first = not begun.is_set()
        begun.set()
        if is_first:
            newer.wait(1.0)
        write_note(path, note)
        written.append(note.round)

    monkeypatch.setattr(keeping, "write_note", slow)
    made = keeper(tmp_path, 8)
    async with watched(made, monkeypatch):
        await until(begun.is_set)
        made.heads.take(*HISTORY.signed[8])
    newer.set()
    await until(lambda: len(written) == 2)
    assert keeper(tmp_path, 0).heads.own == HISTORY.head(8)


@pytest.mark.parametrize("blob", [b"", b"\x00", b'{"run_id": "x"}'])
def test_a_damaged_note_is_an_unknown_head(tmp_path: Path, blob: bytes) -> None:
    (tmp_path / NOTE_NAME).write_bytes(blob)
    assert keeper(tmp_path, 0).heads.own is None


async def test_a_disk_that_takes_no_note_is_told_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(keeping, "write_note", full)
    caplog.set_level(logging.WARNING)
    async with watched(keeper(tmp_path, 8), monkeypatch) as (watching, _, _):
        await until(lambda: caplog.records)
        assert not watching.done()
    assert [record.message for record in caplog.records] == ["head not kept"]
