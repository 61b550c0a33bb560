"""Output that cannot be written, that nobody reads, or that has not the letters."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from lockstep import streams
from lockstep.exit_codes import ExitCode
from lockstep.streams import Stream, unneeded_output
from tests.support.waiting import PATIENCE_SECONDS

FULL = Path("/dev/full")

needs_a_full_disk = pytest.mark.skipif(
    not FULL.exists(), reason="no /dev/full on this system, which refuses every byte"
)

VERSION = (sys.executable, "-m", "lockstep", "--version")


class Disk(io.StringIO):
    """A file on a disk that may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def run(
    *command: str, stdout: IO[str] | int = subprocess.PIPE, stderr: IO[str] | int = subprocess.PIPE
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=60, check=False)


def run_code(code: str, encoding: str = "utf-8") -> "subprocess.CompletedProcess[bytes]":
    """A program of our streams, and what it prints."""
    begin = "import sys; from lockstep import streams; streams.install()\n"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        capture_output=True,
        env=environment,
        timeout=60,
        check=False,
    )


@contextmanager
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


def test_the_codes_are_the_documented_ones() -> None:
    assert (streams.UNREAD, streams.UNWRITABLE) == (ExitCode.UNREAD, ExitCode.STORAGE)


def test_a_command_whose_reader_is_gone_ends_without_a_word() -> None:
    with unread() as writer:
        done = run(*VERSION, stdout=writer)
    assert (done.returncode, done.stderr) == (ExitCode.UNREAD, "")


@needs_a_full_disk
def test_a_result_that_a_full_disk_refuses_is_told_in_one_line() -> None:
    with FULL.open("w") as full:
        done = run(*VERSION, stdout=full)
    assert done.returncode == ExitCode.STORAGE
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@needs_a_full_disk
def test_where_not_even_the_error_can_be_written_its_code_is_right() -> None:
    with FULL.open("w") as full:
        assert run(*VERSION, stdout=full, stderr=full).returncode == ExitCode.STORAGE


@needs_a_full_disk
def test_notes_that_cannot_be_written_change_no_result(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with FULL.open("w") as full:
        done = run(sys.executable, "-m", "lockstep", "init", "--defaults", str(path), stderr=full)
    assert done.returncode == ExitCode.OK
    assert done.stdout.startswith(f"wrote {path}")


def test_words_appear_again_as_soon_as_there_is_room() -> None:
    disk = Disk()
    stream = Stream(disk, needed=False)
    disk.full = True
    assert stream.write("lost") == 4
    disk.full = False
    print("seen", file=stream)  # type: ignore[call-overload]
    assert disk.getvalue() == "seen\n"


def test_a_result_is_needed_again_once_the_long_work_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream(Disk(), needed=True)
    monkeypatch.setattr("sys.stdout", stream)
    with unneeded_output():
        assert not stream.needed
    assert stream.needed


def test_what_a_closed_terminal_did_not_take_is_no_failed_result_of_a_long_work() -> None:
    code = (
        "with streams.unneeded_output():\n"
        "    print('another'); sys.stdout.flush()\n"
        "sys.stdout.flush()"
    )
    begin = "import sys; from lockstep import streams; streams.install()\n"
    with unread() as writer:
        done = run(sys.executable, "-c", begin + code, stdout=writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_after_its_terminal_is_closed_a_process_saves_its_work(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, signal, sys\n"
        "from lockstep import streams\n"
        "from lockstep.service.signals import run_event_loop, until_stopped\n"
        "streams.install()\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "async def main():\n"
        "    asked = asyncio.Event()\n"
        "    async def work():\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "        await asked.wait()\n"
        "        print('a last word', flush=True)\n"
        "        print('and another', file=sys.stderr)\n"
        "        open(sys.argv[1], 'w').write('saved')\n"
        "    await until_stopped(work(), asked.set)\n"
        "run_event_loop(main())"
    )
    ours, terminal = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "state")], stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    os.close(ours)
    assert child.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "state").read_text() == "saved"


def test_letters_that_a_terminal_has_not_are_replaced() -> None:
    code = (
        "import typer; from rich.box import SIMPLE_HEAD; from rich.table import Table\n"
        "from lockstep.console import output, messages\n"
        "table = Table('name', 'state', box=SIMPLE_HEAD); table.add_row('дом', 'ready')\n"
        "output.print(table); messages.print('дом'); typer.echo('дом'); print('\\udcff')"
    )
    done = run_code(code, "ascii")
    assert done.returncode == 0, done.stderr
    table, *others = done.stdout.rsplit(b"\n", 3)
    assert b"| ??? " in table
    assert b"\\" not in table, "every cell and line keeps its width"
    assert others == [b"???", b"?", b""]
    assert done.stderr == b"\\u0434\\u043e\\u043c\n"


@pytest.mark.skipif(os.name != "posix", reason="descriptors are inherited on POSIX only")
def test_a_stream_that_the_parent_closed_holds_nothing_and_gives_its_number_to_no_file() -> None:
    code = (
        "print('lost'); print('lost', file=sys.stderr)\n"
        "sys.exit(0 if open(sys.executable).fileno() > 2 and not sys.stdin.isatty() else 1)"
    )
    begin = "import sys; from lockstep import streams; streams.install()\n"
    closed = 'exec "$0" -c "$1" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", closed, sys.executable, begin + code]).returncode == 0
