"""The pace of a run: the slot of its next round, what the last one needed, how long rounds take,
and how fast a member is. `coordinator.machine.rules.pacing` sets it.
"""

from dataclasses import dataclass

from protocol.clock import Slot


@dataclass(frozen=True, slots=True)
class Needs:
    """Times that members needed in one round, in milliseconds, ascending: from the end of the
    compute until the announcement, and from there until enough others held the payload.
    """

    publish_ms: tuple[int, ...]
    exchange_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pace:
    """The slot of the next round, and the reason why it is not the stated one; empty when it is."""

    slot: Slot
    reason: str = ""


@dataclass(slots=True)
class Period:
    """The time from one decision to the next, as it was measured."""

    decided_ms: int = 0
    """Time of the newest decision."""
    milliseconds: int = 0
    """Smoothed; 0 while unknown."""

    def note(self, opened_ms: int, now_ms: int, *, usual: bool) -> None:
        """A round was decided. It counts if it is a usual one and was opened before the decision in
        front of it or with it: else the run has waited in between.
        """
        if usual and self.decided_ms and opened_ms <= self.decided_ms:
            took_ms = now_ms - self.decided_ms
            old_ms = self.milliseconds
            self.milliseconds = max(1, (3 * old_ms + took_ms) // 4 if old_ms else took_ms)
        self.decided_ms = now_ms


def smoothed_speed(speed: int, samples: int, compute_ms: int) -> int:
    """New estimate, in thousandths of a sample per second, after `samples` took `compute_ms`."""
    measured = samples * 1_000_000 // max(1, compute_ms)
    return measured if speed == 0 else (3 * speed + measured) // 4
