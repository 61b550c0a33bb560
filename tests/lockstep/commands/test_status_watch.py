"""The status again and again: one connection, a coordinator that goes away, and the end."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from lockstep.cli import main
from lockstep.commands import status_watch
from lockstep.commands.status_watch import PAUSE_S, looks
from lockstep.exit_codes import ExitCode
from protocol.errors import SettingsError, UnavailableError
from tests.lockstep.commands.test_status import DOCUMENT

AWAY = UnavailableError("it is away")

END = DOCUMENT | {"finished": True, "phase": "finished"}


class Coordinator:
    """Gives these answers, one after the other; an error is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: object) -> None:
        self.answers, self.connections, self.paused_s = list(answers), 0, list[float]()
        monkeypatch.setattr(status_watch, "asking", self.asking)
        monkeypatch.setattr("time.sleep", self.paused_s.append)

    @contextmanager
    def asking(self, url: str) -> Iterator[Callable[[], dict[str, Any]]]:
        self.connections += 1
        yield self.answer

    def answer(self) -> dict[str, Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, dict)
        return answer


def round(number: int) -> dict[str, Any]:
    return DOCUMENT | {"round": number, "steps": {"committed": number, "total": 2000}}


def test_the_end_of_the_run_ends_the_watch_over_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator(monkeypatch, round(1), round(2), END)
    found = list(looks("example", coordinator.paused_s.append))
    assert found == [(round(1), ""), (round(2), ""), (END, "")]
    assert coordinator.connections == 1
    assert set(coordinator.paused_s) == {PAUSE_S}


def test_a_coordinator_that_goes_away_is_waited_for_with_its_last_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator(monkeypatch, round(1), AWAY, AWAY, round(2), END)
    found = list(looks("example", coordinator.paused_s.append))
    assert [away for _, away in found] == ["", "it is away", "it is away", "", ""]
    assert found[1][0] == found[2][0] == round(1)
    assert coordinator.connections == 3


@pytest.mark.parametrize("answers", [[AWAY], [round(1), SettingsError("another run")]])
def test_what_waiting_does_not_mend_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, answers: list[object]
) -> None:
    coordinator = Coordinator(monkeypatch, *answers)
    with pytest.raises(type(answers[-1])):  # type: ignore[arg-type]
        list(looks("example", coordinator.paused_s.append))


def test_ctrl_c_ends_it_as_it_should(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Coordinator(monkeypatch, round(1), round(1), AWAY, AWAY, round(2), KeyboardInterrupt())
    assert main(["status", "example", "--watch"]) == ExitCode.OK
    said = capsys.readouterr()
    first, away, second = said.out.splitlines()
    assert "step 1/2000" in first
    assert away == "no answer: it is away; asks again"
    assert "step 2/2000" in second
    assert not said.err


def test_on_a_terminal_it_is_a_table_of_80_columns_that_says_when_it_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(width=80, height=60, force_terminal=True, color_system=None)
    monkeypatch.setattr(status_watch, "output", console)
    Coordinator(monkeypatch, round(1), AWAY, KeyboardInterrupt())
    with console.capture() as capture:
        status_watch.watch("example")
    text = capture.get()
    assert status_watch.HINT in text
    assert text.index("steps") < text.index("last commits") < text.index("3 members")
    assert text.index("no answer, as of ") < text.rindex("steps")
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.replace("\r", "\n")).splitlines()
    assert max(map(len, lines)) <= 80


def test_a_watch_is_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "example", "--watch", "--json", "-"]) == ExitCode.USAGE
    assert "expected --watch or --json, got both" in capsys.readouterr().err
