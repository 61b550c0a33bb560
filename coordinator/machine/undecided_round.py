"""One round that is not decided yet, and the questions that decide it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from coordinator.machine.events import Announced, Assignment, Instant
from coordinator.machine.pacing import Needs
from protocol.clock import Instants
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share

RECEIPTS_PER_AUTHOR = 2
"""Digests that a member may name for each author of a round: an author that restarts makes a second
payload."""

HOLDERS_TOLD_MAX = 8
"""Holders of a payload that a commit's message names: enough to start pulling, however few offers
have arrived."""

HOLDERS_TOLD_IN_ALL = 1024
"""Of all payloads together, but one of each: with many authors the lists would outweigh the
commit."""

_NEXT: dict[str, Instant] = {"opened": "bell", "bell": "publish_by", "publish_by": "commit_by"}


@dataclass(slots=True)
class UndecidedRound:
    """A round between its opening and its final word. `assignments` names everyone who was asked to
    work, less those who left before they announced; `named` is what each member says it holds,
    `holders` the same by digest.

    `silent` and `short` are kept up to date with every event, so that "may it be decided?" costs
    the same in a run of a thousand members as in one of two: those asked who have not announced,
    and the authors whose payload has fewer than `copies_min` other holders.
    """

    round: int
    step: int
    instants: Instants
    learning_rate_bits: int
    decay_bits: int
    assignments: dict[PeerId, Assignment]
    copies_min: int = 1
    announced: dict[PeerId, Announced] = field(default_factory=dict)
    authors: dict[Digest, list[PeerId]] = field(default_factory=dict)
    silent: set[PeerId] = field(default_factory=set)
    short: set[PeerId] = field(default_factory=set)
    holders: dict[Digest, set[PeerId]] = field(default_factory=dict)
    named: dict[PeerId, set[Digest]] = field(default_factory=dict)
    doubted: dict[PeerId, set[Digest]] = field(default_factory=dict)
    announced_ms: dict[PeerId, int] = field(default_factory=dict)
    copied_ms: dict[PeerId, int] = field(default_factory=dict)
    named_max: int = 0
    disturbed: bool = False
    """The coordinator was away meanwhile: what the round took says nothing about its members."""
    reached: Literal["opened", "bell", "publish_by", "commit_by"] = "opened"

    def __post_init__(self) -> None:
        self.named_max = self.named_max or RECEIPTS_PER_AUTHOR * len(self.assignments)
        self.silent = self.assignments.keys() - self.announced.keys()

    # ---- time

    def next_instant(self) -> tuple[Instant, int] | None:
        """Name and time of the instant that the round has not reached yet."""
        name = _NEXT.get(self.reached)
        return (name, getattr(self.instants, name)) if name else None

    def postpone(self, milliseconds: int) -> None:
        """The coordinator was away for so long: everyone has that much longer."""
        old, self.disturbed = self.instants, True
        self.instants = Instants(
            old.opened,
            old.bell + milliseconds,
            old.publish_by + milliseconds,
            old.commit_by + milliseconds,
        )

    def needs(self, live: Callable[[PeerId], bool], now_ms: int) -> Needs:
        """What live members took, at least, when the round is decided now; nothing when it was
        disturbed.
        """
        if self.disturbed:
            return Needs((), ())
        opened, bell = self.instants.opened, self.instants.bell
        publish = [max(0, now_ms - bell) for peer in self.silent if live(peer)]
        for peer, at_ms in self.announced_ms.items():
            publish.append(max(0, at_ms - bell, at_ms - opened - self.announced[peer].compute_ms))
        exchange = [
            self.copied_ms.get(said.peer, now_ms) - self.announced_ms[said.peer]
            for said in self.payloads()
        ]
        return Needs(tuple(sorted(publish)), tuple(sorted(exchange)))

    # ---- who is waited for

    def awaited(self, live: Callable[[PeerId], bool]) -> list[PeerId]:
        """Live members that were asked to work and have not announced."""
        return sorted(peer for peer in self.silent if live(peer))

    def waits(self, live: Callable[[PeerId], bool]) -> bool:
        """Is anybody awaited?"""
        return any(live(peer) for peer in self.silent)

    def computed(self, live: Callable[[PeerId], bool]) -> bool:
        """Nobody computes this round any more: the bell rang or everyone has announced."""
        return self.reached != "opened" or not self.waits(live)

    # ---- payloads

    def announce(self, event: Announced, now_ms: int) -> None:
        """Take a checked announcement; its author holds the payload."""
        self.announced[event.peer], self.announced_ms[event.peer] = event, now_ms
        self.silent.discard(event.peer)
        if event.digest:
            digest = Digest(event.digest)
            self.authors.setdefault(digest, []).append(
                event.peer
            )  # more than one: somebody lies, perhaps the first
            self.hold(event.peer, digest, now_ms)
            self._count_copies(digest, now_ms)

    def payloads(self) -> list[Announced]:
        """Announcements that carry a payload, sorted by author."""
        return [
            self.announced[peer] for peer in sorted(self.announced) if self.announced[peer].digest
        ]

    def waits_for_copies(self, members: Collection[PeerId]) -> bool:
        """Is there a payload that somebody holds, and too few? One that nobody holds any more does
        not come back.
        """
        return any(
            self.holding(Digest(self.announced[author].digest))
            and not self._copied(author, members)
            for author in self.short
        )

    def holding(self, digest: Digest) -> set[PeerId]:
        """Members that hold this payload, its author included."""
        return self.holders.get(digest, set())

    def available(self, members: Collection[PeerId]) -> list[Announced]:
        """Payloads that enough members hold: `copies_min` besides the author, fewer when fewer of
        those who exchange this round are members. Who is still catching up holds nothing yet, and
        is not waited for. A payload that nobody holds any more is not available, however few are
        left.
        """
        return [
            payload
            for payload in self.payloads()
            if self.holding(Digest(payload.digest)) and self._copied(payload.peer, members)
        ]

    def told_holders(self, digest: Digest) -> tuple[PeerId, ...]:
        """Some of the members that hold a payload, sorted; which ones depends on the digest, to
        spread the load.
        """
        told_max = min(HOLDERS_TOLD_MAX, max(1, HOLDERS_TOLD_IN_ALL // max(1, len(self.authors))))
        holding = sorted(self.holding(digest))
        first = int.from_bytes(digest[:8], "big") % max(1, len(holding))
        return tuple(sorted((holding[first:] + holding[:first])[:told_max]))

    def hold(self, peer: PeerId, digest: Digest, now_ms: int) -> None:
        """Note a receipt. It may come before the announcement, so anything may be named, within the
        member's own room: one that names digests of nothing shuts out nobody else's receipts.
        """
        named = self.named.setdefault(peer, set())
        if digest in named or len(named) < self.named_max:
            named.add(digest)
            self.doubted.get(peer, set()).discard(digest)
            self.holders.setdefault(digest, set()).add(peer)
            if digest in self.authors:
                self._count_copies(digest, now_ms)

    def _copied(self, author: PeerId, members: Collection[PeerId]) -> bool:
        """Do enough others hold the author's payload, or as many as there are?"""
        if author not in self.short:
            return True
        others = (peer for peer in self.assignments if peer != author and peer in members)
        wanted = sum(1 for _ in islice(others, self.copies_min))
        return self._copies(Digest(self.announced[author].digest), author) >= wanted

    def _copies(self, digest: Digest, author: PeerId) -> int:
        holding = self.holding(digest)
        return len(holding) - (author in holding)

    def _count_copies(self, digest: Digest, now_ms: int | None = None) -> None:
        for author in self.authors[digest]:
            if self._copies(digest, author) < self.copies_min:
                self.short.add(author)
            else:
                self.short.discard(author)
                if now_ms is not None:
                    self.copied_ms.setdefault(author, now_ms)

    # ---- coming and going

    def unannounced(self) -> int:
        """Samples that were leased for this round and of which nothing was heard in time."""
        return sum(share.count for peer in self.silent for share in self.assignments[peer].shares)

    def doubt(self, peer: PeerId) -> None:
        """A member has a new session, perhaps as a new process: what it held counts until it is
        ready, and after that only if it has said so again.
        """
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
        if digest in self.authors:
            self._count_copies(digest)

    def forget(self, peer: PeerId) -> int:
        """A member went: it holds nothing any more and, if it has not announced, is not waited for.
        Returns how many of its samples are lost.
        """
        for digest in self.named.pop(peer, set()):
            self._drop(peer, digest)
        self.doubted.pop(peer, None)
        return self.withdraw(peer)

    def withdraw(self, peer: PeerId) -> int:
        """A member that has not announced is not asked any more. Returns how many of its samples
        are lost.
        """
        if peer not in self.silent:
            return 0
        self.silent.discard(peer)
        return sum(share.count for share in self.assignments.pop(peer).shares)


def check_announcement(event: Announced, assignment: Assignment, payload_bytes_max: int) -> None:
    """Raise `RemoteProtocolError` for what no honest node announces."""
    leased = sum(share.count for share in assignment.shares)
    if event.samples > leased:
        raise RemoteProtocolError(
            f"{event.peer}: expected at most {leased} samples used, got {event.samples}"
        )
    if event.digest and not 1 <= event.payload_bytes <= payload_bytes_max:
        raise RemoteProtocolError(
            f"{event.peer}: expected a payload of 1..{payload_bytes_max} bytes, got {event.payload_bytes}"
        )
    if event.digest and assignment.muted:
        raise RemoteProtocolError(
            f"{event.peer}: expected no payload from a muted member in round {event.round}"
        )


def unused_part(shares: tuple[Share, ...], samples: int) -> list[Share]:
    """The part of `shares` behind the first `samples` samples: what was leased and not trained."""
    unused, left = [], samples
    for share in shares:
        used, rest = share.split(min(left, share.count))
        left -= used.count
        if rest.count:
            unused.append(rest)
    return unused


def mean_loss(counted: list[Announced]) -> float:
    """Loss over the samples of these announcements, in nats per token; not a number when they have
    none.
    """
    samples = sum(payload.samples for payload in counted)
    return (
        sum(payload.loss * payload.samples for payload in counted) / samples
        if samples
        else float("nan")
    )
