"""The last words of a node: the work of this machine, and where the model is."""

import importlib.util
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.cli import main
from lockstep.commands import join as joining
from lockstep.commands.join import SESSION, farewell
from lockstep.exit_codes import ExitCode
from lockstep.service.home import Home
from lockstep.volunteer import measured
from lockstep.volunteer.consent import CONSENT_NAME
from lockstep.volunteer.limits import Limits
from lockstep.volunteer.measured import FirstLook
from node.rehearsal import Rehearsal
from node.settings import NodeSettings
from node.system.device import describe
from protocol import wire_pb2 as wire
from protocol.handshake import public_bytes
from protocol.ids import RunId, peer_id
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec
from tests.lockstep.volunteer.test_screen import STATUS


def test_the_last_words_name_the_work_and_the_model(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    work, model, thanks = farewell(STATUS, tmp_path)
    assert thanks == "thank you"
    assert work == ("this machine: counted in 9 of 12 rounds, 12,345 tokens, 1 MB up, 2 kB down")
    assert model.startswith(f"the model after round 11: {tmp_path / 'checkpoint'}; try: ")


def test_a_node_that_did_nothing_boasts_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert farewell({"round": -1, "rounds": {"trained": 0}}, tmp_path) == []


def test_the_last_words_name_the_part_and_link_to_the_page(tmp_path: Path) -> None:
    status = STATUS | {"part": 0.25, "page": "http://run.example/?me=ea69"}
    _, part, thanks = farewell(status, tmp_path)
    assert part == "your part: 25 % of all work of the run so far"
    assert thanks == "thank you; the run and its model: http://run.example/?me=ea69"


class Terminal:
    """Somebody at a terminal, with these answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        self._answers, self.asked = list(answers), list[str]()
        monkeypatch.setattr(joining, "somebody_is_there", lambda: True)
        monkeypatch.setattr("builtins.input", self._answer)

    def _answer(self, question: str) -> str:
        self.asked.append(question)
        return self._answers.pop(0)


def test_somebody_at_a_terminal_is_asked_for_a_name_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, settings = Home(tmp_path), NodeSettings("h:1", tmp_path)
    terminal = Terminal(monkeypatch, 70 * "x", " attic ")
    assert joining._named(settings, home, asks=True).name == "attic"
    assert len(terminal.asked) == 2, "a name that cannot be is asked for again"
    assert "at most 64 bytes" in capsys.readouterr().err
    assert home.remembered().name == "attic"
    joining._named(settings, home, asks=True)
    assert joining._named(replace(settings, name="cellar"), home, asks=True).name == "cellar"
    assert home.remembered().name == "cellar"
    assert len(terminal.asked) == 2


def test_no_name_is_an_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, terminal = Home(tmp_path), Terminal(monkeypatch, "")
    for _ in range(2):
        assert joining._named(NodeSettings("h:1", tmp_path), home, asks=True).name == ""
    assert len(terminal.asked) == 1


def test_without_a_terminal_nobody_is_asked_and_a_later_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, terminal = Home(tmp_path), Terminal(monkeypatch)
    joining._named(NodeSettings("h:1", tmp_path), home, asks=False)
    monkeypatch.setattr(joining, "somebody_is_there", lambda: False)
    joining._named(NodeSettings("h:1", tmp_path), home, asks=True)
    assert not terminal.asked
    assert home.remembered().name is None


def test_threads_of_a_nice_node_sleep_while_they_wait_unless_the_owner_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "OMP_WAIT_POLICY"
    monkeypatch.setenv(name, "active")
    joining.wait_asleep(10)
    assert os.environ[name] == "active"
    monkeypatch.delenv(name)
    joining.wait_asleep(0)
    assert name not in os.environ
    joining.wait_asleep(10)
    assert os.environ[name] == "passive"
    monkeypatch.delenv(name)


def test_torch_is_not_there_yet_when_its_threads_are_told_how_to_wait() -> None:
    code = "import sys, lockstep.commands.join; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_other_programs_go_first_and_a_nicer_start_stays() -> None:
    code = (
        "import os; from lockstep.commands.join import be_nice\n"
        "be_nice(10); be_nice(0); print(os.getpriority(os.PRIO_PROCESS, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == max(10, os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="a process has one niceness here")
def test_threads_that_run_already_let_other_programs_go_first_too() -> None:
    code = (
        "import os, threading; from lockstep.commands.join import be_nice\n"
        "over = threading.Event()\n"
        "threads = [threading.Thread(target=over.wait) for _ in range(2)]\n"
        "[thread.start() for thread in threads]; be_nice(19)\n"
        "print(*{os.getpriority(os.PRIO_PROCESS, thread.native_id) for thread in threads})\n"
        "over.set()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["19"]


@pytest.mark.skipif(
    not (SESSION.exists() and SESSION.read_text()), reason="sessions are not groups here"
)
@pytest.mark.parametrize("own", [True, False])
def test_a_session_of_its_own_lets_other_programs_go_first_and_a_terminal_s_is_left(
    own: bool,
) -> None:
    code = (
        "from lockstep.commands.join import SESSION, be_nice\n"
        "before = SESSION.read_text().split()[-1]; be_nice(11)\n"
        "print(before, SESSION.read_text().split()[-1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=own,
    )
    before, after = map(int, done.stdout.split())
    assert after == (max(before, 11) if own else before)


def test_a_token_of_the_link_is_in_no_setting_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[NodeSettings] = []
    monkeypatch.setattr("lockstep.commands.join.join", lambda settings, *_: seen.append(settings))
    for words in (["example.org?token=s3cret"], ["example.org", "--token", "s3cret"]):
        assert main(["join", *words, "--directory", str(tmp_path)]) == 0
    for settings in seen:
        assert settings.token == "s3cret"
        assert "s3cret" not in settings.coordinator
        assert "s3cret" not in repr(settings)
    assert main(["join", "plain://192.0.2.7:1?token=s3cret"]) == ExitCode.SETTINGS
    assert len(seen) == 2


def test_where_nobody_can_be_asked_nothing_is_measured_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = RunInfo(RunSpec(), RunId("12" * 16), b"k" * 32)
    monkeypatch.setattr(joining, "first_word", lambda *_, **__: info)
    monkeypatch.setattr(joining, "knock", lambda *_: wire.CoordinatorMessage())
    monkeypatch.setattr(joining, "_measured", lambda *_, **__: pytest.fail("it was measured"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.delenv("LOCKSTEP_YES", raising=False)
    assert main(["join", "127.0.0.1:1", "--home", str(tmp_path)]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "nobody can be asked here: add --yes" in said
    assert "run:" in said, "what the consent is about is listed"


def test_links_over_libp2p_need_its_daemon_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["join", "127.0.0.1:1", "--home", str(tmp_path / "home"), "--links", "grpc,libp2p"]
    assert main(words) == ExitCode.UNREACHABLE
    assert "`pip install --no-deps hivemind`, or Lockstep with the" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_a_run_that_has_ended_ends_a_newcomer_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = RunInfo(RunSpec(), RunId("12" * 16), b"k" * 32)
    told = wire.CoordinatorMessage(finished=wire.RunFinished(reason="all 6 steps are done"))
    monkeypatch.setattr(joining, "first_word", lambda *_, **__: info)
    monkeypatch.setattr(joining, "knock", lambda *_: told)
    monkeypatch.setattr(joining, "_measured", lambda *_, **__: pytest.fail("it was measured"))
    words = ["join", "127.0.0.1:1", "--home", str(tmp_path), "--yes"]
    assert main(words) == ExitCode.OK
    assert "there is nothing to do: all 6 steps are done" in capsys.readouterr().err


def test_the_first_start_measures_the_pass_and_the_next_ones_remember_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []

    def look(*_: object, finds: bool) -> FirstLook:
        looked.append(finds)
        return FirstLook(Rehearsal(4, 4, 0.1, 0.2, ""))

    monkeypatch.setattr(measured, "look", look)
    monkeypatch.setattr(joining, "import_node", lambda: None)
    monkeypatch.setattr(joining, "be_nice", lambda _: None)
    settings = NodeSettings("h:1", tmp_path, micro_batch=8)
    info = RunInfo(RunSpec(), RunId("12" * 16), b"k" * 32)

    def started(micro_batch: int | None, *, shown: bool) -> int:
        wishes = joining.Wishes(Limits(), 0, micro_batch=micro_batch)
        return joining._measured(settings, info, wishes, None, shown=shown)[0].micro_batch

    assert started(None, shown=False) == 4, "with a directory of its own too"
    measured.remember(tmp_path, info.run_id, settings, 0, Rehearsal(2, 2, 0.1, 0.2, ""))
    assert started(None, shown=True) == 2
    assert looked == [True], "it is measured once"
    assert started(8, shown=False) == 8
    assert looked == [True], "what is given is not measured, unless the question shows the bell"
    assert started(8, shown=True) == 4, "less, where memory ran out while it was measured"
    assert looked == [True, False]
    (tmp_path / CONSENT_NAME).touch()
    assert started(8, shown=True) == 8
    assert looked == [True, False]


DOCUMENT = {"members": [{}] * 7, "phase": "computing", "steps": {"total": 2104, "committed": 7}}
"""A coordinator's, of a run that was made longer."""


def test_the_question_names_the_device_that_was_measured_and_the_traffic_of_all_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joining, "ask", lambda _: DOCUMENT)
    info = RunInfo(RunSpec(), RunId("12" * 16), b"k" * 32)
    settings = NodeSettings("h:1", tmp_path, device="cpu")
    seen = FirstLook(Rehearsal(4, 4, 0.1, 0.2, ""))
    assert joining._agreed(settings, info, joining.Wishes(Limits(), 0, yes=True), seen)
    said = capsys.readouterr().err
    assert f"device: {describe(torch.device('cpu'))}\n" in said
    assert "with 8 members" in said
    assert "2,104 steps" in said, "not those of the run file"


def test_the_page_of_the_run_is_told_with_the_own_id() -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    me = peer_id(public_bytes(key))
    page = "http://run.example:8080/"
    assert joining.own_page({"page": page}, key) == f"{page}?me={me}"


@pytest.mark.parametrize(
    "page",
    [
        "",
        None,
        7,
        "javascript:alert(1)",
        "http://",
        "http://user:secret@run.example/",
        "http://run.example/ x",
        "http://run.example/?me=other",
        "https://run.example/\x1b[31m",
        "http://run.example/" + 300 * "x",
    ],
)
def test_what_is_no_address_of_a_page_is_not_shown(page: object) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert joining.own_page({"page": page}, key) == ""
