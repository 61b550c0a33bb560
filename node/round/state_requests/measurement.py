"""One measurement of the validation loss, pass by pass, in time that nothing else needs. Pure.

    one sample, to learn its cost --> as many as fit the time --> ... --> all samples: the loss

A measurement lasts as many rounds as it takes. It uses two kinds of time:

- idle time, in which the node waits for a decision or a round: passes so short that the wait for
  one of them is not felt
- where the bell cuts the work of rounds short, and there is no idle time, a little of the time in
  front of the bell: it costs samples and delays nobody. At least two passes of training must fit
  behind it
"""

from dataclasses import dataclass

IDLE_PASS_MS = 100
"""Longest pass in idle time, except for a single sample."""

BORROWED_PART = 4
"""A round gives at most its fourth part."""

ROUNDS_MAX = 16
"""Rounds after which a measurement is given up: the node is too busy, and another one is asked."""


@dataclass(slots=True)
class LossMeasurement:
    """Samples that are measured so far, and what one costs."""

    round: int
    """The round after whose commit the state is measured."""
    samples: int
    targets_per_sample: int
    done: int = 0
    nats: float = 0.0
    """Cross-entropy summed over all targets of the samples that are done."""
    sample_ms: float | None = None
    """Measured time of one sample; None before the first."""
    rounds: int = 0
    """Rounds that were decided since it began."""

    @property
    def is_complete(self) -> bool:
        """Whether all samples are measured."""
        return self.done >= self.samples

    @property
    def loss(self) -> float:
        """In nats per token, over the samples that are done."""
        return self.nats / (self.done * self.targets_per_sample)

    def idle_count(self, at_once: int) -> int:
        """Samples of the next pass, of at most `at_once`, while nothing else can be done."""
        if self.sample_ms is None:
            return 1
        return max(1, self._fitting(IDLE_PASS_MS, at_once))

    def count_within(self, left_ms: float, at_once: int) -> int:
        """Samples of the next pass, of at most `at_once`, in this time; 0 when none fits."""
        if left_ms <= 0:
            return 0
        return 1 if self.sample_ms is None else self._fitting(left_ms, at_once)

    def add(self, count: int, nats: float, took_ms: float) -> None:
        """A pass was made."""
        self.done += count
        self.nats += nats
        self.sample_ms = max(took_ms / count, 0.01)

    def _fitting(self, left_ms: float, at_once: int) -> int:
        assert self.sample_ms is not None, "the first pass tells it"
        return min(self.samples - self.done, at_once, int(left_ms / self.sample_ms))


def borrowed_ms(left_ms: float, pass_ms: float, *, cut: bool) -> float:
    """The time that a measurement may take from a round whose bell rings in `left_ms`. `pass_ms`:
    time of one pass of training; `cut`: whether the bell cut the last round short.
    """
    return max(0.0, min(left_ms / BORROWED_PART, left_ms - 2 * pass_ms)) if cut else 0.0
