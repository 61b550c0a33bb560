"""The number of samples in one pass, found by trying. Pure: the caller makes the trials.

    1 -> 2 -> 4 -> ...   as long as twice as many samples are worth it, and fit
        if memory ends it: the same once more, with blocks computed again on the way back

A pass of more samples uses a wide device better, and takes more memory. The bell is heard between
two passes, so a pass must not be long beside the time to the bell. Of the sizes that were tried the
least one is taken that is about as quick as the quickest. What a node contributes is the mean over
its samples; the number of them in a pass is its own business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WORTHWHILE_SHARE = 1.1
"""Samples per second with twice as many samples in a pass, as a multiple, that are worth it."""

DISAPPOINTMENTS_MAX = 2
"""Trials in a row that are not worth it: one may have met another program at work."""

PASS_PARTS = 4
"""Least number of passes that fit between two bells: less than a quarter of the time is lost when
the bell cuts one off."""

SAMPLES_MAX = 1024
"""Most samples in a pass that are tried."""

TRIALS_S = 10.0
"""Time for all trials: beyond it the best one so far is taken."""

PASSES_A_TRIAL = 2
"""Passes of a trial at least: the first one compiles and takes memory, the others are timed."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A pass of a number of samples, as it was measured."""

    samples: int
    pass_s: float
    memory_bytes: int = 0
    """Memory that the pass took beside what a replica always holds; 0: not known."""
    recomputes: bool = False
    """Whether blocks were computed again on the way back."""


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds of a pass."""

    samples_max: int
    """Most samples that a pass of the run can have on one device: those of a member's round, or of
    a local step."""
    pass_s_max: float
    memory_bytes: int | None = None
    """Memory for what a pass takes; None: not known."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next trial, or the result."""

    samples: int
    """Samples in the next trial; 0: enough is known."""
    reason: str = ""
    """Why no more is tried, in words."""
    is_short: bool = False
    """Whether it is for memory."""


def next_step(trials: Sequence[Trial], room: Room, spent_s: float = 0.0) -> Step:
    """The step after these trials, which took `spent_s` seconds in all. A trial of one sample
    is always made.
    """
    if not trials:
        return Step(1)
    newest = trials[-1]
    samples = 2 * newest.samples
    if samples > min(room.samples_max, SAMPLES_MAX):
        return Step(0, f"no pass of this run has more than {room.samples_max:,} samples")
    if room.memory_bytes is not None and 2 * newest.memory_bytes > room.memory_bytes:
        return Step(0, f"{samples} may not fit the memory that is allowed", is_short=True)
    if (pass_s := 2 * newest.pass_s) > room.pass_s_max:
        return Step(0, f"a pass of {samples} might last {pass_s:.2g} s, too long for this bell")
    if _disappointments(trials) >= DISAPPOINTMENTS_MAX:
        return Step(0, f"{newest.samples} are hardly quicker")
    if spent_s + PASSES_A_TRIAL * pass_s > TRIALS_S:
        return Step(0, f"more would take over {TRIALS_S:g} s to try")
    return Step(samples)


def best(trials: Sequence[Trial], memory_bytes: int | None = None) -> Trial:
    """The first of at least one trial that is about as quick as the quickest, of those that this
    memory has room for; where it has for none, the one that takes the least.
    """
    least = min(each.memory_bytes for each in trials)
    room = max(least, memory_bytes) if memory_bytes is not None else None
    fitting = [each for each in trials if room is None or each.memory_bytes <= room]
    quickest = max(map(_rate, fitting))
    return next(each for each in fitting if _rate(each) * WORTHWHILE_SHARE >= quickest)


def _rate(trial: Trial) -> float:
    """Samples per second."""
    return trial.samples / max(trial.pass_s, 1e-9)


def _disappointments(trials: Sequence[Trial]) -> int:
    """Newest trials in a row that were not worth it."""
    chosen = best(trials)
    return sum(each.samples > chosen.samples for each in trials)
