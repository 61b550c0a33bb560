"""What a landing tests beyond `make test`: the long tests of the rooms that the change touches, and
a part of the others that is drawn by a word, by default the hash of the commit's tree.

The same word draws the same tests and the same seeds on every machine. A landing has a budget of
seconds, by the times of `tests/durations.json`; a long test that has no time there yet is new, and
always played.
"""

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.rooms import is_touched
from tests.support.sources import ROOT

TOUCHED_PERCENT = 67
"""Part of a landing's budget that the tests of touched rooms may take: the rest is drawn from all
others, however large a change is."""

CHANGE_HOURS = 6
"""A change is the commits of the last hours before the newest one."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Chance that a word decides."""

    word: str

    def rank(self, name: str) -> str:
        """The place of a name in the order of this draw."""
        return hashlib.sha256(f"{self.word} {name}".encode()).hexdigest()

    def seeds(self, purpose: str, count: int, among: int) -> list[int]:
        """`count` unlike seeds below `among`, ascending."""
        ranked = sorted(range(among), key=lambda seed: self.rank(f"{purpose} {seed}"))
        return sorted(ranked[:count])


@dataclass(frozen=True, slots=True)
class Drawn:
    """The long tests of one landing."""

    tests: frozenset[str]
    touched: frozenset[str]
    """Those of rooms that the change touches, whether there is time for them or not."""
    seconds: float

    def told(self, known: int) -> str:
        """One line on it."""
        both = len(self.tests & self.touched)
        return (
            f"{len(self.tests)} of {known} long tests, {self.seconds:.0f} s by their recorded "
            f"times; {both} of {len(self.touched)} in rooms that the change touches"
        )


def drawn(
    draw: Draw, seconds: Mapping[str, float], changed: Iterable[str], budget_s: float
) -> Drawn:
    """Choose among long tests, by name: first those of touched rooms, then any, both in the order
    of the draw. `changed` are paths from the root of the repository.
    """
    changed = list(changed)
    order = sorted(seconds, key=draw.rank)
    touched = [name for name in order if is_touched(name, changed)]
    chosen: set[str] = set()
    spent_s = 0.0
    for names, limit_s in ((touched, budget_s * TOUCHED_PERCENT / 100), (order, budget_s)):
        for name in names:
            if name not in chosen and spent_s + seconds[name] <= limit_s:
                chosen.add(name)
                spent_s += seconds[name]
    return Drawn(frozenset(chosen), frozenset(touched), spent_s)


def tree_word() -> str:
    """The hash of the newest commit's tree; "none" where there is no repository."""
    return _git("rev-parse", "--short=12", "HEAD^{tree}") or "none"


def changed_paths() -> list[str]:
    """The files that the newest commits changed, and those that are not committed yet."""
    newest_s = _git("log", "-1", "--format=%ct")
    if not newest_s:
        return []
    before = f"--before={int(newest_s) - 3600 * CHANGE_HOURS}"
    base = _git("rev-list", "-1", before, "HEAD") or _git("rev-list", "--max-parents=0", "HEAD")
    return _git("diff", "--name-only", base.splitlines()[-1]).splitlines()


def _git(*arguments: str, root: Path = ROOT) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":  # exit status 0 where the change touches one of the given paths
    sys.exit(not any(path.startswith(tuple(sys.argv[1:])) for path in changed_paths()))
