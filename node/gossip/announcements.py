"""The signed announcements of one node's rounds: makes its own, verifies those of others."""

import logging
from collections.abc import Callable, Collection

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.gossip.machine.authors import Authors
from protocol.border.token_bucket import TokenBuckets
from protocol.codec.announcement import Announcement, announce, check_signature, offered_payload
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId, short
from protocol.wire_pb2 import OfferedPayload

CHECKS_PER_SENDER = (500.0, 4096)
"""Announcements of one peer that are verified: per second, and at once. Each costs a tenth of a
millisecond; a peer of a full run has one for each member."""

log = logging.getLogger(__name__)


class Announcements:
    """The announcements of the rounds that a swarm follows. `key` signs this node's own."""

    def __init__(self, run_id: RunId, key: Ed25519PrivateKey, clock_ms: Callable[[], int]) -> None:
        self._run_id, self._key, self._clock_ms = run_id, key, clock_ms
        self._authors = Authors()
        self._checks: TokenBuckets[PeerId] = TokenBuckets(*CHECKS_PER_SENDER)

    def set_members(self, members: frozenset[PeerId]) -> None:
        """The members of the run changed."""
        self._authors.set_members(members)

    def follow(self, rounds: Collection[int]) -> None:
        """Keep the announcements of exactly these rounds."""
        self._authors.follow(rounds)

    def make(self, round: int, digest: Digest, size: int, samples: int) -> Announcement:
        """Announce an own payload, by its digest or its root."""
        own = announce(self._key, self._run_id, round, digest, size=size, samples=samples)
        self._authors.enter(own)
        return own

    def admit(self, sender: PeerId, said: Announcement) -> bool:
        """Whether an offered payload has a place, or may take its author's. Raises
        `RemoteProtocolError` for one that its author has not signed, and for one that may be
        offered again later.
        """
        if self._authors.knows(said):
            return True
        if not self._checks.take(sender, 1, self._clock_ms()):
            raise RemoteProtocolError(
                f"expected at most {CHECKS_PER_SENDER[0]:g} new announcements per second"
            )
        author = check_signature(said, self._run_id)
        if other := self._authors.conflict(said):
            # The sender may be honest, and would offer again if it were refused.
            log.warning("an author has signed two payloads", extra=self._proof(author, said, other))
            return False
        if refusal := self._authors.refusal(said):
            raise RemoteProtocolError(refusal)
        return True

    def enter(self, said: Announcement) -> None:
        """Give an admitted announcement its place."""
        self._authors.enter(said)

    def offer(self, round: int, digest: Digest) -> OfferedPayload | None:
        """The offer of a payload with its author's announcement; None while that is not known: the
        payload was held before this process started.
        """
        said = self._authors.find(round, digest)
        return offered_payload(said) if said else None

    def _proof(self, author: PeerId, said: Announcement, other: Announcement) -> dict[str, object]:
        return {
            "run": short(self._run_id),
            "round": said.round,
            "peer": author,
            "digests": f"{other.digest.hex()},{said.digest.hex()}",
            "signatures": f"{other.signature.hex()},{said.signature.hex()}",
        }
