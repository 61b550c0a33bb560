"""One process of a cluster: started, asked for its status, started again, stopped.

                 start              note on disk with its own pid            exit 0
    (nothing) ----------> starting ------------------------------> running ---------> finished
                             ^                                        | killed, or exit code not 0
                             +----------- started again --------------+   (RESTARTS_MAX times)

The process has a directory with its state, its log and the note of `lockstep.service.serve`, which
says its admin port: no port is guessed, so clusters can run side by side. It watches its standard
input, whose other end only this process holds: if this process dies, by any signal, it leaves.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from lockstep.exit_codes import ExitCode, error_of
from lockstep.service.serve import NOTE_NAME, STATUS_NAME, read_note
from node.system.files import storage_errors
from protocol.codec.decoding import UNREADABLE

RESTARTS_MAX = 5
"""Restarts of one process: one that dies more often has a reason that a restart does not remove."""

STATUS_TIMEOUT_S = 1.0
"""Longest wait for an admin port. It answers in milliseconds; a stopped process must not hold up
the statuses of the others."""

HOPELESS = {ExitCode.USAGE, ExitCode.SETTINGS, ExitCode.VERSION, ExitCode.STORAGE, ExitCode.DATA}
"""Exit codes that a restart would only repeat."""

Where: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Puts this thread where the process of the given name lives, such as `Laboratory.inside`."""


def here(_: str) -> AbstractContextManager[object]:
    """A `Where` that stays where this process lives."""
    return nullcontext()


class Child:
    """One process of a cluster, and its successors on the same directory."""

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
        """Last known status of each process that died; its successor counts from zero again."""
        self.arguments = tuple(arguments)
        """Command and options of every start."""
        self.environment = dict(environment)
        self._where = where
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """File with the standard output and error of all its processes."""
        return self.directory / "log.txt"

    @property
    def pid(self) -> int | None:
        """Process ID of the newest process; None before the first start."""
        return self._process.pid if self._process else None

    @property
    def died(self) -> bool:
        """The process has ended, and not with exit code 0."""
        return self.exit_status not in (None, 0)

    @property
    def exit_status(self) -> int | None:
        """Exit status; None while the process runs, negative for a signal, as in `subprocess`."""
        return self._process.poll() if self._process else None

    def start(self, *more_arguments: str) -> None:
        """Starts the process, adding to its log."""
        command = [
            sys.executable,
            "-m",
            "lockstep",
            *self.arguments,
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
        """Starts the next process on the same directory; raises the cause of death when a restart
        would not help.
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
        """Updates `status` from the file that an ended process left, or from the admin port."""
        left = read_note(self.directory / STATUS_NAME)
        self.status = left or self._fetch_status() or self.status

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

    def obituary(self) -> str:
        """The cause of the process's death, in words."""
        status = self.exit_status or 0
        if status < 0:
            return f"{self.name} was killed by signal {-status}"
        return f"{self.name} ended with exit code {status}: {self.last_words()}"

    def ask_to_leave(self) -> None:
        """Sends SIGTERM, if the process runs."""
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def wait(self, deadline_s: float) -> int | None:
        """Waits until the monotonic time `deadline_s`, then kills; the exit status."""
        if self._process is None:
            return None
        try:
            return self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._close_input()

    def _close_input(self) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def _spawn(self, command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        # In a session of its own: Ctrl-C reaches only the cluster's owner, which stops everything
        # in order.
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    def _fetch_status(self) -> dict[str, Any] | None:
        note = self.note()
        if note is None:
            return None
        connection = HTTPConnection(urlsplit(str(note["admin"])).netloc, timeout=STATUS_TIMEOUT_S)
        try:
            with self._where(self.name):  # its admin port is on the loopback of where it lives
                connection.connect()
            connection.request("GET", "/status.json")
            document = msgspec.json.decode(connection.getresponse().read())
        except (OSError, HTTPException, *UNREADABLE):
            return None  # starting, ending or too busy: the status known before stays
        finally:
            connection.close()
        return document if isinstance(document, dict) else None
