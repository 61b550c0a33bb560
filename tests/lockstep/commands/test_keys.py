"""The identity of a computer is kept elsewhere and put back, and never lost by a slip."""

import errno
import os
import stat
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.service.directory import Owner, claimed
from lockstep.service.keys import load_or_create_key


def identity(home: Path) -> bytes:
    return load_or_create_key(home).public_key().public_bytes_raw()


def test_a_backup_is_its_owner_s_alone_and_comes_back(tmp_path: Path) -> None:
    home, file, other = tmp_path / "home", tmp_path / "kept.pem", tmp_path / "other"
    own = identity(home)
    assert main(["keys", "backup", str(file), "--home", str(home)]) == ExitCode.OK
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["keys", "restore", str(file), "--home", str(other)]) == ExitCode.OK
    assert identity(other) == own
    assert stat.S_IMODE((other / "key.pem").stat().st_mode) == 0o600
    assert main(["keys", "restore", str(file), "--home", str(other)]) == ExitCode.OK


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, other, file = tmp_path / "home", tmp_path / "other", tmp_path / "kept.pem"
    own, theirs = identity(home), identity(other)
    main(["keys", "backup", str(file), "--home", str(home)])
    assert main(["keys", "backup", str(file), "--home", str(other)]) == ExitCode.USAGE
    assert main(["keys", "restore", str(file), "--home", str(other)]) == ExitCode.USAGE
    assert "--force" in capsys.readouterr().err
    assert identity(other) == theirs
    forced = ["keys", "restore", str(file), "--home", str(other), "--force"]
    assert main(forced) == ExitCode.OK
    assert identity(other) == own


def test_while_a_node_is_at_work_its_identity_stays(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "kept.pem"
    identity(home)
    main(["keys", "backup", str(file), "--home", str(home)])
    with claimed(home / "runs" / ("a" * 32), Owner("node", "a" * 32)):
        assert main(["keys", "restore", str(file), "--home", str(home)]) == ExitCode.USAGE


@pytest.mark.parametrize("text", [None, "no key"])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "kept.pem"
    if text is not None:
        file.write_text(text)
    assert main(["keys", "restore", str(file), "--home", str(tmp_path)]) == ExitCode.STORAGE
    assert main(["keys", "backup", str(file), "--home", str(tmp_path / "no")]) == ExitCode.STORAGE


def test_a_full_disk_leaves_no_half_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    identity(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", disk_full)
    words = ["keys", "backup", str(tmp_path / "kept.pem"), "--home", str(tmp_path)]
    assert main(words) == ExitCode.STORAGE
    assert "the disk is full" in capsys.readouterr().err
    assert not list(tmp_path.glob("kept*"))
