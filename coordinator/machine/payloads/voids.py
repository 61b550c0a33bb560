"""Committed payloads that no member can give, and when they are declared void.

    committed --a member lacks it--> lacked --all lack it, or two in three--> planned --> void
        |                              ^                                         |
        |                              '---- a member got it, came or went ------'
        '--more than a third of the voters have applied the commit--> safe

A commit names payloads that members said they hold. When that was a lie, or when everybody who held
one is gone, no replica can apply the commit and the run stands still. So nodes that get a payload
from nobody say so, and the coordinator takes the payload out of the log by an entry of the chain.

Rules
- Voters are the members with standing that were ready when the round was committed. A member
  that comes later cannot rewrite what was before; but when all voters are gone and none has said
  that it applied the commit, all members with standing vote that are ready or lack the payload:
  one that is still further back can say nothing of it.
- Unanimous: every voter that is connected lacks the payload, none has applied the commit, and no
  other member is known to hold it. Then it is void `SLOTS` slots after the first complaint.
- Two in three of them lack it, whatever the others say: it is void after `PATIENCE_MS`. Some are
  lying, or cannot reach the rest of the run. A third of liars neither makes a payload void nor
  saves one.
- Where an auditor has applied the commit, a payload becomes void only if every voter lacks it.
- What more than a third of the voters have applied is history, and never becomes void, whoever is
  left. So only the newest commits are kept here, and at most `ROUNDS_KEPT` of them.
- A member that applied the commit holds a state that the chain no longer makes. It is set back, and
  it finds the void in the chain, discards its state and replays. Its reports until then are known
  by their number of voids (`expected`) and count for nothing: nobody is blamed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator.machine.members.member import Member
from coordinator.machine.members.membership import Membership
from protocol.codec.chain import Void, VoidReason
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from protocol.shuffle import Share

SLOTS = 2
"""Slots after the first complaint in which a payload that everybody lacks may still appear."""

LEAST_MS = 4_000
"""Least time for that, where slots are short: a link that broke is made again by then."""

PATIENCE_MS = 60_000
"""Time after the first complaint in which a payload that some members do not lack may still spread.
A wrong decision costs those members a replay, so it is longer than a short fault of the network."""

ROUNDS_KEPT = 64
"""Newest commits whose payloads can become void. More are undone only by an operator."""

Standing = Callable[[PeerId], bool]
"""Whether the word of a member counts."""


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
    """Some of the members that said to hold each payload."""
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
            for round, digest, complaint in self._complaints()
            if complaint.reason and complaint.due_ms <= now_ms
        ]

    def next_due_ms(self) -> int | None:
        """The earliest time at which `due` has something; None while nothing is planned."""
        times = [complaint.due_ms for _, _, complaint in self._complaints() if complaint.reason]
        return min(times, default=None)

    def reason(self, round: int, digest: Digest) -> VoidReason | None:
        """Why a payload is to become void; None when it is not."""
        payloads = self.rounds.get(round)
        complaint = payloads.lacked.get(digest) if payloads else None
        return complaint.reason if complaint else None

    def news(self, peer: PeerId, round: int, digests: Iterable[Digest]) -> tuple[Digest, ...]:
        """The digests among these of which `complain` would take note."""
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

    # ---- changes

    def commit(
        self,
        commit: Commit,
        holders: Iterable[tuple[PeerId, ...]],
        trained: Iterable[tuple[Share, ...]],
        voters: set[PeerId],
    ) -> None:
        """A round was committed; `holders` and `trained` in the order of its entries."""
        digests = [entry.digest for entry in commit.entries]
        payloads = CommittedPayloads(voters, dict(zip(digests, holders, strict=True)))
        for digest, shares in zip(digests, trained, strict=True):  # two may announce one digest
            payloads.trained[digest] = (*payloads.trained.get(digest, ()), *shares)
        self.rounds[commit.round] = payloads
        while len(self.rounds) > ROUNDS_KEPT:
            del self.rounds[next(iter(self.rounds))]

    def complain(self, peer: PeerId, round: int, digests: Iterable[Digest], now_ms: int) -> None:
        """A member lacks payloads. Those of history, those that no commit names and those that are
        void are no news.
        """
        payloads = self.rounds.get(round)
        for digest in digests:
            if payloads and digest in payloads.holders:
                payloads.lacked.setdefault(digest, Complaint(now_ms)).lacking.add(peer)

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
        for _, _, complaint in self._complaints():
            complaint.since_ms += milliseconds
            complaint.due_ms += milliseconds

    def review(self, members: Membership, standing: Standing, slot_ms: int, now_ms: int) -> None:
        """Plan which payloads become void, and when. To be called after each event."""
        for round, digest, complaint in self._complaints():
            reason = _verdict(self.rounds[round], digest, members, standing)
            if reason != complaint.reason:
                patient = reason == "most lack it"
                wait_ms = PATIENCE_MS if patient else max(LEAST_MS, SLOTS * slot_ms)
                complaint.reason = reason
                complaint.due_ms = max(now_ms, complaint.since_ms + wait_ms)

    def note(self, void: Void) -> None:
        """A payload is void from now on."""
        payloads = self.rounds[void.round]
        for about in (payloads.holders, payloads.trained, payloads.lacked):
            del about[void.digest]
        for later in [later for later in self.rounds if later >= void.round]:
            self.rounds[later].applied.clear()
            self.rounds[later].audited = False
        self.made.append(void.round)

    def _complaints(self) -> list[tuple[int, Digest, Complaint]]:
        return [
            (round, digest, complaint)
            for round, payloads in self.rounds.items()
            for digest, complaint in payloads.lacked.items()
        ]


def _take_back(peer: PeerId, payloads: CommittedPayloads) -> None:
    for digest, complaint in list(payloads.lacked.items()):
        complaint.lacking.discard(peer)
        if not complaint.lacking:
            del payloads.lacked[digest]


def _verdict(
    payloads: CommittedPayloads, digest: Digest, members: Membership, standing: Standing
) -> VoidReason | None:
    lacking, holders = payloads.lacked[digest].lacking, payloads.holders[digest]
    bound = bool(payloads.applied) or any(members.get(peer) for peer in payloads.voters)
    asked = [
        member.peer
        for member in members
        if member.connected
        and standing(member.peer)
        and (member.peer in payloads.voters if bound else _may_know(member, lacking))
    ]
    short = sum(peer in lacking for peer in asked)
    if not asked or 3 * short < 2 * len(asked):
        return None
    hopes = {*holders, *payloads.applied} - lacking
    if short == len(asked) and not any(members.get(peer) for peer in hopes):
        return "nobody has it"
    return None if payloads.audited else "most lack it"


def _may_know(member: Member, lacking: set[PeerId]) -> bool:
    """Whether a member has come as far as the round, by its state or by its complaint."""
    return member.state == "ready" or member.peer in lacking
