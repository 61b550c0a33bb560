"""The newest rounds of a run for its page: when each opened and ended, how, and who counted.

The history is fed with the effects of the machine and the rounds that they decide and, after a
restart, with those of the journal. It is bounded; the journal keeps everything. Pure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from coordinator.loss_curve import LossCurve
from coordinator.machine.decided_rounds import DecidedRound
from coordinator.machine.events.effects import CommitRound, Effect
from protocol.codec.commits import Commit
from protocol.ids import PeerId

ROUNDS_MAX = 5_000
"""Newest decided rounds that are kept: some megabytes, and more than a chart can show."""

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
    """One decided round."""

    decided: DecidedRound
    committed: bool
    step: int | None = None
    loss: float | None = None
    """Mean training loss of its contributors, nats per token."""
    contributors: int = 0
    payload_bytes: int = 0
    result_bytes: int = 0

    @property
    def round(self) -> int:
        """Its number."""
        return self.decided.round

    def document(self) -> dict[str, Any]:
        """The record for JSON; times in seconds."""
        decided = self.decided
        return {
            "round": decided.round,
            "outcome": "committed" if self.committed else "skipped",
            "reason": decided.reason,
            "step": self.step,
            "loss": self.loss,
            "contributors": self.contributors,
            "assigned": decided.assigned,
            "payload_bytes": self.payload_bytes,
            "result_bytes": self.result_bytes,
            "seconds": decided.seconds,
            "slot_seconds": _seconds(decided.slot_ms),
            "compute_seconds": _seconds(decided.compute_ms),
            "decided_at": _seconds(decided.decided_ms),
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

    def restore(
        self,
        commits: Iterable[tuple[Commit, float | None]],
        decided: Mapping[int, DecidedRound],
        last_round: int,
    ) -> None:
        """Take what is on record up to `last_round`: commits with their losses, oldest first, and
        the decisions of the newest rounds. May be called for one part after another.
        """
        for commit, loss in commits:
            self._skips(commit.round, decided)
            self._add(commit, loss, decided.get(commit.round) or DecidedRound(commit.round, ""))
        self._skips(last_round + 1, decided)

    def _skips(self, before: int, decided: Mapping[int, DecidedRound]) -> None:
        """The rounds from the newest known one up to another were skipped."""
        newest = self.records[-1].round if self.records else -1
        for round in range(max(newest + 1, before - ROUNDS_MAX), before):
            unknown = DecidedRound(round, "before the last restart")
            self.records.append(RoundRecord(decided.get(round) or unknown, committed=False))

    def take(self, effects: Iterable[Effect], decided: Iterable[DecidedRound]) -> None:
        """Follow the effects of one batch, and the rounds that they decide, in their order."""
        committed = {
            effect.commit.round: effect for effect in effects if isinstance(effect, CommitRound)
        }
        for each in decided:
            if each.seconds is not None:
                self.times.add(each.seconds)
            if effect := committed.get(each.round):
                self._add(effect.commit, effect.loss, each)
            else:
                self.records.append(RoundRecord(each, committed=False))

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

    def _add(self, commit: Commit, loss: float | None, decided: DecidedRound) -> None:
        for entry in commit.entries:
            credit = self.credit.setdefault(entry.author, Credit())
            credit.add(commit.round, entry.samples, entry.payload_bytes)
        self.curve.add(commit.round, loss)
        payload_bytes = sum(entry.payload_bytes for entry in commit.entries)
        facts = commit.step, loss, len(commit.entries), payload_bytes, commit.result_bytes
        self.records.append(RoundRecord(decided, True, *facts))


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
