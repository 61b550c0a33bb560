"""A round that is not decided yet, and the questions that decide it.

    opened --bell--> exchanging --publish_by--> closing --commit_by--> must be decided

`silent` are the members that were asked to work and have not announced. Like the sets in `Receipts`
it follows every event. The invariants of both are in `coordinator.machine.invariants`.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from coordinator.machine.events.effects import Assignment
from coordinator.machine.events.inputs import Announced, Instant
from coordinator.machine.state.pace import Needs
from coordinator.machine.state.receipts import Receipts
from coordinator.machine.state.sums.round_sums import RoundSums
from protocol.clock import Instants
from protocol.codec.commits import Entry
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId
from protocol.mixing.topologies import Edge
from protocol.runfile import AlgorithmSpec
from protocol.shuffle import Share

RECEIPTS_PER_AUTHOR = 2
"""Digests that a member may name for each author of a round: an author that restarts makes a second
payload."""

_NEXT: dict[str, Instant] = {"opened": "bell", "bell": "publish_by", "publish_by": "commit_by"}


@dataclass(slots=True)
class UndecidedRound:
    """A round between its opening and its decision. `assignments` names the members that were asked
    to work, except those that went before they announced.
    """

    round: int
    step: int
    instants: Instants
    learning_rate_bits: int
    decay_bits: int
    assignments: dict[PeerId, Assignment]
    receipts: Receipts
    announced: dict[PeerId, Announced] = field(default_factory=dict)
    announced_ms: dict[PeerId, int] = field(default_factory=dict)
    silent: set[PeerId] = field(default_factory=set)
    gone_ms: dict[PeerId, int] = field(default_factory=dict)
    """When members went that had not announced."""
    disturbed: bool = False
    """The coordinator was away meanwhile: the duration says nothing about the members."""
    reached: Literal["opened", "bell", "publish_by", "commit_by"] = "opened"
    least_ms: int = 0
    """Time before which the round may not close early; 0: it may at any time."""
    shortest_ms: int = 0
    """The length that it has at least."""
    edges: tuple[Edge, ...] = ()
    """Pairs of members that are to mix parameters, sorted (`coordinator.machine.rules.edges`)."""
    edge_ms: dict[int, int] = field(default_factory=dict)
    """Time since which an edge holds, by its place."""
    mean: bool = False
    """Whether members take the mean of all parameters."""
    only_mixes: bool = False
    """Whether nobody trains in it."""
    sums: RoundSums | None = None
    """The summers that add its payloads; None where every payload goes to everybody."""

    @classmethod
    def open(
        cls,
        round: int,
        step: int,
        instants: Instants,
        scalars: tuple[int, int],
        assignments: dict[PeerId, Assignment],
        *,
        copies_min: int,
        least_ms: int = 0,
    ) -> "UndecidedRound":
        """A new round; `scalars` are the float bits of learning rate and decay."""
        receipts = Receipts(copies_min, RECEIPTS_PER_AUTHOR * len(assignments))
        silent = set(assignments)
        opened = cls(round, step, instants, *scalars, assignments, receipts, silent=silent)
        opened.least_ms = instants.opened + least_ms if least_ms else 0
        opened.shortest_ms = least_ms
        return opened

    # ---- time

    def next_instant(self) -> tuple[Instant, int] | None:
        """Name and time of the instant that the round has not reached yet."""
        if self.least_ms:
            return ("least", self.least_ms)
        name = _NEXT.get(self.reached)
        return (name, getattr(self.instants, name)) if name else None

    def reach(self, instant: Instant) -> None:
        """An instant has come."""
        if instant == "least":
            self.least_ms = 0
        else:
            self.reached = instant

    def postpone(self, milliseconds: int) -> None:
        """The coordinator was away for this long: every member has that much longer."""
        old = self.instants
        self.disturbed = True
        self.instants = Instants(
            old.opened,
            old.bell + milliseconds,
            old.publish_by + milliseconds,
            old.commit_by + milliseconds,
        )
        if self.sums:
            self.sums.postpone(milliseconds)

    @property
    def is_closed(self) -> bool:
        """Whether the authors are fixed, and summers add."""
        return self.sums is not None and self.sums.adding is not None

    @property
    def copied_ms(self) -> dict[PeerId, int]:
        """Time at which an author's payload was first with all that have to get it."""
        return self.sums.whole_ms if self.sums else self.receipts.copied_ms

    def needs(
        self, live: Callable[[PeerId], bool], copied: Callable[[PeerId], bool], now_ms: int
    ) -> Needs:
        """The time that live members needed, at least, if the round is decided now; empty when
        the round was disturbed. `copied` says of which authors the copies are waited for.
        """
        if self.disturbed:
            return Needs((), ())
        opened, bell = self.instants.opened, self.instants.bell
        publish = [max(0, now_ms - bell) for peer in self.silent if live(peer)]
        for peer, at_ms in self.announced_ms.items():
            if not copied(peer):
                continue
            publish.append(max(0, at_ms - bell, at_ms - opened - self.announced[peer].compute_ms))
        exchange = [
            self.copied_ms.get(said.peer, now_ms) - self.announced_ms[said.peer]
            for said in self.payloads()
            if copied(said.peer)
        ]
        return Needs(tuple(sorted(publish)), tuple(sorted(exchange)))

    # ---- members that the round waits for

    def awaited(self, live: Callable[[PeerId], bool]) -> list[PeerId]:
        """Live members that were asked to work and have not announced, sorted."""
        return sorted(peer for peer in self.silent if live(peer))

    def waits(self, live: Callable[[PeerId], bool]) -> bool:
        """Whether a live member has not announced."""
        return any(live(peer) for peer in self.silent)

    def computed(self, live: Callable[[PeerId], bool]) -> bool:
        """No member computes this round any more: the bell rang, or all have announced."""
        return self.reached != "opened" or not self.waits(live)

    # ---- payloads

    def announce(
        self, event: Announced, now_ms: int, witnesses: frozenset[PeerId] | None = None
    ) -> None:
        """Take a checked announcement; its author holds the payload."""
        self.announced[event.peer] = event
        self.announced_ms[event.peer] = now_ms
        self.silent.discard(event.peer)
        if event.digest:
            self.receipts.announce(event.peer, Digest(event.digest), now_ms, witnesses)
            if self.sums:
                self.sums.announce(event.peer, Digest(event.digest), now_ms)

    def has_payload(self, peer: PeerId) -> bool:
        """Whether the member has announced a payload."""
        return peer in self.announced and bool(self.announced[peer].digest)

    def payloads(self) -> list[Announced]:
        """Announcements that carry a payload, sorted by author."""
        return [
            self.announced[peer] for peer in sorted(self.announced) if self.announced[peer].digest
        ]

    def waits_for_copies(
        self, members: Collection[PeerId], copied: Callable[[PeerId], bool]
    ) -> bool:
        """Whether a payload that a member holds has too few copies, of an author for whose copies
        rounds wait. A payload that no member holds any more does not come back.
        """
        if self.sums:
            return any(
                copied(author) and self.sums.waits_for(author, present=author in members)
                for author in self.sums.short
            )
        return any(
            self.receipts.holding(Digest(self.announced[author].digest))
            and not self._copied(author, members)
            for author in self.receipts.short
            if copied(author)
        )

    def available(self, members: Collection[PeerId]) -> list[Announced]:
        """Payloads that enough members hold: `copies_min` besides the author, or fewer when fewer
        of the round's other workers are still members. A member that is catching up holds nothing
        yet and is not waited for. A payload without holders is not available, however few members
        are left. Where summers add, half of the ranges include its author.
        """
        if self.sums:
            return [each for each in self.payloads() if self.sums.is_available(each.peer)]
        return [
            payload
            for payload in self.payloads()
            if self.receipts.holding(Digest(payload.digest)) and self._copied(payload.peer, members)
        ]

    def _copied(self, author: PeerId, members: Collection[PeerId]) -> bool:
        """Whether enough others hold the author's payload, or as many as there are."""
        if author not in self.receipts.short:
            return True
        receipts = self.receipts
        asked = receipts.drawn.get(author, self.assignments)
        others = (peer for peer in asked if peer != author and peer in members)
        most_others = None if author in receipts.drawn else receipts.copies_min
        wanted = receipts.wanted(author, sum(1 for _ in islice(others, most_others)))
        return receipts.copies(Digest(self.announced[author].digest), author) >= wanted

    def trained(self, entries: Iterable[Entry]) -> tuple[tuple[Share, ...], ...]:
        """The positions that the authors of these entries say they trained, in their order."""
        return tuple(
            used_part(self.assignments[entry.author].shares, entry.samples) for entry in entries
        )

    # ---- coming and going

    def leased(self) -> int:
        """Samples that are out with members: what was announced, or all where nothing was."""
        silent = (share.count for peer in self.silent for share in self.assignments[peer].shares)
        return sum(silent) + sum(said.samples for said in self.announced.values())

    def forget(self, peer: PeerId, now_ms: int) -> tuple[Share, ...]:
        """A member went: it holds nothing, and the round does not wait for it. Returns the samples
        that it has not announced.
        """
        self.receipts.forget(peer)
        if self.sums:
            self.sums.forget(peer, now_ms)
        if peer in self.silent:
            self.gone_ms[peer] = now_ms
        return self.withdraw(peer)

    def doubt(self, peer: PeerId) -> None:
        """A member has a new session, perhaps as a new process."""
        self.receipts.doubt(peer)
        if self.sums:
            self.sums.parts.doubt(peer)

    def settle_doubt(self, peer: PeerId, now_ms: int) -> None:
        """The member is ready: what it has not said again counts no more."""
        self.receipts.settle_doubt(peer)
        if self.sums:
            self.sums.settle_doubt(peer, now_ms)

    def withdraw(self, peer: PeerId) -> tuple[Share, ...]:
        """Take the work back from a member that has not announced; returns its samples."""
        if peer not in self.silent:
            return ()
        self.silent.discard(peer)
        return self.assignments.pop(peer).shares


def check_announcement(event: Announced, assignment: Assignment, payload_bytes_max: int) -> None:
    """Raise `RemoteProtocolError` for an announcement that no honest node makes."""
    leased = sum(share.count for share in assignment.shares)
    if event.samples > leased:
        raise RemoteProtocolError(
            f"{event.peer}: expected at most {leased} samples used, got {event.samples}"
        )
    if event.digest and not 1 <= event.payload_bytes <= payload_bytes_max:
        raise RemoteProtocolError(
            f"{event.peer}: expected a payload of 1..{payload_bytes_max} bytes, "
            f"got {event.payload_bytes}"
        )
    if event.digest and assignment.muted:
        raise RemoteProtocolError(
            f"{event.peer}: expected no payload from a muted member in round {event.round}"
        )


def used_part(shares: tuple[Share, ...], samples: int) -> tuple[Share, ...]:
    """The first `samples` samples of `shares`."""
    used, left = list[Share](), samples
    for share in shares:
        first, _ = share.split(min(left, share.count))
        left -= first.count
        if first.count:
            used.append(first)
    return tuple(used)


def unused_part(shares: tuple[Share, ...], samples: int) -> list[Share]:
    """The part of `shares` after the first `samples` samples: leased and not trained."""
    unused, left = [], samples
    for share in shares:
        used, rest = share.split(min(left, share.count))
        left -= used.count
        if rest.count:
            unused.append(rest)
    return unused


def entry_of(payload: Announced, algorithm: AlgorithmSpec) -> Entry:
    """The entry of a commit for a payload that counts."""
    return Entry(
        payload.peer,
        Digest(payload.digest),
        payload.payload_bytes,
        algorithm.weight_of(payload.samples),
        payload.samples,
    )


def mean_loss(counted: list[Announced]) -> float:
    """Loss over the samples of these announcements, in nats per token; NaN without samples."""
    samples = sum(payload.samples for payload in counted)
    total = sum(payload.loss * payload.samples for payload in counted)
    return total / samples if samples else math.nan
