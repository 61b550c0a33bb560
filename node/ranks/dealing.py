"""Deals the samples of a pass to ranks, by the speed of each; pure.

The rank that would be done first with one more sample gets it. A rank with no sample in a pass may
have become quicker: its speed is taken to grow until it is tried again.
"""

from collections.abc import Sequence

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
        """A rank has computed the gradients of some samples; or of none, when it had no share."""
        before = self.measured[rank]
        if not samples:
            self.measured[rank] = before and before * HOPE
            return
        now = samples / max(seconds, 1e-6)
        self.measured[rank] = now if before is None else (1 - NEWEST) * before + NEWEST * now
