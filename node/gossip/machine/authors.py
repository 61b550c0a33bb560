"""The places of a round: one for each author, held by the author's signed announcement. Pure.

A peer may offer any payload that it holds, its own or another's. What it cannot do is fill a round:
each place belongs to a member, and only that member's signature takes it. The shell verifies
signatures; this module knows which announcements it has verified already.

    announcement --not kept--> verified by the shell --judge--> taken | refused | two of one author

Places are kept for the rounds that the exchange follows.
"""

from collections.abc import Collection

from protocol.codec.announcement import Announcement
from protocol.ids import Digest, PeerId, short


class Authors:
    """Announcements by round and author."""

    def __init__(self) -> None:
        self._members: frozenset[PeerId] = frozenset()
        self._places: dict[int, dict[PeerId, Announcement]] = {}
        self._left: dict[int, frozenset[PeerId]] = {}
        """Members that have left since a round was followed: an author may leave after it has
        published."""

    # ---- queries

    def find(self, round: int, digest: Digest) -> Announcement | None:
        """The announcement of a payload."""
        places = self._places.get(round, {})
        return next((said for said in places.values() if said.digest == digest), None)

    def knows(self, said: Announcement) -> bool:
        """Whether exactly this announcement has its place: it was verified before."""
        return self._places.get(said.round, {}).get(said.author) == said

    def refusal(self, said: Announcement) -> str:
        """Why a verified announcement has no place; empty when it has one or may take it."""
        author = said.author
        if author not in self._members and author not in self._left.get(said.round, ()):
            return f"expected a payload of a member, got one of {short(author)}"
        if self.conflict(said):
            return f"{short(author)} has another payload in round {said.round}"
        return ""

    def conflict(self, said: Announcement) -> Announcement | None:
        """The author's other announcement for the round: with this one, the proof that it has
        signed two.
        """
        kept = self._places.get(said.round, {}).get(said.author)
        return kept if kept and (kept.digest, kept.size) != (said.digest, said.size) else None

    # ---- changes

    def set_members(self, members: frozenset[PeerId]) -> None:
        """The members of the run changed."""
        gone = self._members - members
        for round in self._places:
            self._left[round] = self._left.get(round, frozenset()) | gone
        self._members = members

    def enter(self, said: Announcement) -> None:
        """Give a verified announcement its place."""
        self._places.setdefault(said.round, {}).setdefault(said.author, said)

    def follow(self, rounds: Collection[int]) -> None:
        """Keep the places of exactly these rounds."""
        self._places = {round: self._places.get(round, {}) for round in rounds}
        self._left = {round: left for round, left in self._left.items() if round in rounds}
