"""A coordinator says at its start who can reach it, and refuses what is no checkpoint."""

import asyncio
import shlex
import sys
from pathlib import Path

import aiohttp
import pytest

from coordinator.journal import JOURNAL_NAME
from lockstep.cli import main
from lockstep.commands import coordinator as coordinating
from lockstep.exit_codes import ExitCode
from lockstep.page.routes import Page
from lockstep.run_file import write_run_file
from lockstep.service.keys import load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import STATUS_NAME
from protocol.ids import RunId
from tests.coordinator.client import quiet_spec, running
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


async def test_the_public_page_is_served_and_nodes_are_told_its_address(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        assert process.status()["page"] == ""
        meter = OverheadMeter()
        async with coordinating._public_page(process, Page(process), "127.0.0.1:0", meter):
            url = process.status()["page"]
            assert url == f"http://127.0.0.1:{meter.page_port}/"
            async with aiohttp.ClientSession() as session, session.get(f"{url}run.json") as reply:
                assert (await reply.json())["run_id"] == process.run_id


async def test_what_comes_up_is_told_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinating, "LOOK_S", 0.0)
    told = tmp_path / "told"
    program = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    command = shlex.join([sys.executable, "-c", program, str(told)])
    async with running(tmp_path / "run", quiet_spec()) as process:
        async with coordinating._notices(process, command):
            for _ in range(10):
                await asyncio.sleep(0)
            process.rounds.state.end.finished = True
            for _ in range(10):
                await asyncio.sleep(0)
        assert told.read_text() == "end"
