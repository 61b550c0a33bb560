"""A cluster on this machine: real processes of the `lockstep` command, started, watched and
stopped.

    coordinator, once it serves -> the relay, if there is one, once it relays -> nodes

                 start              note on disk with its own pid            exit 0
    (nothing) ----------> starting ------------------------------> running ---------> finished
                             ^                                        | killed, or exit code not 0
                             +----------- started again --------------+   (RESTARTS_MAX times)

Each process has a directory with its state, its log and the note of `lockstep.service.serve`, from
which its admin port is known; nothing is guessed about ports, so clusters can run side by side. A
process follows its standard input, the other end of which only this one holds: if this one dies,
whatever the signal, they leave.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from lockstep.exit_codes import ExitCode, error_of
from lockstep.service.serve import NOTE_NAME, STATUS_NAME, read_note
from node.system.files import storage_errors
from node.transports.factory import parse_kinds

RESTARTS_MAX = 5
"""A process that dies more often has a reason that another start does not remove."""

START_S = 60.0
"""A coordinator opens its ports within a second, a relay within some, of which libp2p needs most;
on a busy machine both take far longer."""

STOP_S = 20.0
"""From asking a process to leave to killing it: a round is finished in less."""

STATUS_TIMEOUT_S = 1.0
"""An admin port answers in milliseconds; a stopped process must not hold up the others' line for
long."""

HOPELESS = {ExitCode.USAGE, ExitCode.SETTINGS, ExitCode.VERSION, ExitCode.STORAGE, ExitCode.DATA}
"""Exit codes that another start would only repeat."""

THREADS = "1"
"""CPU threads of each process: all of them share the machine's cores."""

RELAY = "relay"

Where: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Puts this thread where the process of the given name lives, such as `Laboratory.inside`."""

_ANY_ADMIN_PORT = ("--admin", "127.0.0.1:0")


def here(_: str) -> AbstractContextManager[object]:
    """Where this process lives."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One coordinator and its nodes on this machine."""

    directory: Path
    """Holds a directory for each process."""

    run_file: Path
    """What the coordinator is started with."""

    data: Path
    """Prepared corpus that all nodes read."""

    nodes: int
    """Node processes."""

    links: tuple[str, ...] = ("grpc",)
    """Transports for the nodes in turn, each as `lockstep join --links` takes them."""

    relay: bool = False
    """Whether there is a relay, with every transport that a node has."""


class Child:
    """One process of the cluster and its successors on the same directory."""

    def __init__(
        self,
        name: str,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        where: Where = here,
    ) -> None:
        self.name = name
        self.directory = directory
        self.restarts = 0
        self.started_s = 0.0
        """Monotonic time of the newest start."""
        self.status: dict[str, Any] = {}
        """The newest status of the process that runs now, or of its last one."""
        self.earlier: list[dict[str, Any]] = []
        """Last known status of each process that died: its counters start again from zero."""
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._where = where
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Standard output and error of all its processes."""
        return self.directory / "log.txt"

    @property
    def pid(self) -> int | None:
        """The running process, if one was started."""
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for a signal, as in `subprocess`."""
        return self._process.poll() if self._process else None

    def start(self, *more_arguments: str) -> None:
        """Starts the process, adding to its log."""
        command = [
            sys.executable,
            "-m",
            "lockstep",
            *self._arguments,
            *more_arguments,
            "--follow-parent",
        ]
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for stale in (NOTE_NAME, STATUS_NAME):
                (self.directory / stale).unlink(missing_ok=True)
            with self.log.open("ab") as log, self._where(self.name):
                self._process = self._spawn(command, log)
        self.started_s = time.monotonic()

    def restart(self, *more_arguments: str) -> None:
        """Starts the next process on the same directory; raises what it died of when that would not
        help.
        """
        self.restarts += 1
        self._close_input()
        if self.restarts > RESTARTS_MAX or self.exit_status in HOPELESS:
            kind = error_of(self.exit_status or 0)
            raise kind(
                f"{self.name} died {self.restarts} times, see {self.log}: {self.last_words()}"
            )
        self.earlier.append(self.status)
        self.status = {}
        self.start(*more_arguments)

    def refresh(self) -> None:
        """Takes the newest status: from the admin port, or what an ended process left behind."""
        left = read_note(self.directory / STATUS_NAME)
        self.status = left or self._ask() or self.status

    def note(self) -> dict[str, Any] | None:
        """The note of the process that runs now; None until it has opened its ports."""
        note = read_note(self.directory / NOTE_NAME)
        return note if note and note.get("pid") == self.pid else None

    def last_words(self) -> str:
        """The last line of its log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            return f"(no log: {error})"
        return lines[-1].strip() if lines else "(nothing)"

    def ask_to_leave(self) -> None:
        """The polite signal."""
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def wait(self, deadline: float) -> int | None:
        """Waits until the monotonic time `deadline`, then kills; the exit status."""
        if self._process is None:
            return None
        try:
            return self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._close_input()

    def _close_input(self) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def _spawn(self, command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        # In a session of its own, so that Ctrl-C reaches the cluster's owner alone, which stops it
        # in order.
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )

    def _ask(self) -> dict[str, Any] | None:
        note = self.note()
        if note is None:
            return None
        connection = HTTPConnection(urlsplit(str(note["admin"])).netloc, timeout=STATUS_TIMEOUT_S)
        try:
            with self._where(self.name):  # its admin port is on the loopback of where it lives
                connection.connect()
            connection.request("GET", "/status.json")
            document = msgspec.json.decode(connection.getresponse().read())
        except (OSError, HTTPException, msgspec.DecodeError):
            return None  # starting, ending or too busy: the status known before stays
        finally:
            connection.close()
        return document if isinstance(document, dict) else None


class Cluster:
    """One coordinator and its nodes; a context manager, so that nothing outlives it."""

    def __init__(self, settings: ClusterSettings, where: Where = here) -> None:
        self.coordinator = _child("coordinator", settings, {}, where)
        kinds = dict.fromkeys(kind for links in settings.links for kind in parse_kinds(links))
        self.relays = (
            [_child(RELAY, settings, {"--links": ",".join(kinds)}, where)] if settings.relay else []
        )
        """None or one."""
        self.nodes = [_node(settings, number, where) for number in range(settings.nodes)]
        self.address = ""
        self._run_file = settings.run_file

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def children(self) -> list[Child]:
        """Every process, in the order of their starts."""
        return [self.coordinator, *self.relays, *self.nodes]

    def start(self) -> None:
        """Starts the coordinator, then the relay, then the nodes, each when what it needs is
        there.
        """
        self.coordinator.start(*self._arguments(self.coordinator))
        self.address = self.wait_for_coordinator()
        for relay in self.relays:
            relay.start(*self._arguments(relay))
            self._wait_for(relay, lambda: self._asked().get("relays"))
        for node in self.nodes:
            node.start(*self._arguments(node))

    def listens(self, name: str) -> str:
        """HOST:PORT on which the coordinator or the relay listens."""
        return "127.0.0.1:0"

    def wait_for_coordinator(self) -> str:
        """Address of the coordinator once it serves; raises what it died of, with its last
        words.
        """
        return str(
            self._wait_for(
                self.coordinator, lambda: (self.coordinator.note() or {}).get("coordinator")
            )
        )

    @property
    def finished(self) -> bool:
        """The run is over: the coordinator has ended well, and so its nodes have or could not any
        more.
        """
        return self.coordinator.exit_status == 0

    def watch(self) -> list[str]:
        """Refreshes every status and starts what died again; what happened, in words."""
        happened = []
        for child in self.children:
            if _died(child) and not self.finished:
                happened.append(_obituary(child))
                child.restart(*self._arguments(child))
        for child in self.children:
            child.refresh()
        return happened

    def wait(self) -> None:
        """After the end of the run: gives the nodes `STOP_S` to save and leave, then takes the last
        statuses.
        """
        deadline = time.monotonic() + STOP_S
        for node in self.nodes:
            node.wait(deadline)
        for child in self.children:
            child.refresh()

    def stop(self, patience_s: float = STOP_S) -> None:
        """Asks every process to leave, nodes first, and kills those that do not within so many
        seconds.
        """
        deadline = time.monotonic() + patience_s
        try:
            for children in (self.nodes, self.relays, [self.coordinator]):
                for child in children:
                    child.ask_to_leave()
                for child in children:
                    child.wait(deadline)
        finally:  # a second Ctrl-C comes here: no more waiting
            for child in reversed(self.children):
                child.wait(time.monotonic())

    def _arguments(self, child: Child) -> tuple[str, ...]:
        """What a process is started with besides its own options."""
        if child is self.coordinator:  # which nodes look for where it was
            return str(self._run_file), "--listen", self.address or self.listens(child.name)
        return (
            (self.address, "--listen", self.listens(child.name))
            if child in self.relays
            else (self.address,)
        )

    def _asked(self) -> Mapping[str, Any]:
        self.coordinator.refresh()
        return self.coordinator.status

    def _wait_for(self, child: Child, found: Callable[[], object]) -> object:
        """What is found, as soon as it is something; raises what the child died of, with its last
        words.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if something := found():
                return something
            if child.exit_status is not None:
                break
            time.sleep(0.05)
        kind = error_of(child.exit_status or 0)
        raise kind(f"the {child.name} did not come up: {child.last_words()}")


def _node(settings: ClusterSettings, number: int, where: Where) -> Child:
    options = {
        "--data": str(settings.data),
        "--name": f"node-{number}",
        "--device": "cpu",
        "--threads": THREADS,
        "--links": settings.links[number % len(settings.links)],
    }
    return _child(f"node-{number}", settings, options, where, command="join")


def _child(
    name: str,
    settings: ClusterSettings,
    options: Mapping[str, str],
    where: Where,
    *,
    command: str = "",
) -> Child:
    """A process with a directory of its own; `command` is its name unless given."""
    directory = settings.directory / name
    flags = [
        word for option in {"--directory": str(directory), **options}.items() for word in option
    ]
    return Child(
        name, directory, [command or name, *flags, *_ANY_ADMIN_PORT], _environment(), where
    )


def _environment() -> dict[str, str]:
    """This process's environment without LOCKSTEP_* settings, which would reach every process of
    the cluster.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), THREADS)
    return {**kept, **pools, "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def _died(child: Child) -> bool:
    return child.exit_status not in (None, 0)


def _obituary(child: Child) -> str:
    status = child.exit_status or 0
    how = (
        f"was killed by signal {-status}"
        if status < 0
        else f"ended with exit code {status}: {child.last_words()}"
    )
    return f"{child.name} {how}; starting it again"
