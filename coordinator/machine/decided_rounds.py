"""What is kept of a decided round beside its commit: its times, and why it counts for nobody. Pure.

The sequencer follows the effects of each batch; the journal keeps what this makes of them, and
`coordinator.history` shows it, also after a restart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.machine.events.effects import CommitRound, Effect, OpenRound, SkipRound
from coordinator.machine.state.undecided_round import UndecidedRound
from protocol.clock import Instants

UNDECIDED_MAX = 64
"""Open rounds that are remembered; a run has one or two."""


@dataclass(frozen=True, slots=True)
class DecidedRound:
    """The decision of a round. Times are the run's, in milliseconds; None: not known."""

    round: int
    reason: str
    """Why it was skipped; empty for a commit."""
    decided_ms: int | None = None
    opened_ms: int | None = None
    assigned: int | None = None
    """Members that were asked to work."""
    slot_ms: int | None = None
    """The time that the pacing gave it: its predicted length."""
    compute_ms: int | None = None
    """The part of the slot before the bell."""

    @property
    def seconds(self) -> float | None:
        """Its length; None where that is not known."""
        if self.opened_ms is None or self.decided_ms is None:
            return None
        return max(0, self.decided_ms - self.opened_ms) / 1000


@dataclass(slots=True)
class OpenRounds:
    """Rounds that were opened and are not decided."""

    _opened: dict[int, tuple[Instants, int]] = field(default_factory=dict)

    def resume(self, undecided: Iterable[UndecidedRound]) -> None:
        """Go on from the state of a run."""
        for each in undecided:
            self._opened[each.round] = each.instants, len(each.assignments)

    def follow(self, effects: Iterable[Effect], now_ms: int) -> Sequence[DecidedRound]:
        """The rounds that the effects of one batch decide, at `now_ms`."""
        decided = list[DecidedRound]()
        for effect in effects:
            match effect:
                case OpenRound():
                    first = len(effect.assignments)  # a repeat names only those that came back
                    self._opened.setdefault(effect.round, (effect.instants, first))
                    while len(self._opened) > UNDECIDED_MAX:
                        self._opened.pop(min(self._opened))
                case CommitRound():
                    decided.append(self._decided(effect.commit.round, "", now_ms))
                case SkipRound():
                    decided.append(self._decided(effect.round, effect.reason, now_ms))
                case _:
                    pass
        return decided

    def _decided(self, round: int, reason: str, now_ms: int) -> DecidedRound:
        opened = self._opened.pop(round, None)
        if opened is None:
            return DecidedRound(round, reason, now_ms)
        instants, assigned = opened
        return DecidedRound(
            round,
            reason,
            now_ms,
            instants.opened,
            assigned,
            slot_ms=instants.commit_by - instants.opened,
            compute_ms=instants.bell - instants.opened,
        )
