"""The chain of the operator's acts: whoever changes a row of it is found."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from coordinator.act_log import read_acts
from coordinator.journal import JOURNAL_NAME
from coordinator.machine.events import acts
from protocol.errors import StorageError
from tests.coordinator.client import quiet_spec, running

EVERY = (acts.Pause("a"), acts.Announce("b"), acts.Resume())


async def written(directory: Path) -> Path:
    """The journal of a stopped coordinator whose operator did three acts."""
    async with running(directory, quiet_spec()) as process:
        for act in EVERY:
            await process.desk.order(act)
    return directory / JOURNAL_NAME


def change(journal: Path, query: str, *values: object) -> None:
    with closing(sqlite3.connect(journal)) as file, file:
        assert file.execute(query, values).rowcount == 1


def bodies(journal: Path) -> list[tuple[int, bytes]]:
    with closing(sqlite3.connect(journal)) as file:
        return file.execute("SELECT sequence, body FROM events WHERE kind = 'Ordered'").fetchall()


async def test_a_sound_chain_is_read_while_the_coordinator_works_and_after_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        assert read_acts(tmp_path / JOURNAL_NAME).head == acts.first_digest(process.run_id)
        event = await process.desk.order(EVERY[0])
        log = read_acts(tmp_path / JOURNAL_NAME)
        assert [each.act for each in log.acts] == [EVERY[0]]
        assert log.head == event.digest == process.rounds.state.operator.head
    assert read_acts(tmp_path / JOURNAL_NAME) == log


async def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    await written(tmp_path)
    log = read_acts(tmp_path / JOURNAL_NAME)
    async with running(tmp_path, quiet_spec()) as process:
        assert process.rounds.state.operator.head == log.head
        await process.desk.order(acts.Announce("c"))
    assert [each.act for each in read_acts(tmp_path / JOURNAL_NAME).acts] == [
        *EVERY,
        acts.Announce("c"),
    ]


@pytest.mark.parametrize("number", range(len(EVERY)))
async def test_a_changed_act_is_found_with_its_number(tmp_path: Path, number: int) -> None:
    journal = await written(tmp_path)
    sequence, body = bodies(journal)[number]
    event = msgspec.msgpack.decode(body, type=acts.Ordered)
    changed = acts.Ordered(acts.Announce("z"), event.given_s, event.previous, event.digest)
    query = "UPDATE events SET body = ? WHERE sequence = ?"
    change(journal, query, msgspec.msgpack.encode(changed), sequence)
    with pytest.raises(StorageError, match=rf"act {number + 1} .*was changed"):
        read_acts(journal)


async def test_an_act_that_was_written_anew_breaks_the_next(tmp_path: Path) -> None:
    journal = await written(tmp_path)
    sequence, body = bodies(journal)[0]
    event = msgspec.msgpack.decode(body, type=acts.Ordered)
    forged = acts.ordered(acts.Announce("z"), event.given_s, event.previous)
    query = "UPDATE events SET body = ? WHERE sequence = ?"
    change(journal, query, msgspec.msgpack.encode(forged), sequence)
    with pytest.raises(StorageError, match=r"act 2 .*follows"):
        read_acts(journal)


async def test_an_act_that_was_taken_out_is_found(tmp_path: Path) -> None:
    journal = await written(tmp_path)
    change(journal, "DELETE FROM events WHERE sequence = ?", bodies(journal)[1][0])
    with pytest.raises(StorageError, match=r"act 2 .*follows"):
        read_acts(journal)


async def test_a_coordinator_does_not_start_on_a_changed_act(tmp_path: Path) -> None:
    journal = await written(tmp_path)
    change(journal, "DELETE FROM events WHERE sequence = ?", bodies(journal)[0][0])
    with pytest.raises(StorageError, match="does not replay"):
        async with running(tmp_path, quiet_spec()):
            pass


def test_without_a_journal_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="expected the journal"):
        read_acts(tmp_path / JOURNAL_NAME)
    (tmp_path / JOURNAL_NAME).write_bytes(b"no database" * 100)
    with pytest.raises(StorageError, match="cannot read the journal"):
        read_acts(tmp_path / JOURNAL_NAME)
