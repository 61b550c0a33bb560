"""The work of this computer over all its sessions, kept in the owner's home, by run.

    ~/.lockstep/work/RUN_ID.json    rounds, tokens and bytes of one run
    ~/.lockstep/usage.json          the bytes of the newest day (`lockstep.volunteer.machine`)

A file of an earlier session and the status of this one add up. A node that is killed loses what it
did since the last save, a minute at most.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from lockstep.volunteer.machine import DailyUsage
from lockstep.volunteer.screen import traffic_bytes
from node.system.files import replacing_file
from protocol.codec.decoding import UNREADABLE
from protocol.errors import ShortageError, StorageError
from protocol.ids import RunId

log = logging.getLogger("lockstep.join")

WORK_NAME = "work"
"""Name of the directory, in the owner's home, with a file for each run."""

RUNS_MAX = 10_000
"""Files that are read: more runs than a computer joins in its life."""


class Work(msgspec.Struct, frozen=True):
    """The work of this computer for one run, or for several."""

    name: str = ""
    """The run's."""
    trained: int = 0
    """Rounds in which it did work."""
    counted: int = 0
    """Rounds whose commit holds its payload."""
    samples: int = 0
    tokens: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    last_s: int = 0
    """Time at which it was last at work, by this computer's clock, in seconds since 1970."""
    page: str = ""
    """Address at which everybody sees this computer's part of the run; empty: none is known."""

    def __add__(self, other: "Work") -> "Work":
        names = ("trained", "counted", "samples", "tokens", "up_bytes", "down_bytes")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        last_s, page = max(self.last_s, other.last_s), other.page or self.page
        return Work(other.name or self.name, **sums, last_s=last_s, page=page)


def work_of(status: Mapping[str, Any], name: str = "", now_s: float = 0.0) -> Work:
    """The work of a process, by its status."""
    rounds = status.get("rounds", {})
    return Work(
        name,
        int(rounds.get("trained") or 0),
        int(rounds.get("counted") or 0),
        int(status.get("samples") or 0),
        int(status.get("tokens") or 0),
        traffic_bytes(status, "up"),
        traffic_bytes(status, "down"),
        int(now_s),
    )


def read_all(home: Path) -> dict[RunId, Work]:
    """The work for every run, the newest last; what cannot be read is left out, and logged."""
    found = {}
    for path in sorted((home / WORK_NAME).glob("*.json"))[:RUNS_MAX]:
        try:
            found[RunId(path.stem)] = msgspec.json.decode(path.read_bytes(), type=Work)
        except (OSError, *UNREADABLE) as error:
            log.warning("leaves out earlier work", extra={"path": path, "reason": str(error)})
    return dict(sorted(found.items(), key=lambda each: each[1].last_s))


class Ledger:
    """Adds up what one process does for a run."""

    def __init__(self, home: Path, run_id: RunId, name: str, page: str = "") -> None:
        """`name` is the run's, and `page` the address that shows this computer's part of it."""
        self._path, self._name, self._page = home / WORK_NAME / f"{run_id}.json", name, page
        self._day = DailyUsage(home)
        self._others = read_all(home)
        self._earlier = self._others.pop(run_id, Work())
        self._work = self._earlier

    def note(self, status: Mapping[str, Any], now: datetime) -> int:
        """Takes the newest status of this process; returns the bytes of the day."""
        now_work = work_of(status, self._name, now.timestamp())
        self._work = self._earlier + msgspec.structs.replace(now_work, page=self._page)
        return self._day.add(f"{now:%Y-%m-%d}", now_work.up_bytes + now_work.down_bytes)

    def document(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """The work for this run and for all runs, with that of a status of this process."""
        run = self._earlier + work_of(status, self._name)
        return totals(run, self._others.values())

    def save(self) -> None:
        """Keeps the counts over a restart, if the disk takes them: it must not hide how the node
        ended.
        """
        self._day.save()
        if not self._work.trained:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing_file(self._path) as temporary:
                temporary.write_bytes(msgspec.json.encode(self._work))
        except (OSError, ShortageError, StorageError) as error:
            log.warning("the work of this session is not kept", extra={"reason": str(error)})


def totals(run: Work, others: Iterable[Work]) -> dict[str, Any]:
    """The work for one run and for all runs as a document."""
    worked = [each for each in (*others, run) if each.trained]
    return {
        "run": msgspec.to_builtins(run),
        "all": msgspec.to_builtins(sum(worked, Work())),
        "runs": len(worked),
    }
