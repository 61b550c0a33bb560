"""The operator's request waits until it can be granted or refused, and says so."""

import logging
from pathlib import Path

import pytest

from coordinator.machine.events.inputs import RestartAsked
from coordinator.restart_request import RestartRequest
from protocol.ids import sha256
from tests.coordinator.machine.driver import A, B
from tests.coordinator.test_sequencer import a_round, desk_of, joining, submit


def asked(*, forced: bool = False) -> RestartAsked:
    return RestartAsked(sha256(b"parameters"), 7, forced)


async def test_it_waits_and_is_refused_once_members_have_made_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "lockstep.coordinator")
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0))
        request = RestartRequest(asked(), desk.sequencer)
        await request.pursue("")
        assert "goes on from the checkpoint once" in request.words
        await submit(desk, *a_round(1))
        await request.pursue("")
        assert request.words == ""
        assert not desk.sequencer.rounds.state.restarts
    (record,) = caplog.records
    assert record.reason == "refused: members hold the newest state, and made round 1"  # type: ignore[attr-defined]


async def test_it_is_refused_where_there_is_nothing_to_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "lockstep.coordinator")
    async with desk_of(tmp_path) as desk:
        request = RestartRequest(asked(forced=True), desk.sequencer)
        await request.pursue("")
        assert request.words == ""
        assert not list(desk.journal.events())
    assert "no round is committed" in caplog.records[0].reason  # type: ignore[attr-defined]


async def test_a_forced_one_is_made_at_once_is_on_disk_and_is_not_repeated(
    tmp_path: Path,
) -> None:
    async with desk_of(tmp_path) as desk:
        await submit(desk, *joining(A), *joining(B), *a_round(0))
        for _ in range(2):
            request = RestartRequest(asked(forced=True), desk.sequencer)
            await request.pursue("")
            assert request.words == ""
            assert len(desk.sequencer.rounds.state.restarts) == 1
        assert len(desk.journal.entries(0, 0)) == 1
        assert len(desk.sequencer.tail) == 1


async def test_without_a_request_nothing_happens(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as desk:
        request = RestartRequest(None, desk.sequencer)
        await request.pursue("lost")
        assert request.words == ""
