"""What Lockstep has written is listed with its sizes, and removed once somebody agrees."""

from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.commands import uninstall as command
from lockstep.commands.service import UNITS
from lockstep.commands.uninstall import uninstall, written
from lockstep.exit_codes import ExitCode, UsageError
from lockstep.service.directory import Owner, claimed


@pytest.fixture(autouse=True)
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the account's units, where systemd does not answer."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", "")
    return tmp_path / "config" / "systemd" / "user"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with an identity and two runs, and a file that is somebody else's."""
    home = tmp_path / "home"
    for run in ("aa", "bb"):
        with claimed(home / "runs" / run, Owner("node", run, f"run {run}")):
            (home / "runs" / run / "state.safetensors").write_bytes(bytes(1_000_000))
    (home / "key.pem").write_text("key")
    (home / "corpora").mkdir()
    (home / "my-thesis.txt").write_text("all of it")
    return home


def test_everything_is_listed_by_size_and_removed_but_what_is_not_lockstep_s(
    home: Path, units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "install", "example:50700"]) == ExitCode.OK
    assert main(["uninstall", "--home", str(home), "--yes"]) == ExitCode.OK
    said = capsys.readouterr().out
    for words in ("1 MB", "run aa", "run bb", "keys backup FILE", UNITS["join"], "in all 2 MB"):
        assert words in said
    assert [path.name for path in home.iterdir()] == ["my-thesis.txt"]
    assert not list(units.iterdir())


def test_nothing_is_removed_unless_somebody_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(written(home))
    with pytest.raises(UsageError, match="nobody can be asked here: add --yes"):
        uninstall(home, yes=False)
    monkeypatch.setattr(command, "somebody_is_there", lambda: True)
    for answer in ("", "n", "what?"):
        uninstall(home, yes=False, answer=lambda _, answer=answer: answer)  # type: ignore[misc]
    assert dict(written(home)) == before
    uninstall(home, yes=False, answer=lambda _: "y")
    assert not dict(written(home))


@pytest.mark.parametrize("place", ["runs/aa", "relay/runs/cc", "auditor/runs/cc"])
def test_a_home_in_which_a_process_works_is_left(home: Path, place: str) -> None:
    before = dict(written(home))
    role = place.partition("/")[0].replace("runs", "node")
    with (
        claimed(home / place, Owner(role, place[-2:], "winter")),
        pytest.raises(UsageError, match=f"{role} of run .* is at work in .*{place}"),
    ):
        uninstall(home, yes=True)
    assert before.items() <= dict(written(home)).items()


def test_a_link_is_removed_and_not_what_it_leads_to(home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    (home / "corpora").rmdir()
    (home / "corpora").symlink_to(tmp_path / "elsewhere")
    uninstall(home, yes=True)
    assert not (home / "corpora").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "mine"


def test_where_there_is_nothing_it_is_said_with_the_way_to_remove_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["uninstall", "--home", str(tmp_path / "none")]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "found nothing" in said
    assert "to remove the program too: remove the directory" in said
