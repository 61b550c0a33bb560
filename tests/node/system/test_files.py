"""Promises of whole files: there whole or not at all, and the version before survives."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from node.system import files
from node.system.files import (
    LEFTOVER_S,
    MODE_FOR_OWNER,
    outlasting,
    replacing_directory,
    replacing_file,
    sweep,
    whole_directory,
)
from protocol.errors import ShortageError, StorageError
from protocol.shortage import Patience
from tests.support.shortage import no_descriptors


def _full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _content(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_file_is_replaced_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for text in ("old", "new"):
        with replacing_file(path) as temporary:
            temporary.write_text(text)
    assert _content(tmp_path) == {"a/b": "new"}


def test_a_full_disk_keeps_the_old_file_and_says_how_much_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", _full_disk)
    with (
        pytest.raises(StorageError, match=r"disk is full.*state.*12,345 bytes"),
        replacing_file(path, 12345) as part,
    ):
        part.write_text("new")
    assert _content(tmp_path) == {"state": "old"}


def test_an_error_of_the_writer_passes_through_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def write_half() -> None:
        with replacing_file(tmp_path / "state") as temporary:
            temporary.write_text("half")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        write_half()
    assert _content(tmp_path) == {}


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"), replacing_file(tmp_path / "file" / "below"):
        pytest.fail("there is no folder to write in")


def test_a_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for name in ("old", "new"):
        with replacing_directory(path) as temporary:
            (temporary / name).write_text(name)
    assert _content(tmp_path) == {"checkpoint/new": "new"}


def test_a_full_disk_keeps_the_old_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    with replacing_directory(path) as temporary:
        (temporary / "old").write_text("old")
    monkeypatch.setattr(os, "fsync", _full_disk)
    with (
        pytest.raises(StorageError, match=r"disk is full.*checkpoint"),
        replacing_directory(path, 9) as temporary,
    ):
        (temporary / "new").write_text("new")
    assert _content(tmp_path) == {"checkpoint/old": "old"}


def test_a_death_between_the_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    with replacing_directory(path) as temporary:
        (temporary / "old").write_text("old")
    rename, calls = Path.rename, []

    def dies_the_second_time(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dies_the_second_time)
    with pytest.raises(KeyboardInterrupt), replacing_directory(path) as temporary:
        (temporary / "new").write_text("new")
    assert _content(whole_directory(path)) == {"old": "old"}
    monkeypatch.undo()
    with replacing_directory(path) as temporary:
        (temporary / "new").write_text("new")
    assert _content(tmp_path) == {"checkpoint/new": "new"}
    assert whole_directory(path) == path


def test_a_secret_is_its_owners_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, replace = [], Path.replace

    def watched(source: Path, target: Path) -> Path:
        seen.append(stat.S_IMODE(source.stat().st_mode))
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", watched)
    with replacing_file(tmp_path / "key", mode=MODE_FOR_OWNER) as temporary:
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
        temporary.write_text("secret")
    assert seen == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_leftovers_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    old_s = time.time() - LEFTOVER_S - 1
    (tmp_path / "checkpoint.part-0a1b2c3_").mkdir()
    for name in ("state.part-0a1b2c3_", "checkpoint.part-0a1b2c3_/model", "state", "a.part-notes"):
        (tmp_path / name).write_text("")
    for name in ("state.part-0a1b2c3_", "checkpoint.part-0a1b2c3_", "state", "a.part-notes"):
        os.utime(tmp_path / name, (old_s, old_s))
    (tmp_path / "state.part-bbbbbbbb").write_text("another process writes it now")
    sweep(tmp_path)
    assert sorted(_content(tmp_path)) == ["a.part-notes", "state", "state.part-bbbbbbbb"]
    sweep(tmp_path / "not made yet")


def test_a_lack_of_descriptors_is_waited_out_and_no_broken_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    with no_descriptors() as release:
        with pytest.raises(ShortageError, match="state: Too many open files"), replacing_file(path):
            pytest.fail("nothing can be opened")
        patience = Patience(lambda _: release(), lambda _: None)
        monkeypatch.setattr(files, "_patience", patience)

        @outlasting
        def write(text: str) -> None:
            with replacing_file(path) as temporary:
                temporary.write_text(text)

        write("new")
    assert _content(tmp_path) == {"state": "new"}
