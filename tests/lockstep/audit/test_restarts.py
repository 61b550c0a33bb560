"""An audit of a run that has gone on from a checkpoint: nodes that held newer states took it, and
the replay finds its snapshot, or says what it lacks.
"""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch

from coordinator.machine.events.inputs import RestartAsked
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from lockstep.audit import follower as following
from lockstep.exit_codes import ExitCode
from lockstep.service.keys import load_or_create_key
from node.replica.checkpoint_state import read_state
from protocol.handshake import public_bytes
from protocol.run_info import RunInfo
from protocol.runfile import run_id
from tests.lockstep.audit.test_follower import GrowingRecord, audit
from tests.lockstep.audit.test_verify import error_line, spec_of, verified
from tests.node.test_process import NodeTask
from tests.support.tiny import tiny_corpus
from tests.support.waiting import PATIENCE_SECONDS, until

STEPS = 12
SPEC = spec_of(STEPS)


def coordinator_in(directory: Path, restart: RestartAsked | None = None) -> CoordinatorProcess:
    place = directory / "coordinator"
    settings = CoordinatorSettings(place, "127.0.0.1:0", goodbye_ms=5000, restart=restart)
    return CoordinatorProcess(SPEC, settings, load_or_create_key(place))


async def train(directory: Path) -> None:
    """Some rounds of two nodes; then a restart by force from an older snapshot of theirs, to the
    end of the run.
    """
    data = tiny_corpus(directory / "data")
    first = coordinator_in(directory)
    await first.start()
    nodes = [NodeTask(first.address, directory, data, number) for number in range(2)]
    async with nodes[0], nodes[1]:
        await until(lambda: first.status()["steps"]["committed"] >= 5)
        for node in nodes:
            node.process.leave()
        for node in nodes:
            await node.ended()
    await first.stop()
    (snapshot,) = (directory / "node-0" / "snapshots").glob("2-*")
    kept = directory / "kept" / "snapshots"
    kept.mkdir(parents=True)
    shutil.copy(snapshot, kept)
    key = public_bytes(load_or_create_key(directory / "coordinator"))
    state = read_state(snapshot, RunInfo(SPEC, run_id(SPEC, key), key))
    second = coordinator_in(directory, RestartAsked(state.sha256, state.state_digest, True))
    await second.start()
    finished = asyncio.create_task(second.finished())
    nodes = [NodeTask(second.address, directory, data, number) for number in range(2)]
    async with nodes[0], nodes[1]:
        for node in nodes:
            await node.ended()
        await asyncio.wait_for(finished, PATIENCE_SECONDS)
        digests = {node.process.status()["state_digest"] for node in nodes}
        assert digests == {second.status()["digests"]["last"]}
        assert second.status()["digests"]["rounds_disputed"] == 0
    await second.stop()
    shutil.copytree(nodes[0].checkpoint, directory / "checkpoint")


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("restarted")
    asyncio.run(train(directory))
    return directory


def test_the_whole_log_is_replayed_over_the_restart_to_the_published_checkpoint(
    restarted: Path, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    assert verified(restarted, "--json", path) == ExitCode.OK
    found = json.loads(path.read_text())
    assert (found["commits"], found["replayed"], found["restarts"]) == (STEPS, STEPS, 1)
    assert found["digests_compared"] == STEPS
    assert "equals the state of the log" in found["checkpoint"]


def test_from_the_snapshot_of_the_restart_only_what_came_after_it_is_replayed(
    restarted: Path, tmp_path: Path
) -> None:
    """Although a commit has the same snapshot on record."""
    (snapshot,) = (restarted / "kept" / "snapshots").iterdir()
    path = tmp_path / "found.json"
    assert verified(restarted, "--from", snapshot, "--json", path) == ExitCode.OK
    found = json.loads(path.read_text())
    assert (found["commits"], found["restarts"]) == (STEPS, 1)
    assert found["replayed"] <= STEPS - 5


def test_without_the_snapshot_the_audit_names_it(
    restarted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Path(shutil.copytree(restarted, tmp_path / "record"))
    for path in record.glob("*/snapshots/2-*"):
        path.unlink()
    assert verified(record) == ExitCode.DATA
    assert "the run has gone on from a checkpoint: expected its snapshot" in error_line(capsys)


def test_a_record_without_the_entry_breaks_the_chain(
    restarted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Path(shutil.copytree(restarted, tmp_path / "record"))
    journal = record / "coordinator" / "journal.sqlite"
    with closing(sqlite3.connect(journal)) as database, database:
        assert database.execute("DELETE FROM entries").rowcount == 1
    assert verified(record) == ExitCode.REFUSED
    assert "does not follow" in error_line(capsys)


async def test_the_live_auditor_goes_on_from_the_checkpoint_that_it_was_given(
    restarted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    (snapshot,) = (restarted / "kept" / "snapshots").iterdir()
    record = GrowingRecord(Path(shutil.copytree(restarted, tmp_path / "record")))
    record.upto = record.newest_round = 10**6
    async with audit(record, tmp_path / "auditor", snapshot=snapshot) as follower:
        await until(lambda: follower.document()["words"] == "follows the run")
        document = follower.document()
    await record.close()
    assert document["began_after"] >= 4, "the restart, and not the commit that records the snapshot"
    assert document["rounds_equal"] == document["rounds_replayed"] > 0
    assert document["first_difference"] is None
    assert document["rounds_different"] == 0
