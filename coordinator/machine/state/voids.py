"""The committed payloads that may still become void: part of a run's state.
`coordinator.machine.rules.voiding` decides about them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.codec.chain import Void, VoidReason
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share

ROUNDS_KEPT = 64
"""Newest commits whose payloads can become void. More are undone only by an operator."""


@dataclass(slots=True)
class Complaint:
    """A committed payload that members lack."""

    since_ms: int
    lacking: set[PeerId] = field(default_factory=set)
    reason: VoidReason | None = None
    """Why it will be void; None while too few lack it."""
    due_ms: int = 0
    """When, if there is a reason."""


@dataclass(slots=True)
class CommittedPayloads:
    """The payloads of a commit that is not history yet."""

    voters: set[PeerId]
    holders: dict[Digest, tuple[PeerId, ...]]
    """Some of the nodes that said to hold each payload, or signed a result."""
    trained: dict[Digest, tuple[Share, ...]] = field(default_factory=dict)
    """The samples in each payload."""
    applied: set[PeerId] = field(default_factory=set)
    """Voters that have applied the commit."""
    audited: bool = False
    """An auditor has applied the commit: the payloads are available."""
    lacked: dict[Digest, Complaint] = field(default_factory=dict)


@dataclass(slots=True)
class Voids:
    """The committed payloads that may still become void, and the rounds of those that have."""

    rounds: dict[int, CommittedPayloads] = field(default_factory=dict)
    """The newest commits, oldest first."""
    made: list[int] = field(default_factory=list)
    """The round of each void payload, in the order of the chain."""

    # ---- queries

    def expected(self, round: int) -> int:
        """Number of void payloads that a state after `round` has passed over."""
        return sum(1 for void in self.made if void <= round)

    def due(self, now_ms: int) -> list[tuple[int, Digest]]:
        """The payloads whose time is over, oldest round first."""
        return [
            (round, digest)
            for round, digest, complaint in self.complaints()
            if complaint.reason and complaint.due_ms <= now_ms
        ]

    def next_due_ms(self) -> int | None:
        """The earliest time at which `due` has something; None while nothing is planned."""
        times = [complaint.due_ms for _, _, complaint in self.complaints() if complaint.reason]
        return min(times, default=None)

    def reason(self, round: int, digest: Digest) -> VoidReason | None:
        """Why a payload is to become void; None when it is not."""
        payloads = self.rounds.get(round)
        complaint = payloads.lacked.get(digest) if payloads else None
        return complaint.reason if complaint else None

    def news(self, peer: PeerId, round: int, digests: Iterable[Digest]) -> tuple[Digest, ...]:
        """The digests among these of which it is news that the member lacks them."""
        payloads = self.rounds.get(round)
        if payloads is None:
            return ()
        return tuple(
            digest
            for digest in dict.fromkeys(digests)
            if digest in payloads.holders
            and (digest not in payloads.lacked or peer not in payloads.lacked[digest].lacking)
        )

    def trained(self, round: int, digest: Digest) -> tuple[Share, ...]:
        """The samples in a payload that may still become void."""
        return self.rounds[round].trained[digest]

    def complaints(self) -> list[tuple[int, Digest, Complaint]]:
        """The payloads that members lack."""
        return [
            (round, digest, complaint)
            for round, payloads in self.rounds.items()
            for digest, complaint in payloads.lacked.items()
        ]

    # ---- changes

    def commit(
        self,
        commit: Commit,
        holders: Iterable[tuple[PeerId, ...]],
        trained: Iterable[tuple[Share, ...]],
        voters: set[PeerId],
    ) -> None:
        """A round was committed; `holders` in the order of what nodes need, `trained` in that of
        its entries. A result that becomes void takes nothing back: its authors' samples stay
        trained.
        """
        digests = [needed.digest for needed in commit.needed]
        trained = [() for _ in digests] if commit.sums else trained
        payloads = CommittedPayloads(voters, dict(zip(digests, holders, strict=True)))
        for digest, shares in zip(digests, trained, strict=True):  # two may announce one digest
            payloads.trained[digest] = (*payloads.trained.get(digest, ()), *shares)
        self.rounds[commit.round] = payloads
        while len(self.rounds) > ROUNDS_KEPT:
            del self.rounds[next(iter(self.rounds))]

    def complain(self, peer: PeerId, round: int, digests: Iterable[Digest], now_ms: int) -> None:
        """A member lacks payloads of which that is news."""
        lacked = self.rounds[round].lacked
        for digest in digests:
            lacked.setdefault(digest, Complaint(now_ms)).lacking.add(peer)

    def apply(self, peer: PeerId, until_round: int) -> None:
        """A member holds a state that contains the commits up to a round."""
        for round in [round for round in self.rounds if round <= until_round]:
            payloads = self.rounds[round]
            if peer in payloads.voters:
                payloads.applied.add(peer)
            _take_back(peer, payloads)
            if 3 * len(payloads.applied) > len(payloads.voters):
                del self.rounds[round]

    def note_audited(self, until_round: int) -> None:
        """An auditor has replayed the commits up to a round."""
        for round, payloads in self.rounds.items():
            payloads.audited |= round <= until_round

    def forget(self, peer: PeerId) -> None:
        """A member went, or begins anew: its complaints are void."""
        for payloads in self.rounds.values():
            _take_back(peer, payloads)

    def postpone(self, milliseconds: int) -> None:
        """The coordinator was away for this long: every member has that much longer."""
        for _, _, complaint in self.complaints():
            complaint.since_ms += milliseconds
            complaint.due_ms += milliseconds

    def note(self, void: Void) -> None:
        """A payload is void from now on."""
        payloads = self.rounds[void.round]
        for about in (payloads.holders, payloads.trained, payloads.lacked):
            del about[void.digest]
        for later in [later for later in self.rounds if later >= void.round]:
            self.rounds[later].applied.clear()
            self.rounds[later].audited = False
        self.made.append(void.round)


def _take_back(peer: PeerId, payloads: CommittedPayloads) -> None:
    for digest, complaint in list(payloads.lacked.items()):
        complaint.lacking.discard(peer)
        if not complaint.lacking:
            del payloads.lacked[digest]
