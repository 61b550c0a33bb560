"""A journal that cannot be written is read from a copy, which goes again."""

import os
from pathlib import Path

import pytest

from lockstep.service import journal_copy
from lockstep.service.journal_copy import readable_journal
from protocol.errors import StorageError


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    for name in ("journal.sqlite", "journal.sqlite-wal"):
        (tmp_path / name).write_text(name)
    return tmp_path / "journal.sqlite"


def test_a_journal_of_ones_own_is_read_where_it_is(journal: Path) -> None:
    with readable_journal(journal) as readable:
        assert readable == journal


def test_one_that_cannot_be_written_is_read_from_a_copy_with_its_newest_events(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with readable_journal(journal) as readable:
        assert readable != journal
        beside = {path.name: path.read_text() for path in readable.parent.iterdir()}
        assert beside == {name: name for name in ("journal.sqlite", "journal.sqlite-wal")}
    assert not readable.parent.exists()


def test_one_that_cannot_be_read_is_named(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, _: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(journal_copy.shutil, "copyfile", refused)
    with (
        pytest.raises(StorageError, match=r"cannot read .*journal\.sqlite: Permission denied"),
        readable_journal(journal),
    ):
        pass
