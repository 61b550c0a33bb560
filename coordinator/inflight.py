"""One round that is not decided yet, and the questions that decide it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from coordinator.events import Announced, Assignment, Instant
from protocol.clock import Instants
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share

RECEIPTS_PER_AUTHOR = 2
"""Digests that a member may name for each author of a round: an author that restarts makes a second payload."""

HOLDERS_TOLD_MAX = 8
"""Holders of a payload that a commit's message names: enough to start pulling, and 4096 members fit a message."""

_NEXT: dict[str, Instant] = {"opened": "bell", "bell": "publish_by", "publish_by": "commit_by"}


@dataclass(slots=True)
class InFlight:
    """A round between its opening and its final word. `assignments` names everyone who was asked to work, less
    those who left before they announced; `named` is what each member says it holds, `holders` the same by digest."""

    round: int
    step: int
    instants: Instants
    learning_rate_bits: int
    decay_bits: int
    assignments: dict[PeerId, Assignment]
    announced: dict[PeerId, Announced] = field(default_factory=dict)
    holders: dict[Digest, set[PeerId]] = field(default_factory=dict)
    named: dict[PeerId, set[Digest]] = field(default_factory=dict)
    doubted: dict[PeerId, set[Digest]] = field(default_factory=dict)
    named_max: int = 0
    reached: Literal["opened", "bell", "publish_by", "commit_by"] = "opened"

    def __post_init__(self) -> None:
        self.named_max = self.named_max or RECEIPTS_PER_AUTHOR * len(self.assignments)

    def next_instant(self) -> tuple[Instant, int] | None:
        """Name and time of the instant that the round has not reached yet."""
        name = _NEXT.get(self.reached)
        return (name, getattr(self.instants, name)) if name else None

    def awaited(self, live: Collection[PeerId]) -> list[PeerId]:
        """Live members that were asked to work and have not announced."""
        return [peer for peer in sorted(self.assignments) if peer in live and peer not in self.announced]

    def computed(self, live: Collection[PeerId]) -> bool:
        """Nobody computes this round any more: the bell rang or everyone has announced."""
        return self.reached != "opened" or not self.awaited(live)

    def payloads(self) -> list[Announced]:
        """Announcements that carry a payload, sorted by author."""
        return [self.announced[peer] for peer in sorted(self.announced) if self.announced[peer].digest]

    def waits_for_copies(self, available: Collection[Announced]) -> bool:
        """Is there a payload that somebody holds, and too few? One that nobody holds any more does not come back."""
        return any(payload not in available and self.holding(Digest(payload.digest)) for payload in self.payloads())

    def holding(self, digest: Digest) -> set[PeerId]:
        """Members that hold this payload, its author included."""
        return self.holders.get(digest, set())

    def available(self, copies_min: int, members: Collection[PeerId]) -> list[Announced]:
        """Payloads that enough members hold: `copies_min` besides the author, fewer when fewer of those who exchange
        this round are members. Who is still catching up holds nothing yet, and is not waited for. A payload that
        nobody holds any more is not available, however few are left."""
        exchanging = {peer for peer in self.assignments if peer in members}
        available = []
        for announcement in self.payloads():
            holding = self.holding(Digest(announcement.digest))
            copies_wanted = min(copies_min, len(exchanging - {announcement.peer}))
            if holding and len(holding - {announcement.peer}) >= copies_wanted:
                available.append(announcement)
        return available

    def told_holders(self, digest: Digest) -> tuple[PeerId, ...]:
        """Some of the members that hold a payload, sorted; which ones depends on the digest, to spread the load."""
        holding = sorted(self.holding(digest))
        first = int.from_bytes(digest[:8], "big") % max(1, len(holding))
        return tuple(sorted((holding[first:] + holding[:first])[:HOLDERS_TOLD_MAX]))

    def hold(self, peer: PeerId, digest: Digest) -> None:
        """Note a receipt. It may come before the announcement, so anything may be named, within the member's own
        room: one that names digests of nothing shuts out nobody else's receipts."""
        named = self.named.setdefault(peer, set())
        if digest in named or len(named) < self.named_max:
            named.add(digest)
            self.doubted.get(peer, set()).discard(digest)
            self.holders.setdefault(digest, set()).add(peer)

    def unannounced(self) -> int:
        """Samples that were leased for this round and of which nothing was heard in time."""
        silent = [asked for peer, asked in self.assignments.items() if peer not in self.announced]
        return sum(share.count for asked in silent for share in asked.shares)

    def doubt(self, peer: PeerId) -> None:
        """A member has a new session, perhaps as a new process: what it held counts until it is ready, and after that
        only if it has said so again."""
        self.doubted[peer] = set(self.named.get(peer, ()))

    def settle_doubt(self, peer: PeerId) -> None:
        """The member is ready: what it has not said again, it does not hold any more."""
        for digest in self.doubted.pop(peer, set()):
            self.named[peer].discard(digest)
            self._drop(peer, digest)

    def _drop(self, peer: PeerId, digest: Digest) -> None:
        self.holders[digest].discard(peer)
        if not self.holders[digest]:
            del self.holders[digest]

    def forget(self, peer: PeerId) -> int:
        """A member went: it holds nothing any more and, if it has not announced, is not waited for. Returns how many
        of its samples are lost."""
        for digest in self.named.pop(peer, set()):
            self._drop(peer, digest)
        self.doubted.pop(peer, None)
        if peer in self.announced or peer not in self.assignments:
            return 0
        return sum(share.count for share in self.assignments.pop(peer).shares)


def unused_part(shares: tuple[Share, ...], samples: int) -> list[Share]:
    """The part of `shares` behind the first `samples` samples: what was leased and not trained."""
    unused, left = [], samples
    for share in shares:
        used = min(left, share.count)
        left -= used
        if used < share.count:
            unused.append(Share(share.first + used, share.count - used))
    return unused


def mean_loss(counted: list[Announced]) -> float:
    """Loss over the samples of these announcements, in nats per token; not a number when they have none."""
    samples = sum(payload.samples for payload in counted)
    return sum(payload.loss * payload.samples for payload in counted) / samples if samples else float("nan")
