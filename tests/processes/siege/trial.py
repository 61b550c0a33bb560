"""One attack of a siege: what it cost, measured beside quiet times before, between and after.

    quiet   attack   quiet   attack   quiet
    |-----|--------|-------|--------|-----|

Other work on the machine comes and goes: an attack that seems to cost too much is played again, and
all its times are weighed together.
"""

import contextlib
import json
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.processes.siege.run import BesiegedRun, Newcomers, Sizes, larger
from tests.processes.strangers.run import Watch

PACE_KEPT = 0.9
"""Commits that a run must keep."""

TURNS_MAX = 4
"""Times that an attack is played at most."""

PATIENCE_S = 60.0
BACK_BYTES = 24_000_000
"""Growth of a process that counts as none."""

BACK_S = 30.0
"""Time after an attack in which the memory must be given back."""

NEWCOMER_S = 10.0
"""Time in which a newcomer must be let in."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of quiet, and of an attack."""

    quiet_s: float = 6.0
    attack_s: float = 12.0


@dataclass(slots=True)
class Outcome:
    """What one attack cost."""

    attack: str
    quiet_commits: float = 0.0
    quiet_s: float = 0.0
    commits: float = 0.0
    attacked_s: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)
    """Most growth of each process, in bytes."""
    back_s: float = 0.0
    """Longest time after an attack until all had given it back."""
    newcomer_s: float = 0.0
    """Longest wait of a newcomer in the last turn."""
    newcomers: int = 0
    sessions_lost: int = 0
    faults: tuple[str, ...] = ()
    log_bytes: int = 0
    """Growth of all logs, beyond as much quiet time."""
    did: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> float:
        """Commits per second under attack, over those of the quiet times."""
        return (self.commits / self.attacked_s) / (self.quiet_commits / self.quiet_s)


class Siege:
    """A run with newcomers at its door."""

    def __init__(self, run: BesiegedRun, watch: Watch, newcomers: Newcomers, sizes: Sizes) -> None:
        self.run, self._watch, self._newcomers, self._sizes = run, watch, newcomers, sizes

    def play(self, name: str, lengths: Lengths, turns_max: int = TURNS_MAX) -> Outcome:
        """One attack, again while it seems to cost too much."""
        outcome, known = Outcome(name), len(self.run.faults())
        lost = self.run.sessions_lost()
        usual = self._quiet(outcome, lengths.quiet_s)
        for _ in range(turns_max):
            self._attack(outcome, lengths.attack_s, usual)
            self._quiet(outcome, lengths.quiet_s)
            if outcome.kept >= PACE_KEPT and outcome.newcomer_s <= NEWCOMER_S:
                break
        outcome.sessions_lost = self.run.sessions_lost() - lost
        outcome.faults = tuple(self.run.faults()[known:])
        return outcome

    def _quiet(self, outcome: Outcome, seconds: float) -> float:
        """Quiet time; the bytes of logs a second."""
        since_s, logs = time.monotonic(), self.run.logs()
        time.sleep(seconds)
        outcome.quiet_commits += self._commits(since_s, until_s := time.monotonic())
        outcome.quiet_s += until_s - since_s
        return (self.run.logs() - logs) / (until_s - since_s)

    def _attack(self, outcome: Outcome, seconds: float, usual: float) -> None:
        before, logs = self._sizes.begin(), self.run.logs()
        with attackers(outcome.attack) as attack:
            attack.wait()
            since_s = time.monotonic()
            attack.begin(self.run.ports(), seconds)
            outcome.did += attack.did(seconds)
            until_s = time.monotonic()
        growth = {name: most - before[name] for name, most in self._sizes.most.items()}
        outcome.memory = larger(outcome.memory, growth)
        outcome.log_bytes += int(self.run.logs() - logs - usual * (until_s - since_s))
        outcome.commits += self._commits(since_s, until_s)
        outcome.attacked_s += until_s - since_s
        outcome.back_s = max(outcome.back_s, self._back(before, until_s))
        waits = [wait for at, wait in self._newcomers.waits if since_s <= at <= until_s]
        outcome.newcomers += len(waits)
        outcome.newcomer_s = max(waits, default=0.0)

    def _commits(self, since_s: float, until_s: float) -> float:
        self._watch.wait_for_commit(until_s, PATIENCE_S)
        return self._watch.pace(since_s, until_s).commits * (until_s - since_s)

    def _back(self, before: dict[str, int], since_s: float) -> float:
        """Seconds until all processes have given back what they had taken."""
        while (passed_s := time.monotonic() - since_s) < BACK_S:
            now = self._sizes.now()
            if all(now[name] - before[name] <= BACK_BYTES for name in now):
                break
            time.sleep(0.2)
        return passed_s


class Attackers:
    """The process that attacks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self, ports: dict[str, str], seconds: float) -> None:
        """Let it attack."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"ports": ports, "seconds": seconds}) + "\n")
        self._process.stdin.flush()

    def did(self, seconds: float) -> Counter[str]:
        """What it did, when its seconds are over."""
        return Counter(json.loads(self.wait(seconds)))

    def wait(self, seconds: float = 0.0) -> str:
        """The next line that it prints."""
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], seconds + PATIENCE_S)
        if readable and (line := self._process.stdout.readline()):
            return line
        raise AssertionError(f"expected a line of the attackers, got {self._process.poll()}")


@contextlib.contextmanager
def attackers(name: str) -> Iterator[Attackers]:
    """A process of them; it says "ready" first."""
    command = [sys.executable, "-m", "tests.processes.siege", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Attackers(process)
    finally:
        process.kill()
        process.communicate()
