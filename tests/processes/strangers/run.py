"""The run that is attacked: a coordinator that is open to everyone, three nodes that its operator
vouches for, and a named auditor, all as processes.

A round lasts at least a quarter of its compute time, a second, and its work takes a fraction of
that: the clock decides the pace, also on a machine that does other work.
"""

import bisect
import contextlib
import math
import os
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from operator import add
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from coordinator.journal import JOURNAL_NAME
from coordinator.round_log import commit_in
from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from lockstep.service.keys import load_or_create_key
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, peer_id
from protocol.runfile import RunSpec
from tests.processes.operating import operate
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

NODES = 3
MEMBERS_MAX = 64
"""Places of the run: strangers can fill them all."""

USUAL_DESCRIPTORS = 1024
"""Limit of open files that a process has on most machines before it asks for more."""

LOOK_S = 0.1
"""Pause between two looks at the journal and the memory."""

GOODBYE_S = 30.0
WARM_ROUNDS = 8
"""Commits before the first attack: all links are open then, and the auditor has caught up."""


def public_spec() -> RunSpec:
    """The run file."""
    spec = tiny_spec(
        steps=1_000_000,
        members=NODES,
        quorum=2,
        copies_min=1,
        lease_ms=6_000,
        overlap=0,
        compute_ms=4_000,
        publish_ms=1_000,
        exchange_ms=1_500,
    )
    public = {"trust": "public", "members_max": MEMBERS_MAX, "heartbeat_ms": 1_000}
    membership = spec.membership.model_copy(update=public)
    return spec.model_copy(update={"membership": membership})


class PublicRun:
    """The processes; a context manager, so that nothing outlives it. `made` makes its cluster; a
    run `by_token` has a relay, too.
    """

    listen = "127.0.0.1:0"
    """HOST:PORT of the auditor."""

    def __init__(
        self,
        directory: Path,
        made: Callable[[ClusterSettings], Cluster] = Cluster,
        *,
        by_token: bool = False,
    ) -> None:
        run_file = directory / "run.toml"
        write_run_file(run_file, public_spec(), force=True)
        data = tiny_corpus(directory / "data")
        self.directory = directory
        self.cluster = made(
            ClusterSettings(directory, run_file, data, NODES, relay=by_token, by_token=by_token)
        )
        self.honest = [_key(node.directory) for node in self.cluster.nodes]
        for peer in self.honest:
            self.cluster.coordinator.arguments += ("--vouch", peer)
        self.auditor = _auditor(directory / "auditor", self.listen)
        self.journal = directory / "coordinator" / JOURNAL_NAME
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with usual_descriptors(), self._stack as stack:
            stack.enter_context(self.cluster)
            self.cluster.start()
            operate(self.directory, "auditor", "add", _key(self.auditor.directory))
            self.auditor.start(self.cluster.address)
            stack.callback(lambda: self.auditor.wait(time.monotonic() + GOODBYE_S))
            stack.callback(self.auditor.ask_to_leave)
            self._stack = stack.pop_all()
        watch_until(self.cluster, lambda: committed(self.cluster) >= WARM_ROUNDS, "first commits")
        watch_until(self.cluster, self._is_audited, "a word of the auditor")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def run_id(self) -> RunId:
        return RunId(str(self.cluster.coordinator.status["run_id"]))

    @property
    def children(self) -> list[Child]:
        """All processes."""
        return [*self.cluster.children, self.auditor]

    def status(self) -> Mapping[str, Any]:
        """The coordinator's newest status."""
        self.cluster.coordinator.refresh()
        return self.cluster.coordinator.status

    def faults(self) -> list[str]:
        """What has befallen honest processes: ends, and words of the coordinator against them."""
        found = [
            f"{child.name} ended: {child.last_words()}"
            for child in self.children
            if child.exit_status is not None
        ]
        log = self.cluster.coordinator.log.read_text(encoding="utf-8", errors="replace")
        told = ("member evicted", "member told to resync", "session refused", "member left")
        for line in log.splitlines():
            if any(words in line for words in told) and any(peer in line for peer in self.honest):
                found.append(line)
        return found

    def unready(self) -> list[str]:
        """Honest nodes that are no working members now."""
        members = {each["peer_id"]: each["state"] for each in self.status().get("members", ())}
        states = {peer: members.get(peer, "no member") for peer in self.honest}
        working = ("ready", "training", "announced")
        return [f"{peer}: {state}" for peer, state in states.items() if state not in working]

    def logs(self) -> int:
        """Bytes of all logs."""
        return sum(child.log.stat().st_size for child in self.children)

    @contextlib.contextmanager
    def journal_rows(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(
            sqlite3.connect(f"{self.journal.absolute().as_uri()}?mode=ro", uri=True)
        ) as rows:
            yield rows

    def journal_bytes(self) -> int:
        """Bytes of all events. The file beside the journal, through which they go, has a size of
        its own that does not grow.
        """
        with self.journal_rows() as rows:
            query = "SELECT total(length(body) + length(kind) + 16) FROM events"
            return int(rows.execute(query).fetchone()[0])

    def _is_audited(self) -> bool:
        audit = self.status().get("audit") or {}
        return any(each["round"] is not None for each in audit.get("auditors", ()))


@dataclass(frozen=True, slots=True)
class Pace:
    """Commits, and the payloads of honest nodes and of strangers in them: until an instant, or per
    second.
    """

    commits: float
    honest: float
    foreign: float


class Watch:
    """Looks at a run in a thread of its own: the commits with their times, the largest memory."""

    def __init__(self, run: PublicRun) -> None:
        self._run = run
        self.commits: list[tuple[float, int, int, int]] = []
        """(time, commits until then, honest payloads in them, strangers' payloads in them), at each
        change."""
        self.losses: list[tuple[float, float | None]] = []
        """(time, loss) of each commit; None where it is no number."""
        self.memory = 0
        """Most bytes of the coordinator in memory since this was last set."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self.commits:
            time.sleep(LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def begin_memory(self) -> int:
        """Forget the largest memory; returns that of now."""
        self.memory = resident(self._run.cluster.coordinator)
        return self.memory

    def wait_for_commit(self, since_s: float, patience_s: float) -> None:
        """Wait for a commit after an instant, but not for ever."""
        while self.commits[-1][0] <= since_s and time.monotonic() < since_s + patience_s:
            time.sleep(LOOK_S)

    def pace(self, begin_s: float, end_s: float) -> Pace:
        """The pace between two instants. Between two commits all numbers grow steadily."""
        first, last = self._at(begin_s), self._at(end_s)
        ends = zip(astuple(first), astuple(last), strict=True)
        return Pace(*((after - before) / (end_s - begin_s) for before, after in ends))

    def largest_loss(self, begin_s: float, end_s: float) -> float:
        """The largest loss of a commit between two instants; infinite for one without a loss."""
        found = [loss for at_s, loss in self.losses if begin_s <= at_s <= end_s]
        return max((math.inf if loss is None else loss for loss in found), default=0.0)

    def _at(self, at_s: float) -> Pace:
        place = bisect.bisect(self.commits, at_s, key=lambda each: each[0])
        before_s, *before = self.commits[max(0, place - 1)]
        if place in (0, len(self.commits)):
            return Pace(*before)
        after_s, *after = self.commits[place]
        part = (at_s - before_s) / (after_s - before_s)
        return Pace(*(a + part * (b - a) for a, b in zip(before, after, strict=True)))

    def _look(self) -> None:
        newest, counts = -1, (0, 0, 0)
        with self._run.journal_rows() as rows:
            while not self._stopping.wait(LOOK_S):
                query = (
                    "SELECT round, body, author_list, loss FROM commits "
                    "WHERE round > ? ORDER BY round"
                )
                found = rows.execute(query, (newest,)).fetchall()
                for round, body, listed, loss in found:
                    authors = [each.author for each in commit_in(body, listed).entries]
                    honest = sum(peer in authors for peer in self._run.honest)
                    seen = (1, honest, len(authors) - honest)
                    newest, counts = round, tuple(map(add, counts, seen))
                    self.losses.append((time.monotonic(), loss))
                if found or not self.commits:
                    self.commits.append((time.monotonic(), *counts))
                self.memory = max(self.memory, resident(self._run.cluster.coordinator))


@contextlib.contextmanager
def usual_descriptors() -> Iterator[None]:
    """Processes that are started within the block may open as few files as on most machines, and
    raise that limit by themselves.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Process(Protocol):
    """A process of the run, or of its."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None: ...


def resident(child: Process) -> int:
    """Bytes of a process that are in memory; 0 when it has ended."""
    try:
        pages = Path(f"/proc/{child.pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _key(directory: Path) -> PeerId:
    return peer_id(public_bytes(load_or_create_key(directory)))


def _auditor(directory: Path, listen: str) -> Child:
    options = ["--listen", listen, "--threads", "1", "--admin", "127.0.0.1:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    arguments = ["auditor", "--directory", str(directory), *options]
    return Child("auditor", directory, arguments, environment)
