"""A note survives a start, and nothing of another run or of a damaged file is taken for one."""

import logging
from pathlib import Path

import msgspec
import pytest

from node.system.run_notes import RunNote, read_note, write_note
from protocol.errors import StorageError
from protocol.ids import RunId

log = logging.getLogger("lockstep.test")
OWN, OTHER = RunId("a" * 32), RunId("b" * 32)


class Words(RunNote):
    words: list[str] = msgspec.field(default_factory=list)


def read(path: Path, run_id: RunId = OWN) -> Words:
    return read_note(path, Words(run_id), log, "words are lost")


def test_what_was_written_is_read_for_the_same_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    write_note(path, Words(OWN, ["one", "two"]))
    assert read(path) == Words(OWN, ["one", "two"])
    assert read(path, OTHER) == Words(OTHER)


def test_without_a_file_one_begins_anew(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == Words(OWN)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": 3}', '{"run_id": "x", "words": 7}'])
def test_a_damaged_file_counts_for_nothing_and_is_told(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "words.json"
    path.write_text(text)
    assert read(path) == Words(OWN)
    assert caplog.messages == ["words are lost"]


def test_a_file_that_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"cannot read {tmp_path}"):
        read(tmp_path)  # a directory
