"""Deals the samples of a pass to ranks, by the speed of each; pure.

The rank that would be done first with one more sample gets it. A rank with no sample in a pass may
have become quicker: its speed is taken to grow until it is tried again.

A pass in which each rank has the most that it can have lasts as long as the slowest one takes for
that. Where speeds are unlike, a pass has as many samples as all compute while the quickest computes
the most: more passes, and shorter ones.

    speeds 3 and 1, at most 6 each    6 | 6    by the slow one's time, 6: 2 samples in a unit of it
                                      6 | 2    by the quick one's time, 2: 4 samples
"""

from collections.abc import Sequence

WORTHWHILE = 1.25
"""Gain by shorter passes, as a factor of what all ranks compute, from which on they are made: each
pass gathers all weights."""

NEWEST = 0.5
"""Weight of the newest pass in a rank's speed: other programs come and go."""

HOPE = 1.05
"""Growth, for each pass without a sample, of the speed that a rank is taken to have."""


def dealt(samples: int, speeds: Sequence[float], most: int) -> tuple[int, ...]:
    """Samples of each rank, at most `most`, all positive `samples` together if that many fit;
    `speeds` are in samples per second.
    """
    shares = [0] * len(speeds)
    for _ in range(min(samples, most * len(speeds))):
        open_ranks = [rank for rank, share in enumerate(shares) if share < most]
        first = min(open_ranks, key=lambda rank: (shares[rank] + 1) / speeds[rank])
        shares[first] += 1
    return tuple(shares)


def pass_samples(speeds: Sequence[float], most: int) -> int:
    """Samples of a pass, of which each rank can have `most`; `speeds` are in samples per second."""
    quickest, slowest = max(speeds), min(speeds)
    if sum(speeds) < WORTHWHILE * len(speeds) * slowest:
        return most * len(speeds)
    return sum(round(most * speed / quickest) for speed in speeds)


class Speeds:
    """Speeds of ranks in samples per second, as their passes tell."""

    def __init__(self, ranks: int) -> None:
        self.measured: list[float | None] = [None] * ranks
        """By rank; None for one that has made no pass."""

    @property
    def all(self) -> list[float]:
        """By rank; one that has made no pass is taken to be as quick as the others in the mean."""
        known = [speed for speed in self.measured if speed is not None]
        mean = sum(known) / len(known) if known else 1.0
        return [mean if speed is None else speed for speed in self.measured]

    def note(self, rank: int, samples: int, seconds: float) -> None:
        """A rank has taken this time for some samples; or for none, when it had no share."""
        before = self.measured[rank]
        if not samples:
            self.measured[rank] = before and before * HOPE
            return
        now = samples / max(seconds, 1e-6)
        self.measured[rank] = now if before is None else (1 - NEWEST) * before + NEWEST * now
