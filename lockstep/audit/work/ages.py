"""How old the authors' soft state is, and how even their rounds are, as far as the log shows. Pure.

    payloads of an author in the log ... gap ... payloads        age: all of them
                                                 |-- settled after `SETTLE_PAYLOADS` more

An author that was away comes back with that of then, or without any: for some rounds
nothing that the log shows says how far it should agree. With local steps the same goes for a round
of fewer samples than the author trained before: more of what it sends comes from earlier rounds.
"""

from collections.abc import Mapping

import msgspec

from protocol.ids import PeerId

GAP_ROUNDS = 8
"""Rounds in a row without a payload after which an author was away."""

SETTLE_PAYLOADS = 50
"""Payloads after which one that was away is as the others are."""

EVEN = 0.9
"""Samples of a round from which on it is like those before it, as a part of their mean."""

USUAL_WEIGHT = 0.125
"""Weight of the newest round in that mean."""

AUTHORS_KEPT = 4096
"""Authors that are remembered, as many as a run may have members."""


class Age(msgspec.Struct):
    """The payloads of one author."""

    payloads: int = 0
    since_gap: int = 0
    """Those since it was away; all of them when it never was."""
    round: int = -1
    """The newest one's."""
    was_away: bool = False
    samples: int = 0
    """Those of the newest payload."""
    usual_samples: float = 0.0
    """Mean of the payloads up to it, the newer ones before others."""


class Ages(msgspec.Struct):
    """The ages of one run's authors."""

    known: dict[PeerId, Age] = {}

    def committed(self, round: int, trained: Mapping[PeerId, int]) -> None:
        """The log has a round of payloads: the samples of each, by author."""
        for author, samples in trained.items():
            age = self.known.pop(author, None) or Age(round=round - 1)
            if round <= age.round:  # the replay went back
                self.known[author] = age
                continue
            if round - age.round > GAP_ROUNDS:
                age.since_gap, age.was_away = 0, True
            age.payloads += 1
            age.since_gap += 1
            age.round = round
            age.samples = samples
            weight = max(USUAL_WEIGHT, 1 / age.payloads)
            age.usual_samples += weight * (age.samples - age.usual_samples)
            self.known[author] = age
            if len(self.known) > AUTHORS_KEPT:
                del self.known[next(iter(self.known))]

    def of(self, author: PeerId) -> int:
        """Payloads of an author up to now: its soft state is at most as old."""
        return self.known[author].payloads if author in self.known else 0

    def is_settled(self, author: PeerId) -> bool:
        """Whether the author's soft state is what its age says."""
        age = self.known.get(author, Age())
        return not age.was_away or age.since_gap > SETTLE_PAYLOADS

    def is_even(self, author: PeerId) -> bool:
        """Whether the author's newest payload is of about as many samples as those before it, or of
        more.
        """
        age = self.known.get(author, Age())
        return age.samples >= EVEN * age.usual_samples
