"""What an operator who is not looking should hear of, each once. Pure.

    alarm         copies of the model or auditors differ, or evidence of an auditor proves nothing
    stall         nobody holds the newest state, or a run that has begun waits for `STALL_MS`
    skips         `SKIPS_TOLD` rounds in a row count for nobody
    demotion      a key has lost its standing
    checkpoint    a new one is published
    end           the run is finished

An alarm, a stall or skips are told again when they are over and come back. What is there when the
coordinator starts is old, but for alarms and stalls.
"""

from dataclasses import dataclass, field
from typing import Literal

from coordinator import status_document
from coordinator.history import History
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules import demotion
from coordinator.public_document import SKIPS_TOLD

STALL_MS = 300_000
"""Time for which a run may wait, as for members that come back, before its operator hears of it."""

Kind = Literal["alarm", "stall", "skips", "demotion", "checkpoint", "end"]


@dataclass(frozen=True, slots=True)
class Occasion:
    """Something to tell the operator."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Occasions:
    """Looks at a run now and then, and remembers what was told."""

    _lasting: set[Kind] = field(default_factory=set)
    """What holds at present, and was told."""
    _waits_since_ms: int | None = None
    _demoted: set[str] | None = None
    _checkpoint: str | None = None
    _is_finished: bool | None = None

    def look(self, rounds: RunMachine, history: History, now_ms: int) -> list[Occasion]:
        """What has come up since the last look."""
        state = rounds.state
        said: dict[Kind, str] = {
            "alarm": _alarm(rounds),
            "stall": self._stall(rounds, now_ms),
            "skips": _skips(history),
        }
        found = [
            Occasion(kind, text)
            for kind, text in said.items()
            if text and kind not in self._lasting
        ]
        self._lasting = {kind for kind, text in said.items() if text}
        demoted = state.members.standing.demoted
        for peer in demoted.keys() - (demoted.keys() if self._demoted is None else self._demoted):
            text = f"{state.members.named(peer)} lost its standing: {demoted[peer].reason}"
            found.append(Occasion("demotion", text))
        self._demoted = set(demoted)
        made = state.checkpoints.made
        newest = made[-1].name if made else ""
        if newest != self._checkpoint and self._checkpoint is not None and made:
            text = f"the model after round {made[-1].round} is published: checkpoints/{newest}"
            found.append(Occasion("checkpoint", text))
        self._checkpoint = newest
        if state.end.finished and self._is_finished is False:
            text = f"the run is finished after {state.totals.committed:,} steps"
            found.append(Occasion("end", text))
        self._is_finished = state.end.finished
        return found

    def _stall(self, rounds: RunMachine, now_ms: int) -> str:
        if lost := status_document.state_lost(rounds, now_ms):
            return lost
        begun = rounds.state.totals.committed > 0
        if not begun or status_document.phase(rounds.state) != "waiting":
            self._waits_since_ms = None
            return ""
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        waited_ms = now_ms - self._waits_since_ms
        return rounds.state.reason if waited_ms >= STALL_MS else ""


def _alarm(rounds: RunMachine) -> str:
    if alarm := demotion.alarm(rounds.state):
        return alarm
    tally = rounds.state.verdicts.tally
    return "" if tally.agreed else "members differ on the newest state that two reported"


def _skips(history: History) -> str:
    skips = history.skipped_in_a_row()
    return f"the last {skips:,} rounds count for nobody" if skips >= SKIPS_TOLD else ""
