"""The newest rounds of a run for its page: when each opened and ended, how, and who counted.

The history is fed with the effects of the machine and, after a restart, with the commits of the
journal, which know no times. It is bounded; the journal keeps everything. Pure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from coordinator.loss_curve import LossCurve
from coordinator.machine.events import CommitRound, Effect, OpenRound, SkipRound
from protocol.clock import Instants
from protocol.codec.commits import Commit
from protocol.ids import PeerId

ROUNDS_MAX = 5_000
"""Newest decided rounds that are kept: some megabytes, and more than a chart can show."""

UNDECIDED_MAX = 64
"""Open rounds that are remembered; a run has one or two."""

SECONDS_BOUNDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
"""Upper bounds of the classes in which round times are counted, in seconds."""

REPLY_ROUNDS_MAX = 1_000
"""Rounds in one answer; a reader asks again for those after them."""

TREND_ROUNDS = 20
"""Rounds in one part of an author's trend."""

TREND_PARTS = 12
"""Newest parts of an author's trend that are kept."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One decided round. Times are the coordinator's, in milliseconds; None: not known."""

    round: int
    committed: bool
    reason: str
    """Why it was skipped; empty for a commit."""
    step: int | None = None
    loss: float | None = None
    """Mean training loss of its contributors, nats per token."""
    contributors: int = 0
    assigned: int | None = None
    payload_bytes: int = 0
    opened_ms: int | None = None
    decided_ms: int | None = None
    slot_ms: int | None = None
    """The time that the pacing gave it: its predicted length."""
    compute_ms: int | None = None
    """The part of the slot before the bell."""

    def document(self) -> dict[str, Any]:
        """The record for JSON; times in seconds."""
        known = self.opened_ms is not None and self.decided_ms is not None
        return {
            "round": self.round,
            "outcome": "committed" if self.committed else "skipped",
            "reason": self.reason,
            "step": self.step,
            "loss": self.loss,
            "contributors": self.contributors,
            "assigned": self.assigned,
            "payload_bytes": self.payload_bytes,
            "seconds": ((self.decided_ms or 0) - (self.opened_ms or 0)) / 1000 if known else None,
            "slot_seconds": None if self.slot_ms is None else self.slot_ms / 1000,
            "compute_seconds": None if self.compute_ms is None else self.compute_ms / 1000,
            "decided_at": None if self.decided_ms is None else self.decided_ms / 1000,
        }


@dataclass(slots=True)
class RoundTimes:
    """Times of decided rounds since this process began, counted in classes."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))
    """Rounds in each class of `SECONDS_BOUNDS`, and above all of them."""
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """A round took this time."""
        self.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class Credit:
    """The contribution of one key to the run."""

    rounds: int = 0
    samples: int = 0
    payload_bytes: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    """Committed payloads in the newest parts of `TREND_ROUNDS` rounds."""

    def add(self, round: int, samples: int, payload_bytes: int) -> None:
        """The commit of a round has a payload of this key."""
        self.rounds += 1
        self.samples += samples
        self.payload_bytes += payload_bytes
        part = round // TREND_ROUNDS
        self.parts[part] = self.parts.get(part, 0) + 1
        if len(self.parts) > TREND_PARTS:
            del self.parts[min(self.parts)]

    def trend(self, round: int) -> list[int]:
        """Committed payloads in each of the newest parts up to that of a round, oldest first."""
        newest = round // TREND_ROUNDS
        return [self.parts.get(newest - back, 0) for back in reversed(range(TREND_PARTS))]


@dataclass(frozen=True, slots=True)
class Contributions:
    """The contributors as (id, samples), the most first, and the number of all."""

    most: Sequence[tuple[PeerId, int]]
    in_all: int


@dataclass(slots=True)
class History:
    """The newest rounds; the loss and the credit of every author since the first round."""

    records: deque[RoundRecord] = field(default_factory=lambda: deque(maxlen=ROUNDS_MAX))
    credit: dict[PeerId, Credit] = field(default_factory=dict)
    times: RoundTimes = field(default_factory=RoundTimes)
    curve: LossCurve = field(default_factory=LossCurve)
    """The loss of the whole run."""
    names: dict[PeerId, str] = field(default_factory=dict)
    """Names that authors have chosen, also of those that are gone."""
    _opened: dict[int, tuple[Instants, int]] = field(default_factory=dict)

    def restore(self, commits: Iterable[tuple[Commit, float | None]]) -> None:
        """Take commits of earlier processes with their losses, oldest first. May be called for
        one part of them after another.
        """
        before = self.records[-1].round if self.records else -1
        for commit, loss in commits:
            for round in range(max(before + 1, commit.round - ROUNDS_MAX), commit.round):
                self.records.append(RoundRecord(round, False, "before the last restart"))
            self._add(commit, loss, None, 0)
            before = commit.round

    def take(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Follow the effects of one batch, which left at `now_ms`."""
        for effect in effects:
            match effect:
                case OpenRound():
                    first = len(effect.assignments)  # a repeat names only those that came back
                    self._opened.setdefault(effect.round, (effect.instants, first))
                    while len(self._opened) > UNDECIDED_MAX:
                        self._opened.pop(min(self._opened))
                case CommitRound():
                    opened = self._opened.pop(effect.commit.round, None)
                    self._add(effect.commit, effect.loss, opened, now_ms)
                case SkipRound():
                    opened = self._opened.pop(effect.round, None)
                    times = self._timed(opened, now_ms)
                    self.records.append(RoundRecord(effect.round, False, effect.reason, **times))
                case _:
                    pass

    def name(self, members: Iterable[tuple[PeerId, str]]) -> None:
        """Remember the names of these members, where they have given something."""
        self.names.update((peer, name) for peer, name in members if peer in self.credit)

    def contributions(self) -> Contributions:
        """The authors with the most samples, and the number of all."""
        most = sorted(self.credit.items(), key=lambda row: (-row[1].samples, row[0]))
        return Contributions([(peer, credit.samples) for peer, credit in most], len(most))

    def skipped_in_a_row(self) -> int:
        """Newest rounds that were skipped one after the other."""
        return sum(1 for _ in takewhile(lambda each: not each.committed, reversed(self.records)))

    def after(self, round: int) -> list[dict[str, Any]]:
        """The oldest records after `round`, at most `REPLY_ROUNDS_MAX`."""
        found = [record for record in self.records if record.round > round]
        return [record.document() for record in found[:REPLY_ROUNDS_MAX]]

    def _add(
        self,
        commit: Commit,
        loss: float | None,
        opened: tuple[Instants, int] | None,
        now_ms: int,
    ) -> None:
        for entry in commit.entries:
            credit = self.credit.setdefault(entry.author, Credit())
            credit.add(commit.round, entry.samples, entry.payload_bytes)
        self.curve.add(commit.round, loss)
        record = RoundRecord(
            commit.round,
            True,
            "",
            commit.step,
            loss,
            len(commit.entries),
            payload_bytes=sum(entry.payload_bytes for entry in commit.entries),
            **self._timed(opened, now_ms),
        )
        self.records.append(record)

    def _timed(self, opened: tuple[Instants, int] | None, now_ms: int) -> dict[str, int]:
        """The times of a round that is decided now, which are counted."""
        if opened:
            self.times.add(max(0, now_ms - opened[0].opened) / 1000)
        return _times(opened, now_ms)


def _times(opened: tuple[Instants, int] | None, now_ms: int) -> dict[str, int]:
    if opened is None:
        return {}
    instants, assigned = opened
    return {
        "assigned": assigned,
        "opened_ms": instants.opened,
        "decided_ms": max(now_ms, instants.opened),
        "slot_ms": instants.commit_by - instants.opened,
        "compute_ms": instants.bell - instants.opened,
    }
