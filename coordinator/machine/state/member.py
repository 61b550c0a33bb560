"""The records of members and of those that went. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from coordinator.machine.state.pace import smoothed_speed
from coordinator.machine.state.standing import Standing
from protocol.ids import PeerId, short
from protocol.mixing.link_report import MeasuredLink

HALVED_MAX = 16
"""Halvings of what a member is given to add, at most."""


@dataclass(slots=True)
class WorkRecord:
    """Measured work of one member."""

    speed: int = 0
    """Thousandths of a sample per second; 0 while unknown."""
    samples: int = 0
    rounds_counted: int = 0
    loss: float | None = None
    """Loss of the newest announcement with samples, in nats per token."""
    uncopied: int = 0
    """Rounds in a row whose time ended before the announced payload had its copies."""
    unconfirmed: int = 0
    """Rounds in a row in which payloads of others could be had and it gave no receipt."""
    copies_tardy: bool = False
    """Whether it was the copies of its payload for which others waited last, not the member."""
    halved: int = 0
    """How often what it is given to add is halved: twice for each round in which it was asked and
    did not, and once less for each in which it did."""
    ranges_added: int = 0
    """Committed results that it has signed."""
    up_bit_s: int = 0
    """Bits a second, at least, at which its payloads have reached others; 0 while unknown."""
    links: tuple[MeasuredLink, ...] = ()
    """Its newest report on its links."""

    def book(self, samples: int, took_ms: int) -> None:
        """The member trained these samples in this time."""
        self.samples += samples
        if samples:
            self.speed = smoothed_speed(self.speed, samples, took_ms)

    def book_sums(self, added: int, *, missed: bool) -> None:
        """A round has ended for which the member added these ranges in time, or missed some."""
        self.ranges_added += added
        self.halved = min(HALVED_MAX, self.halved + 2) if missed else max(0, self.halved - 1)

    def book_upload(self, payload_bytes: int, took_ms: int) -> None:
        """A payload of the member was with those that it had to reach in this time."""
        measured = 8000 * payload_bytes // max(1, took_ms)
        self.up_bit_s = (3 * self.up_bit_s + measured) // 4 if self.up_bit_s else measured


@dataclass(slots=True)
class Member:
    """One row of the member list."""

    peer: PeerId
    addresses: tuple[str, ...]
    name: str
    hardware: str
    software: str
    state: Literal["catching up", "ready"]
    joined_ms: int
    lease_until_ms: int
    connected: bool = True
    lost_ms: int = 0
    """Time at which its last session was lost."""
    instance: int = 0
    """The process that opened the member's newest session; 0 when it did not say."""
    round: int = -1
    """Newest round that the member's state includes, as far as it has said."""
    strikes: int = 0
    first_ready_ms: int = 0
    """Time at which the node was ready for the first time since it joined; 0 before that."""
    first_step: bool = True
    """Whether it may still be in its first step: it has announced nothing, and was not late after
    the time for that."""
    progress_ms: int = 0
    """Time at which its state last came nearer to the log's head, or it joined."""
    listed: bool = True
    """Whether others are told of it."""
    work: WorkRecord = field(default_factory=WorkRecord)


@dataclass(frozen=True, slots=True)
class FormerMember:
    """A node that left or lapsed with a state of the run."""

    name: str
    round: int
    """Newest round that its state included, as far as it had said."""
    gone_ms: int


@dataclass(slots=True)
class MembershipState:
    """The members by id, when nodes whose lease ran out lapsed, the nodes that went with the newest
    states, and what every key has earned.
    """

    roster: dict[PeerId, Member] = field(default_factory=dict)
    lapsed_ms: dict[PeerId, int] = field(default_factory=dict)
    former: dict[PeerId, FormerMember] = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    greedy: dict[PeerId, set[PeerId]] = field(default_factory=dict)
    """Keys of which members say that they take the same payloads again and again, with these
    members."""
    breaking: dict[PeerId, set[PeerId]] = field(default_factory=dict)
    """Keys of which members say that links to them break again and again, with these members."""
    unlinked: set[PeerId] = field(default_factory=set)
    """Keys of which most of the others said so when a member last reported, or went."""

    def named(self, peer: PeerId) -> str:
        """A node as people know it: its name, or the first characters of its id."""
        member = self.roster.get(peer)
        return member.name if member and member.name else short(peer)
