"""Where a command's settings come from, through the command itself."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.settings import CoordinatorSettings
from lockstep.cli import main
from lockstep.exit_codes import ExitCode


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the coordinator would have been started with."""
    seen: dict[str, Any] = {}

    def coordinate(
        run_file: Path, settings: CoordinatorSettings, options: Any, **_: object
    ) -> None:
        seen.update(
            run_file=run_file,
            listen=settings.listen,
            directory=settings.directory,
            admin=options.admin,
        )

    monkeypatch.setattr("lockstep.commands.coordinator.coordinate", coordinate)
    for name in ("LOCKSTEP_LISTEN", "LOCKSTEP_DIRECTORY", "LOCKSTEP_ADMIN", "LOCKSTEP_SETTINGS"):
        monkeypatch.delenv(name, raising=False)
    return seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text('[coordinator]\nlisten = "127.0.0.2:2"\n')
    return path


def test_default_then_file_then_environment_then_flag(
    started: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["coordinator", "run.toml"]) == 0
    assert (started["listen"], started["directory"]) == ("127.0.0.1:50700", Path("run.coordinator"))
    assert main(["--settings", str(file), "coordinator", "run.toml"]) == 0
    assert started["listen"] == "127.0.0.2:2"
    monkeypatch.setenv("LOCKSTEP_LISTEN", "127.0.0.3:3")
    assert main(["--settings", str(file), "coordinator", "run.toml"]) == 0
    assert started["listen"] == "127.0.0.3:3"
    assert (
        main(["--settings", str(file), "coordinator", "run.toml", "--listen", "127.0.0.4:4"]) == 0
    )
    assert started["listen"] == "127.0.0.4:4"


def test_the_file_itself_may_be_named_by_the_environment(
    started: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_SETTINGS", str(file))
    assert main(["coordinator", "run.toml"]) == 0
    assert started["listen"] == "127.0.0.2:2"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[coordinator]\nlisen = 1\n", "lisen"),
        ("[coordinater]\n", "coordinater"),
        ("coordinator = 3\n", "coordinator"),
        ("[coordinator.listen]\nport = 1\n", "listen"),
        ("[data.prepare]\nfrom = 1\n", "from"),
        ("[coordinator\n", "TOML"),
    ],
)
def test_a_wrong_settings_file_names_what_is_wrong(
    text: str, named: str, file: Path, started: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["--settings", str(file), "coordinator", "run.toml"]) == ExitCode.SETTINGS
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert named in error
    assert not started


@pytest.mark.parametrize(
    "text", ["\ufeff[join]\nmicro-batch = 0\n", "[join]\r\nmicro-batch = 0\r\n"]
)
def test_a_file_that_windows_has_saved_is_read(
    text: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(text.encode())
    assert main(["--settings", str(file), "join", "127.0.0.1:1"]) == ExitCode.SETTINGS
    error = capsys.readouterr().err
    assert "--micro-batch" in error
    assert str(file) in error


def test_utf16_is_named_with_what_to_do(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes("[join]\n".encode("utf-16"))
    assert main(["--settings", str(file), "join", "127.0.0.1:1"]) == ExitCode.SETTINGS
    assert "expected UTF-8, found UTF-16: save it as UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe[join]", "expected UTF-8, found another encoding: save it as UTF-8"),
        (None, "No such file or directory; name another with --settings"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_without_the_words_of_python(
    file: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, words: str
) -> None:
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    assert main(["--settings", str(file), "me"]) == ExitCode.SETTINGS
    error = capsys.readouterr().err
    assert words in error
    assert "Errno" not in error


def test_names_may_be_written_with_dashes_as_on_the_command_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("[join]\nmicro-batch = 0\n")
    assert main(["--settings", str(file), "join", "127.0.0.1:1"]) == ExitCode.SETTINGS
    error = capsys.readouterr().err
    assert "--micro-batch" in error
    assert str(file) in error
