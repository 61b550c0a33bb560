"""One attack on a run: what it cost, measured beside the quiet time before it and the time after.

quiet_s        attack_s                  after_s
|-----------|--------------------------|-----------|
            strangers begin            strangers vanish
"""

import contextlib
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.processes.strangers.catalogue import ATTACKS
from tests.processes.strangers.run import PublicRun, Watch

PATIENCE_S = 60.0
"""Longest time for the start of an attack, and for its end."""

FIRST_HOST = 64
"""Strangers of each attack come from a host of their own: 127.0.0.64 and so on."""

SETTLE_S = 60.0
"""Longest wait for the first commit and a whole run after an attack."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of the three parts."""

    quiet_s: float = 8.0
    attack_s: float = 20.0
    after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attack cost."""

    attack: str
    finding: str
    quiet_rate: float
    """Commits per second before the attack."""
    during: float
    """Commits per second during the attack, over the quiet rate."""
    after: float
    """The same in the seconds after it."""
    honest_during: float
    """Honest payloads committed per second during the attack, over those before."""
    honest_after: float
    """The same in the seconds after it."""
    memory_bytes: int
    """Growth of the coordinator's memory, at its most."""
    journal_bytes: float
    """Growth of the journal during the attack, beyond that of as much quiet time."""
    log_bytes: float
    """The same of all logs."""
    faults: tuple[str, ...]
    """What has befallen honest processes."""
    disputed: int
    """Rounds whose states were disputed."""
    foreign_payloads: float
    """Payloads of strangers committed per second during the attack."""
    loss: float
    """The largest loss that the run stated during the attack."""
    seconds_to_settle: float
    """Time after the attack until all honest nodes worked and a round was committed."""
    did: dict[str, int]
    """What the strangers did, and what became of it."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """An instant, and the sizes then."""

    at_s: float
    journal: int
    logs: int

    @classmethod
    def now(cls, run: PublicRun) -> "_Mark":
        return cls(time.monotonic(), run.journal_bytes(), run.logs())

    def per_second(self, later: "_Mark") -> tuple[float, float]:
        """Growth of journal and logs."""
        seconds = later.at_s - self.at_s
        return (later.journal - self.journal) / seconds, (later.logs - self.logs) / seconds


def play(run: PublicRun, watch: Watch, name: str, lengths: Lengths) -> Outcome:
    """One attack."""
    known, disputed = set(run.faults()), _disputed(run)
    with _strangers(run, name) as strangers:
        began = _Mark.now(run)
        time.sleep(lengths.quiet_s)
        strangers.read()
        memory = watch.begin_memory()
        attacked = _Mark.now(run)
        strangers.begin(lengths.attack_s)
        did = json.loads(strangers.read(lengths.attack_s))
        ended = _Mark.now(run)
    memory = watch.memory - memory
    settled_s = _settle(run, watch, ended.at_s)
    time.sleep(max(0.0, ended.at_s + lengths.after_s - time.monotonic()))
    finished_s = time.monotonic()
    watch.wait_for_commit(finished_s, SETTLE_S)
    quiet = watch.pace(began.at_s, attacked.at_s)
    during = watch.pace(attacked.at_s, ended.at_s)
    after = watch.pace(ended.at_s, finished_s)
    usual, grown = began.per_second(attacked), attacked.per_second(ended)
    attack_s = ended.at_s - attacked.at_s
    return Outcome(
        name,
        ATTACKS[name].finding,
        quiet.commits,
        during.commits / quiet.commits,
        after.commits / quiet.commits,
        during.honest / quiet.honest,
        after.honest / quiet.honest,
        memory,
        *(attack_s * (grown[of] - usual[of]) for of in (0, 1)),
        tuple(each for each in run.faults() if each not in known),
        _disputed(run) - disputed,
        during.foreign,
        watch.largest_loss(attacked.at_s, ended.at_s),
        settled_s,
        did,
    )


class _Strangers:
    """The process that attacks."""

    def __init__(self, run: PublicRun, process: "subprocess.Popen[str]") -> None:
        self._run, self._process = run, process

    def begin(self, seconds: float) -> None:
        """Let it attack."""
        assert self._process.stdin
        told = {"address": self._run.cluster.address, "run_id": self._run.run_id}
        about = {"directory": str(self._run.directory), "seconds": seconds}
        self._process.stdin.write(json.dumps(told | about) + "\n")
        self._process.stdin.flush()

    def read(self, seconds: float = 0.0) -> str:
        """The next line that it prints."""
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], seconds + PATIENCE_S)
        if readable and (line := self._process.stdout.readline()):
            return line
        raise AssertionError(
            f"expected a line of the strangers, they ended: {self._process.poll()}"
        )


@contextlib.contextmanager
def _strangers(run: PublicRun, name: str) -> Iterator[_Strangers]:
    host = f"127.0.0.{FIRST_HOST + list(ATTACKS).index(name)}"
    command = [sys.executable, "-m", "tests.processes.strangers", name, host]
    with (run.directory / f"{name}.txt").open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield _Strangers(run, process)
    finally:
        process.kill()
        process.communicate()


def _settle(run: PublicRun, watch: Watch, since_s: float) -> float:
    """Wait until all honest nodes work and a round was committed; the seconds since."""
    while time.monotonic() < since_s + SETTLE_S:
        if watch.commits[-1][0] > since_s and not run.unready():
            return time.monotonic() - since_s
        time.sleep(0.2)
    return math.inf


def _disputed(run: PublicRun) -> int:
    return int(run.status()["digests"]["rounds_disputed"])
