"""A coordinator says at its start who can reach it, and refuses what is no checkpoint."""

from pathlib import Path

import pytest

from coordinator.journal import JOURNAL_NAME
from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from lockstep.service.keys import load_or_create_key
from lockstep.service.serve import STATUS_NAME
from protocol.ids import RunId
from tests.support.tiny import tiny_spec

RUN, KEY = RunId("a" * 32), b"k" * 32


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--restart-from", "nothing"], ExitCode.DATA, "expected a checkpoint's directory, or a"),
        (["--restart-from", "."], ExitCode.DATA, "expected a checkpoint with lockstep.json"),
        (["--force"], ExitCode.USAGE, "expected --restart-from CHECKPOINT with --force"),
    ],
)
def test_a_restart_from_what_is_no_checkpoint_is_refused_in_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: ExitCode,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run_file(tmp_path / "run.toml", tiny_spec(), force=True)
    assert main(["coordinator", "run.toml", "--listen", "127.0.0.1:0", *options]) == code
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert words in line


def test_a_lost_key_is_said_and_no_other_one_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file, place = tmp_path / "run.toml", tmp_path / "run.coordinator"
    assert main(["init", "--defaults", str(run_file)]) == ExitCode.OK
    place.mkdir()
    (place / "journal.sqlite").write_bytes(b"")
    words = ["coordinator", str(run_file), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    assert main([*words, "--no-try-model"]) == ExitCode.STORAGE
    assert "key.pem is missing, which signs the commits" in capsys.readouterr().err
    assert not (place / "key.pem").exists()


@pytest.mark.parametrize("left", [None, b""])
def test_a_lost_journal_is_said_and_its_key_signs_no_second_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: bytes | None
) -> None:
    run_file, place = tmp_path / "run.toml", tmp_path / "run.coordinator"
    assert main(["init", "--defaults", str(run_file)]) == ExitCode.OK
    load_or_create_key(place)
    (place / STATUS_NAME).write_text("{}")
    if left is not None:
        (place / JOURNAL_NAME).write_bytes(left)
    words = ["coordinator", str(run_file), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    assert main([*words, "--no-try-model"]) == ExitCode.STORAGE
    assert "journal.sqlite is missing or empty, though a run was" in capsys.readouterr().err
    assert not list(place.glob("journal.sqlite-*")), "nothing was written"
