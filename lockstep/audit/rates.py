"""The learning rates of a chain, compared with the run file and the operator's signed changes.

A commit carries its own rate, so a replay needs no schedule. But the run file promises one, and
only an entry of the chain may change it: a rate that neither explains is a difference.
"""

import math

from protocol.codec.chain import Reschedule
from protocol.codec.commits import Commit
from protocol.runfile import RunSpec, ScheduleSpec
from protocol.schedule import float32_value, in_force, scalars

TOLERANCE = 1e-4
"""Relative difference of two rates that another release, or another machine's cosine, may make."""


class RateBook:
    """The schedule in force along one walk through a chain."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._schedule: ScheduleSpec | None = spec.schedule
        self.changes = 0
        """Changes of the schedule that were met."""

    def resume(self, head_round: int) -> None:
        """Go on behind the commit of a round: what was changed before it is not known."""
        self._schedule = self._spec.schedule if head_round < 0 else None

    def meet(self, change: Reschedule) -> None:
        """The next change in the chain."""
        self.changes += 1
        self._schedule = in_force(self._spec.schedule, [change])

    def flaw(self, commit: Commit) -> str:
        """Why the commit's step or rate is not the schedule's; empty when it is, or when the
        schedule is not known.
        """
        if self._schedule is None:
            return ""
        if commit.step >= self._schedule.steps:
            return f"step {commit.step} is beyond the {self._schedule.steps} steps of the run"
        wanted = map(float32_value, scalars(self._schedule, commit.step))
        found = map(float32_value, (commit.learning_rate_bits, commit.decay_bits))
        names = ("learning rate", "decay")
        for name, expected, got in zip(names, wanted, found, strict=True):
            if not math.isclose(expected, got, rel_tol=TOLERANCE):
                return (
                    f"its {name} is {got:.6g}; the run file and the operator's signed changes make "
                    f"{expected:.6g}"
                )
        return ""
