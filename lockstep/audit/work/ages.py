"""How old the authors' momentum is, as far as the log shows. Pure.

    payloads of an author in the log ... gap ... payloads        age: all of them
                                                 |-- settled after `SETTLE_PAYLOADS` more

An author that was away comes back with the momentum of then, or without any: for some rounds
nothing that the log shows says how far it should agree.
"""

from collections.abc import Iterable

import msgspec

from protocol.ids import PeerId

GAP_ROUNDS = 8
"""Rounds in a row without a payload after which an author was away."""

SETTLE_PAYLOADS = 50
"""Payloads after which one that was away is as the others are."""

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


class Ages(msgspec.Struct):
    """The ages of one run's authors."""

    known: dict[PeerId, Age] = {}

    def committed(self, round: int, authors: Iterable[PeerId]) -> None:
        """The log has payloads of these authors in a round."""
        for author in authors:
            age = self.known.pop(author, None) or Age(round=round - 1)
            if round <= age.round:  # the replay went back
                self.known[author] = age
                continue
            if round - age.round > GAP_ROUNDS:
                age.since_gap, age.was_away = 0, True
            age.payloads += 1
            age.since_gap += 1
            age.round = round
            self.known[author] = age
            if len(self.known) > AUTHORS_KEPT:
                del self.known[next(iter(self.known))]

    def of(self, author: PeerId) -> int:
        """Payloads of an author up to now: its momentum is at most as old."""
        return self.known[author].payloads if author in self.known else 0

    def is_settled(self, author: PeerId) -> bool:
        """Whether the author's momentum is what its age says."""
        age = self.known.get(author, Age())
        return not age.was_away or age.since_gap > SETTLE_PAYLOADS
