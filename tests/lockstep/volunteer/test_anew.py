"""A node whose device failed begins anew twice in an hour, and ends at the third time."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.volunteer import anew
from lockstep.volunteer.anew import FAILURES_NAME, begins_anew
from node.settings import NodeSettings
from protocol.errors import DeviceError, SettingsError
from protocol.ids import RunId

RUN = RunId("12" * 16)


class Life:
    """Processes of one command that follow each other, in virtual time."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = NodeSettings("host:1", place)
        self.now_s, self.paused_s = 1_000_000.0, 0.0
        self.begun: list[tuple[str, list[str]]] = []
        monkeypatch.setattr(anew, "time", SimpleNamespace(time=lambda: self.now_s, sleep=self.rest))
        monkeypatch.setattr(anew, "os", SimpleNamespace(execv=self.begin))

    def rest(self, seconds: float) -> None:
        self.paused_s += seconds
        self.now_s += seconds

    def begin(self, *command: Any) -> None:
        self.begun.append(command)

    def fails_after(self, seconds: float) -> float:
        """One process, whose device fails; returns the pause with which it began."""
        self.paused_s = 0.0
        with begins_anew(self.settings, RUN):
            self.now_s += seconds
            raise DeviceError("the device failed: CUDA error: unknown error")
        return self.paused_s

    def starts(self, run_id: RunId = RUN) -> float:
        """One process that ends well; returns the pause with which it began."""
        self.paused_s = 0.0
        with begins_anew(self.settings, run_id):
            return self.paused_s


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    return Life(tmp_path, monkeypatch)


def test_the_same_command_begins_anew_with_pauses_that_grow_and_ends_at_the_third_time(
    life: Life, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [life.fails_after(600), life.fails_after(600)] == [0.0, 5.0]
    assert life.begun == [(sys.executable, [sys.executable, *sys.orig_argv[1:]])] * 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "the device failed: CUDA error: unknown error; what is saved stays, and the node begins "
        "anew in 5 s"
    )
    assert second.endswith("begins anew in 30 s")
    with pytest.raises(DeviceError, match=r"unknown error; it failed 3 times in an hour: look at"):
        life.fails_after(600)
    assert (len(life.begun), life.paused_s) == (2, 30.0)


def test_a_node_whose_card_failed_looks_for_a_card_and_does_not_go_on_with_the_cpu(
    life: Life,
) -> None:
    def device(wanted: str) -> str:
        with begins_anew(dataclasses.replace(life.settings, device=wanted), RUN) as settings:
            return settings.device

    assert [device("auto"), device("cpu")] == ["auto", "cpu"]
    life.fails_after(1)
    assert [device("auto"), device("cpu"), device("cuda:1")] == ["cuda", "cpu", "cuda:1"]


def test_failures_that_are_an_hour_apart_never_end_a_node(life: Life) -> None:
    assert [life.fails_after(1795) for _ in range(5)] == [0.0, 5.0, 30.0, 30.0, 30.0]
    assert len(life.begun) == 5


def test_a_node_that_its_owner_starts_again_later_does_not_wait(life: Life) -> None:
    life.fails_after(1)
    life.now_s += 3
    assert life.starts() == 2.0, "the rest of the pause"
    assert life.starts() == 0.0
    life.now_s -= 600  # a clock that was set back
    assert life.starts() == 0.0
    assert life.starts(RunId("34" * 16)) == 0.0


def test_other_errors_end_the_process_and_a_damaged_file_is_no_failure(life: Life) -> None:
    with pytest.raises(SettingsError), begins_anew(life.settings, RUN):
        raise SettingsError("micro_batch: expected at least 1 sample, got 0")
    assert not (life.settings.directory / FAILURES_NAME).exists()
    (life.settings.directory / FAILURES_NAME).write_text("[")
    life.fails_after(1)
    assert len(life.begun) == 1
