"""The wheel as a newcomer meets it: built, installed into a fresh environment, and used.

    without extras      version, init, coordinator, status and relay; no torch
    with extra `node`   a node that trains a tiny run to its end

pip fetches what it needs as it does for `make setup`, held to constraints.txt.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lockstep import DISTRIBUTION, __version__
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]

PATIENCE_S = 120.0
"""Longest wait for a process of these tests on a busy machine."""

Found = TypeVar("Found")

ANYWHERE = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


class Environment:
    """A virtual environment with the wheel, and a directory in which its program is used."""

    def __init__(self, place: Path, wheel: Path, extra: str = "") -> None:
        self.place = place
        self.python = place / "venv" / "bin" / "python"
        self.program = place / "venv" / "bin" / "lockstep"
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        held = ("--constraint", str(ROOT / "constraints.txt"))
        install = [self.python, "-m", "pip", "install", "--quiet", *held, f"{wheel}{extra}"]
        subprocess.run(install, check=True, cwd=place, env=clean_environment())

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.place,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    @contextmanager
    def running(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """One command that stays, until the end of the block at most."""
        with (
            (self.place / "log.txt").open("a") as log,
            subprocess.Popen(
                [self.program, *arguments],
                cwd=self.place,
                env=clean_environment(),
                stdout=log,
                stderr=log,
                text=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def status(self, address: str) -> dict[str, Any]:
        """What `lockstep status` prints as JSON."""
        done = self.run("status", address, "--json", "-")
        assert done.returncode == ExitCode.OK, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def has(self, module: str) -> bool:
        """Tells whether its Python finds a module."""
        code = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
        found = subprocess.run([self.python, "-c", code], cwd=self.place, env=clean_environment())
        return found.returncode == 0


def clean_environment() -> dict[str, str]:
    """This process's environment without what leads Python or Lockstep elsewhere."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LOCKSTEP_", "PYTHON"))
    }


def wait_for(found: Callable[[], Found], process: "subprocess.Popen[str]", log: Path) -> Found:
    """The first true value of `found()` while `process` runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.1)
    return value


def noted_address(directory: Path) -> str:
    """Address of the coordinator that lives in a directory; empty until it serves."""
    note = directory / "process.json"
    return json.loads(note.read_text())["coordinator"] if note.exists() else ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, as `make dist` builds it: from the source archive."""
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert [path.suffixes[-1] for path in sorted(directory.iterdir())] == [".whl", ".gz"]
    (built,) = directory.glob("*.whl")
    assert built.name.startswith(f"{DISTRIBUTION.replace('-', '_')}-{__version__}-")
    return built


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Without any extra."""
    return Environment(tmp_path_factory.mktemp("plain"), wheel)


def test_without_extras_there_is_no_torch_and_the_program_names_the_way_to_it(
    plain: Environment,
) -> None:
    assert not plain.has("torch")
    version = plain.run("--version")
    assert (version.returncode, version.stdout) == (ExitCode.OK, f"lockstep {__version__}\n")
    joined = plain.run("join", "127.0.0.1:1")
    assert joined.returncode == ExitCode.USAGE
    assert "pip install 'WHEEL[node]'" in joined.stderr


def test_a_program_that_is_not_on_the_path_names_itself_by_its_path(plain: Environment) -> None:
    done = plain.run("init", "--defaults", "named.toml")
    assert f"next: {plain.program} coordinator named.toml --listen" in done.stdout


def test_coordinator_status_and_relay_work_without_torch(plain: Environment) -> None:
    assert plain.run("init", "--defaults", "run.toml").returncode == ExitCode.OK
    log = plain.place / "log.txt"
    with plain.running("coordinator", "run.toml", *ANYWHERE) as coordinator:
        directory = plain.place / "run.coordinator"
        address = wait_for(lambda: noted_address(directory), coordinator, log)
        assert plain.status(address)["steps"]["committed"] == 0
        with plain.running("relay", address, "--directory", "relay", *ANYWHERE) as relay:
            wait_for(lambda: plain.status(address)["relays"], relay, log)
            relay.send_signal(signal.SIGTERM)
            assert relay.wait(PATIENCE_S) == ExitCode.OK, log.read_text()
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(PATIENCE_S) == ExitCode.OK, log.read_text()
    assert "torch=" not in log.read_text(), "the first record of a process lists what it found"


def test_with_the_extra_a_node_trains_a_run_to_its_end(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    full = Environment(tmp_path_factory.mktemp("full"), wheel, "[node]")
    log = full.place / "log.txt"
    write_run_file(full.place / "run.toml", tiny_spec(steps=3, members=1))
    tiny_corpus(full.place / "data")
    with full.running("coordinator", "run.toml", *ANYWHERE) as coordinator:
        address = wait_for(lambda: noted_address(full.place / "run.coordinator"), coordinator, log)
        own = ("--directory", "node", "--data", "data", "--device", "cpu", "--threads", "1")
        with full.running("join", address, *own, "--admin", "127.0.0.1:0") as node:
            assert node.wait(PATIENCE_S) == ExitCode.OK, log.read_text()
        coordinator.send_signal(signal.SIGTERM)  # it serves a finished run until it is stopped
        assert coordinator.wait(PATIENCE_S) == ExitCode.OK, log.read_text()
    status = json.loads((full.place / "node" / "status.json").read_text())
    assert status["rounds"]["trained"] == 3
    assert (full.place / "node" / "checkpoint").is_dir()
