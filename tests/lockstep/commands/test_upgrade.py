"""Whether this release fits a run, by the word of its coordinator alone."""

from typing import Any

import pytest

from lockstep.cli import main
from lockstep.commands import upgrade as command
from lockstep.commands.upgrade import OWN, fits
from lockstep.exit_codes import ExitCode
from lockstep.own_packages import how_to_upgrade
from protocol.border.join_link import parse_link
from protocol.errors import LockstepError, SettingsError, VersionError
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec

INFO = RunInfo(RunSpec(name="winter"), RunId("12" * 16), b"k" * 32)

LINK = parse_link("example:50700")


def coordinator(
    monkeypatch: pytest.MonkeyPatch, software: object, error: LockstepError | None = None
) -> None:
    def ask_run(_: object) -> RunInfo:
        if error:
            raise error
        return INFO

    document: dict[str, Any] = {} if software is None else {"software": software}
    monkeypatch.setattr(command, "ask", lambda _: document)
    monkeypatch.setattr(command, "ask_run", ask_run)


def test_a_release_that_fits_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator(monkeypatch, OWN)
    assert main(["upgrade", "--check", "example:50700"]) == ExitCode.OK
    [line] = capsys.readouterr().out.splitlines()
    assert line == f"{OWN} fits run winter (12121212): the coordinator's release too"
    coordinator(monkeypatch, "lockstep 0.0.9")
    assert fits(LINK).endswith("its coordinator is lockstep 0.0.9")
    coordinator(monkeypatch, None)
    assert fits(LINK).endswith("its coordinator is a release that does not tell its name")


@pytest.mark.parametrize("error", [VersionError("speaks 2"), SettingsError("no such field")])
def test_a_release_that_does_not_fit_is_told_with_the_way_to_another(
    monkeypatch: pytest.MonkeyPatch, error: LockstepError, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator(monkeypatch, "lockstep 9.0", error)
    assert main(["upgrade", "--check", "example:50700"]) == ExitCode.VERSION
    said = capsys.readouterr().err
    assert f"{OWN} does not fit this run, whose coordinator is lockstep 9.0: {error}" in said
    assert how_to_upgrade() in said


def test_a_wrong_link_is_not_blamed_on_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator(monkeypatch, OWN, SettingsError("another run"))
    with pytest.raises(SettingsError, match=r"^another run$"):
        fits(LINK)


def test_without_a_link_it_is_said_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade"]) == ExitCode.OK
    assert capsys.readouterr().out == f"this is {OWN}; to upgrade: {how_to_upgrade()}\n"
