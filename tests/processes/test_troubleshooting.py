"""The causes that the page of troubles names for each exit code, brought about: the command ends
with that code and one line that says what the page promises.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.run_file import write_run_file
from tests.docs.pages import DOCS, ROOT
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 200.0

LEFT_OUT = {
    "1": "a bug that is known is mended; tests/lockstep/test_cli.py has its line",
    "10": "tests/processes/test_device_failure.py has it",
    "11": "tests/processes/test_descriptors.py has a machine that is short of descriptors",
    "141": "it has no line; tests/lockstep/test_streams.py closes the pipe",
}
"""Codes that are not brought about here, and why."""


@dataclass
class Place:
    """A directory to be in trouble in."""

    directory: Path

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "lockstep", *words]

    @property
    def environment(self) -> dict[str, str]:
        home = str(self.directory / "home")
        own = {"LOCKSTEP_HOME": home, "HOME": home, "PYTHONPATH": str(ROOT), "LOCKSTEP_YES": "1"}
        return os.environ | own | {"LOCKSTEP_ADMIN": "127.0.0.1:0"}

    def ends(self, code: int, *words: str) -> str:
        """The line of a command that ends with this code, or what it prints."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, f"lockstep {words}: {done.returncode} {done.stderr}"
        assert "Traceback" not in done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == (code != 0), done.stderr
        return errors[0] if errors else done.stdout

    @contextmanager
    def keeps(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """A command at work. It heeds SIGINT also where a shell has told this one to ignore it."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        process = subprocess.Popen(
            self.command(*words),
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        signal.signal(signal.SIGINT, before)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "home").mkdir()
    write_run_file(tmp_path / "run.toml", tiny_spec(), force=True)
    return Place(tmp_path)


@contextmanager
def busy_port() -> Iterator[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield f"127.0.0.1:{held.getsockname()[1]}"


def said(process: "subprocess.Popen[str]", pattern: str) -> str:
    """The first group of the pattern in what the process prints."""
    assert process.stdout
    deadline_s, seen = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline_s and (line := process.stdout.readline()):
        seen += line
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"expected {pattern}, got {seen}")


def test_code_0_the_work_ended(place: Place) -> None:
    assert "lockstep" in place.ends(0, "--version")


def test_code_2_a_mistyped_option_is_named_with_the_help_to_read(place: Place) -> None:
    line = place.ends(2, "status", "127.0.0.1:1", "--jason", "-")
    assert "--jason" in line
    assert "status --help" in line


def test_code_3_the_line_names_the_field_what_was_expected_and_what_was_found(place: Place) -> None:
    (place.directory / "wrong.toml").write_text("[rounds]\ncompute_ms = -1\n")
    line = place.ends(3, "coordinator", "wrong.toml")
    assert re.search(r"wrong\.toml: rounds\.compute_ms: expected .*, found -1", line), line
    (place.directory / "settings.toml").write_text('[join]\nthreads = "one"\n')
    assert "settings.toml" in place.ends(3, "--settings", "settings.toml", "join", "127.0.0.1:1")


def test_code_4_the_line_names_the_cause(place: Place) -> None:
    with busy_port() as address:
        free = address
    assert "refuses port" in place.ends(4, "status", free)
    assert "no host is called" in place.ends(4, "status", "nowhere.invalid:50700")


def test_code_5_a_file_of_another_release(place: Place) -> None:
    (place.directory / "later.toml").write_text("lockstep = 2\n")
    assert "2" in place.ends(5, "coordinator", "later.toml")


def test_code_6_a_damaged_file_and_another_process_in_the_directory(place: Place) -> None:
    listen = ["--listen", "127.0.0.1:0", "--no-try-model"]
    with place.keeps("coordinator", "run.toml", *listen) as coordinator:
        said(coordinator, r"(started admin)")
        line = place.ends(6, "coordinator", "run.toml", *listen)
        assert "stop it first" in line
        coordinator.terminate()
        assert coordinator.wait(PATIENCE_S) == 0
    (place.directory / "run.coordinator" / "journal.sqlite").write_bytes(b"no journal")
    assert "journal" in place.ends(6, "coordinator", "--check", "run.coordinator")


def test_code_7_two_processes_with_the_same_listen(place: Place) -> None:
    with busy_port() as address:
        line = place.ends(7, "coordinator", "run.toml", "--listen", address, "--no-try-model")
        assert address in line
        line = place.ends(
            7, "coordinator", "run.toml", "--listen", "127.0.0.1:0", "--admin", address
        )
        assert "--admin" in line


def test_code_8_no_prepared_directory_and_a_damaged_one(place: Place) -> None:
    assert "data prepare" in place.ends(8, "data", "publish", "home", "out")
    data = tiny_corpus(place.directory / "data")
    shard = data / "train-00000.bin"
    blob = bytearray(shard.read_bytes())
    blob[len(blob) // 2] ^= 1
    shard.write_bytes(blob)
    assert "SHA-256" in place.ends(8, "data", "publish", "data", "out")


def test_code_9_a_coordinator_that_refuses_says_why(place: Place) -> None:
    words = ["coordinator", "run.toml", "--listen", "127.0.0.1:0", "--no-try-model"]
    with place.keeps(*words, "--admit", "list") as coordinator:
        address = said(coordinator, r"coordinator=(127\.0\.0\.1:\d+)")
        line = place.ends(9, "relay", address, "--listen", "127.0.0.1:0")
        assert "refused" in line


def test_code_130_a_signal_before_the_process_was_up(place: Place) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with place.keeps("relay", address, "--listen", "127.0.0.1:0") as relay:
            called, _ = silent.accept()
            with called:
                relay.send_signal(signal.SIGINT)
                assert relay.wait(PATIENCE_S) == 130


def test_every_code_of_the_page_is_tried_or_left_out_with_a_reason() -> None:
    page = (DOCS / "guide" / "troubleshooting.md").read_text("utf-8")
    codes = re.findall(r"^### Code (\d+)$", page, re.MULTILINE)
    tried = {found for name in globals() for found in re.findall(r"^test_code_(\d+)_", name)}
    assert set(codes) - set(LEFT_OUT) == tried
