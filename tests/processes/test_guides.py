"""The guides tried word for word: each command line of a guide is run, with the places in it filled
in, in the order in which a person would; or it is left out with the reason.
"""

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from docs.generate.screens import screens
from lockstep.service.keys import read_key
from protocol.border.join_link import JoinLink
from protocol.handshake import public_bytes
from tests.docs.pages import DOCS, ROOT, commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 300.0
"""Longer than anything takes on a machine that others use too: a corpus is prepared in it."""

GUIDES = ("install", "join", "operate", "page", "audit", "simulate", "plan", "data", "wsl2")

LEFT_OUT = {
    "coordinator run.toml --listen 0.0.0.0:50700": "tried with --admit token, which it is part of",
    "coordinator run.toml --listen 0.0.0.0:50700 --public-page 0.0.0.0:8080": (
        "tests/lockstep/commands/test_coordinator.py, without a port that somebody may have"
    ),
    "coordinator run.toml --listen 0.0.0.0:50700 --notify https://ntfy.example/my-run": (
        "there is no such host: tests/lockstep/service/test_notifier.py"
    ),
    'coordinator run.toml --listen 0.0.0.0:50700 --notify "/home/me/bin/send-mail --urgent"': (
        "as the line before"
    ),
    "init --public run.toml": "asks on a terminal: tests/lockstep/commands/test_init.py",
    "doctor 'lockstep://HOST:PORT/RUN#KEY'": "as `doctor LINK`; a join has the whole link",
    "service install LINK": "needs systemd: tests/lockstep/commands/test_service.py",
    "service install coordinator run.toml --listen 0.0.0.0:50700": "as the line before",
    "service install relay LINK --advertise HOST:50710": "as the line before",
    "service install auditor LINK": "as the line before",
    "uninstall": "asks on a terminal: tests/lockstep/commands/test_uninstall.py",
    "coordinator run.toml --listen 0.0.0.0:50700 --restart-from CHECKPOINT": (
        "every copy has to be lost first: tests/processes/test_restart_from_checkpoint.py"
    ),
    "join HOST:50700 --restart-from CHECKPOINT": "as the line before",
    "verify HOST:50700 --work DATA": (
        "a run that names its data, audited for minutes: tests/processes/test_work_audit.py"
    ),
    "wan up --nodes 4 --profiles cable,dsl,starlink,lte --rounds 30 --json out/wan.json": (
        "needs root and quiet cores: tests/lockstep/wan"
    ),
    "wan up --nodes 4 --profiles cable,dsl,starlink,lte --rounds 30": "as the line before",
    "verify --proof equivocation.json": (
        "needs a key with two histories: tests/lockstep/audit/test_two_histories.py"
    ),
    "verify run.coordinator --payloads NODE/payloads --from NODE/snapshots/ROUND-SHA256": (
        "a short run has no snapshot: tests/processes/test_restart_from_checkpoint.py"
    ),
}
"""Lines that are not run here, and why."""


def lines() -> set[str]:
    """All command lines of the guides and of the README, without `lockstep`."""
    pages = [*(DOCS / "guide" / f"{guide}.md" for guide in GUIDES), ROOT / "README.md"]
    return {line for page in pages for line in commands(page)}


@dataclass
class Person:
    """Somebody with a directory, a home and the guides. `places` fills in what a line leaves
    open.
    """

    directory: Path
    places: dict[str, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)

    def command(self, line: str) -> list[str]:
        """The command of a line of a guide, which must stand there."""
        assert line in lines(), f"no guide has the line: lockstep {line}"
        self.tried.add(line)
        for place, value in self.places.items():
            line = line.replace(place, value)
        return [sys.executable, "-m", "lockstep", *shlex.split(line)]

    def environment(self, home: str) -> dict[str, str]:
        """Variables that stand in the guides; ports of their own, for other tests run beside."""
        return os.environ | {
            "HOME": str(self.directory / home),
            "LOCKSTEP_HOME": str(self.directory / home),
            "LOCKSTEP_ADMIN": "127.0.0.1:0",
            "LOCKSTEP_LISTEN": "127.0.0.1:0",
            "LOCKSTEP_YES": "1",
            "COLUMNS": "80",
            "PYTHONPATH": str(ROOT),
        }

    def types(self, line: str, home: str = "home") -> str:
        """What the command prints, its messages last; it must end well."""
        done = subprocess.run(
            self.command(line),
            cwd=self.directory,
            env=self.environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"lockstep {line}: {done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def answers(self, line: str, *answers: str) -> None:
        """A command that asks on a terminal."""
        controlling, terminal = pty.openpty()
        process = subprocess.Popen(
            self.command(line),
            cwd=self.directory,
            env=self.environment("home"),
            stdin=terminal,
            stdout=subprocess.DEVNULL,
        )
        os.close(terminal)
        os.write(controlling, "".join(f"{answer}\n" for answer in answers).encode())
        assert process.wait(PATIENCE_S) == 0, line
        os.close(controlling)

    @contextmanager
    def keeps(self, line: str, home: str, log: str) -> Iterator["Running"]:
        """A command that goes on until it is told to leave."""
        path = self.directory / log
        with path.open("wb") as output:
            process = subprocess.Popen(
                self.command(line),
                cwd=self.directory,
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running = Running(process, path)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                words = {path.name: path.read_text()[-1500:] for path in self.logs()}
                raise AssertionError(f"expected {what} within {PATIENCE_S:.0f} s: {words}")
            time.sleep(0.2)

    def logs(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))


@dataclass
class Running:
    """A command at work."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def says(self, pattern: str) -> "re.Match[str] | None":
        return re.search(pattern, self.log.read_text())

    def ends(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(PATIENCE_S)

    def leaves(self) -> int:
        """Its exit code after Ctrl-C, once."""
        self.process.send_signal(signal.SIGINT)
        return self.ends()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Person:
    directory = tmp_path_factory.mktemp("guides")
    port, relay = free_port(), free_port()
    return Person(
        directory,
        {
            "0.0.0.0:50700": f"127.0.0.1:{port}",
            "0.0.0.0:50710": f"127.0.0.1:{relay}",
            "HOST:50700": f"127.0.0.1:{port}",
            "HOST:50710": f"127.0.0.1:{relay}",
            "HOST:PORT": f"127.0.0.1:{port}",
            "LINK": f"127.0.0.1:{port}",
            "127.0.0.1:50721": "127.0.0.1:0",
        },
    )


def test_a_run_is_begun_steered_ended_and_audited_as_the_guides_say(person: Person) -> None:
    """Of operate.md, join.md, audit.md, wsl2.md and the README."""
    assert "lockstep" in person.types("--version")
    person.answers("init run.toml", "first", "demo", "2000", "lockstep-2026")
    assert 'name = "first"' in (person.directory / "run.toml").read_text()
    assert "parameters" in person.types("coordinator --check-run run.toml")

    coordinates = "coordinator run.toml --listen 0.0.0.0:50700 --admit token"
    with person.keeps(coordinates, "operator", "coordinator.log") as coordinator:
        person.until(lambda: coordinator.says(r"lockstep join"), "the line for volunteers")
        person.places = {"lockstep://HOST:PORT/RUN#KEY": whole_link(person)} | person.places
        person.types("run admit open")
        person.types("run token create")
        assert "wrote the page of the run to www" in person.types("run page www")
        assert re.match(r"\w{40}\n", person.types("run token create --uses 20 --expires 7d"))
        relays = "relay HOST:50700 --listen 0.0.0.0:50710 --advertise HOST:50710"
        audits = "auditor HOST:50700 --admin 127.0.0.1:50721"
        with (
            person.keeps(relays, "relay", "relay.log") as relay,
            person.keeps(audits, "auditor", "auditor.log") as auditor,
            person.keeps("join HOST:PORT", "attic", "attic.log") as attic,
            person.keeps("join 'lockstep://HOST:PORT/RUN#KEY'", "cellar", "cellar.log") as cellar,
        ):
            own_key = r"run auditor add (\w{32})"
            person.until(lambda: auditor.says(own_key), "the auditor's key")
            found = auditor.says(own_key)
            assert found
            person.places["KEY"] = found[1]
            person.types("run auditor add KEY")
            assert found[1][:8] in person.types("run auditor list")

            person.until(lambda: rounds(person) >= 2, "two rounds")
            assert "speed" in person.types("doctor LINK", "guest")
            assert "first" in person.types("status HOST:50700")
            assert "fits run first" in person.types("upgrade --check LINK")
            assert "to upgrade" in person.types("upgrade")
            steer(person)
            checkpoint(person)
            ended = person.types('run finish --reason "it is good enough"')
            assert "end" in ended or "finish" in ended, ended
            assert (attic.ends(), cellar.ends()) == (0, 0)
            assert attic.says("checkpoint"), "where the model is"
            assert "finished" in person.types("status HOST:50700 --watch")
            assert "verified" in person.types("verify HOST:50700")
            person.types("run auditor remove KEY")
            assert "good enough" in person.types("run audit")
            assert (auditor.leaves(), relay.leaves()) == (0, 0)
        assert coordinator.leaves() == 0
    afterwards(person)


def whole_link(person: Person) -> str:
    """The link of the run, as a coordinator on a network prints it."""
    document, _ = json.JSONDecoder().raw_decode(person.types("status HOST:50700 --json -"))
    key = public_bytes(read_key(person.directory / "run.coordinator" / "key.pem"))
    return JoinLink(person.places["HOST:50700"], document["run_id"], key).text()


def rounds(person: Person) -> int:
    document, _ = json.JSONDecoder().raw_decode(person.types("status HOST:50700 --json -"))
    return int(document["steps"]["committed"])


def steer(person: Person) -> None:
    """The orders of an operator while the run goes on."""
    assert "member" in person.types("run members")
    person.types('run pause --reason "the disk is full"')
    person.until(lambda: "the disk is full" in person.types("status HOST:50700"), "a pause")
    person.types("run resume")
    person.types('run announce "the run moves to a new machine on Sunday"')
    held = rounds(person)
    person.until(lambda: rounds(person) > held, "a round after the pause")


def checkpoint(person: Person) -> None:
    """A model for the operator, and what it writes."""
    person.types("run checkpoint")
    place = person.directory / "run.coordinator" / "checkpoints"
    person.until(lambda: place.is_dir() and any(place.glob("[0-9]*-*")), "a checkpoint")
    person.places["run.coordinator/checkpoints/1999-5ad1..."] = str(next(place.glob("[0-9]*-*")))
    written = 'generate run.coordinator/checkpoints/1999-5ad1... --prompt "def "'
    assert person.types(written).startswith("def ")


def afterwards(person: Person) -> None:
    """What the directories alone tell."""
    assert "sound" in person.types("coordinator --check run.coordinator")
    assert "rounds in rounds.csv" in person.types("run export run.coordinator --csv rounds.csv")
    (run,) = (person.directory / "attic" / "runs").iterdir()
    person.places["~/.lockstep/runs/RUN_ID"] = str(run)
    kept = (
        "verify run.coordinator --payloads ~/.lockstep/runs/RUN_ID/payloads"
        " --checkpoint ~/.lockstep/runs/RUN_ID/checkpoint"
    )
    assert "equals the state of the log" in person.types(kept)
    person.places["NODE/"] = f"{run}/"
    kept = "verify run.coordinator --payloads NODE/payloads --checkpoint NODE/checkpoint"
    assert "equals the state of the log" in person.types(kept)


def test_the_demo_is_read_as_the_guide_says(person: Person) -> None:
    """Of simulate.md and audit.md: the demo's own command has a test of its own."""
    demo = ["demo", "--nodes", "2", "--rounds", "10", "--directory", "out/demo"]
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", *demo],
        cwd=person.directory,
        env=person.environment("demo"),
        check=True,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
    )
    require_alike(done.stdout, *screens("simulate.md"))
    assert "equals" in person.types("verify out/demo --checkpoint out/demo/checkpoint")
    assert "def " in person.types('generate out/demo/checkpoint --prompt "def "')


FIGURE = re.compile(r"[0-9a-f]{16,}|\d[\d,.]*")

UNIT = re.compile(r"# [kMG]?B\b")

OF_THE_RUN = ("trained", "payload", "against")
"""Lines of the demo whose first figure no machine changes, but for the places that are drawn."""


def require_alike(printed: str, pasted: str) -> None:
    """A demo prints the words of the guide, and its figures where they are the run's."""
    now_words, then_words = (
        [UNIT.sub("# B", FIGURE.sub("#", line)).split() for line in text.splitlines()]
        for text in (printed, pasted)
    )
    assert now_words == then_words
    for now, then in zip(printed.splitlines(), pasted.splitlines(), strict=True):
        if now.startswith(OF_THE_RUN):
            found, told = (float(FIGURE.findall(line)[0].replace(",", "")) for line in (now, then))
            assert found == pytest.approx(told, rel=0.02), f"{now}; the guide has: {then}"


def test_data_models_and_plans_are_made_as_the_guides_say(person: Person) -> None:
    """Of join.md, data.md, operate.md and plan.md: what needs no run."""
    data = person.directory / "notes.txt"
    data.write_text("A line of text to train on.\n" * 3000)
    person.places |= {
        "SOURCE...": str(data),
        "--out DIR": "--out corpus",
        "s3://bucket/path": str(person.directory / "bucket"),
    }
    for place in ("DIR", "data"):
        person.types(f"data prepare SOURCE... --out {place}")
    assert "manifest_sha256" in person.types("data publish data s3://bucket/path")
    assert (person.directory / "corpus" / "manifest.json").is_file()

    published = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 128,
        "vocab_size": 512,
    }
    (person.directory / "config.json").write_text(json.dumps(published))
    own = Person(person.directory / "published", person.places)
    own.directory.mkdir()
    (own.directory / "config.json").write_text(json.dumps(published))
    own.types("init --from config.json run.toml")
    assert 'type = "gpt2"' in (own.directory / "run.toml").read_text()
    planned = "plan run.toml --nodes 8 --profiles cable,dsl --compute-s 2 --jitter 0.2"
    assert "all-reduce" in own.types(planned)
    own.types("init crowd.toml --defaults --nodes 40")
    assert "sums = 9" in (own.directory / "crowd.toml").read_text()
    person.tried |= own.tried


def test_every_line_of_a_guide_was_tried_or_has_a_reason(
    person: Person, request: pytest.FixtureRequest
) -> None:
    """Runs after the others; a guide's new line has to be tried, too."""
    played = {item.name for item in request.session.items if item.path == request.path}
    if {name for name in globals() if name.startswith("test_")} - played:
        pytest.skip("runs with the other tests of this module only")
    assert lines() - person.tried == set(LEFT_OUT)
