"""Learning rate and decay of a step, as the float32 bits that a commit carries.

Only the coordinator computes them, with Python floats; every node takes the bits from the commit,
so the formula may differ between releases without two replicas ever differing.
"""

import math
import struct
from collections.abc import Iterable

from protocol.codec.chain import Reschedule
from protocol.runfile import ScheduleSpec


def learning_rate(schedule: ScheduleSpec, step: int) -> float:
    """Learning rate of the given step (0-based): linear warm-up, then the schedule's shape."""
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / (schedule.warmup_steps + 1)
    if schedule.shape == "constant":
        return schedule.learning_rate
    span = max(1, schedule.steps - schedule.warmup_steps - 1)
    progress = min(1.0, (step - schedule.warmup_steps) / span)
    fall = (1 - math.cos(math.pi * progress)) / 2
    return schedule.learning_rate * (1 - fall * (1 - schedule.final_fraction))


def in_force(schedule: ScheduleSpec, changes: Iterable[Reschedule]) -> ScheduleSpec:
    """The schedule of the run file with the operator's changes of its length and largest learning
    rate, oldest first. The shape is stretched over the new length.
    """
    for change in changes:
        rate = float32_value(change.learning_rate_bits)
        schedule = schedule.model_copy(update={"steps": change.steps, "learning_rate": rate})
    return schedule


def scalars(schedule: ScheduleSpec, step: int) -> tuple[int, int]:
    """(learning rate, 1 - learning rate * weight decay) of a step as float32 bits."""
    rate = learning_rate(schedule, step)
    return float32_bits(rate), float32_bits(1 - rate * schedule.weight_decay)


def float32_bits(value: float) -> int:
    """IEEE-754 bits of the float32 nearest to `value`."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float32_value(bits: int) -> float:
    """The float32 with these bits, exactly, as a Python float."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
