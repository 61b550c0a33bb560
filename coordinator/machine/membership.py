"""Who takes part in a run.

                Joined                Ready
    (unknown) ----------> catching up --------> ready -----.
        ^                   |   ^                 |        | Joined (a new session), AskResync
        |      Left, Lapsed |   '-----------------'--------'
        '-------------------'---------------------'

Rules
- A member is whoever holds a lease; only `Left`, `Lapsed` and eviction end it. Any sign of life renews it, and a
  sign of life from a node that is no member does nothing: nobody is revived by a heartbeat.
- A member whose session was lost keeps its lease and its place, but no round waits for it and none is opened on it
  until it is back. After a restart of the coordinator everyone counts as connected until the lease says otherwise.
- Strikes count late rounds and are forgiven by punctual ones. Each strike halves the share; at the run's limit
  the member is muted, which one punctual round ends.
- A node that comes without momentum into a run under way is muted for `warmup_rounds` rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from coordinator.machine.events import (
    Admit,
    Disconnected,
    Effect,
    Evict,
    Heartbeat,
    Joined,
    Lapsed,
    Left,
    MemberEvent,
    Ready,
    Refuse,
    Restarted,
    TellMembers,
)
from protocol.ids import PeerId
from protocol.runfile import MembershipSpec


@dataclass(slots=True)
class Member:
    """One row of the member list. Speed is in thousandths of a sample per second, 0 while
    unknown."""

    peer: PeerId
    addresses: tuple[str, ...]
    name: str
    hardware: str
    software: str
    state: Literal["catching up", "ready"]
    joined_ms: int
    lease_until_ms: int
    connected: bool = True
    round: int = -1
    strikes: int = 0
    warmup_left: int = 0
    speed: int = 0
    samples: int = 0
    rounds_counted: int = 0
    loss: float | None = None


class Membership:
    """The member list (`roster`), and when those who lapsed did; changes in `handle`, and through
    the verdicts of the rounds: `renew`, `set_back`, `evict`, `punctual` and `late`."""

    def __init__(self, spec: MembershipSpec) -> None:
        self._spec = spec
        self.roster: dict[PeerId, Member] = {}
        self.lapsed_ms: dict[PeerId, int] = {}
        self._no_lapse_before_ms: int | None = None

    def __len__(self) -> int:
        return len(self.roster)

    def __iter__(self) -> Iterator[Member]:
        """Members in the order of their ids."""
        return iter([self.roster[peer] for peer in sorted(self.roster)])

    def get(self, peer: PeerId) -> Member | None:
        """The member of this name, if it is one."""
        return self.roster.get(peer)

    def ready(self) -> list[Member]:
        """Members that have caught up and can be reached, sorted."""
        ready = [
            member
            for member in self.roster.values()
            if member.state == "ready" and member.connected
        ]
        return sorted(ready, key=lambda member: member.peer)

    def live(self, peer: PeerId) -> bool:
        """Can the node be reached, as a member? For those a round waits."""
        member = self.roster.get(peer)
        return member is not None and member.connected

    def keeps_time(self, peer: PeerId) -> bool:
        """Is the node one whose needs the slot of a round follows? Not when it has been late again
        and again, though the slot grew meanwhile."""
        return self.live(peer) and self.roster[peer].strikes < self._spec.strikes_to_mute

    def muted_reason(self, member: Member) -> str:
        """Why the member's payloads do not count at present; empty when they do."""
        if member.warmup_left:
            return f"building momentum: counted after {member.warmup_left} more rounds"
        if member.strikes >= self._spec.strikes_to_mute:
            return f"late in {member.strikes} rounds: counted again after a punctual one"
        return ""

    def handle(self, event: MemberEvent, now_ms: int) -> list[Effect]:
        """Change the list; effects are in words that the node's user can read."""
        match event:
            case Joined():
                return self._join(event, now_ms)
            case Ready(peer, round, _, has_momentum):
                if member := self.roster.get(peer):
                    member.state, member.round = "ready", round
                    member.warmup_left = (
                        0 if has_momentum or round < 0 else self._spec.warmup_rounds
                    )
                    member.lease_until_ms = now_ms + self._spec.lease_ms
                return []
            case Heartbeat(peer):
                self.renew(peer, now_ms)
                return []
            case Disconnected(peer):
                if member := self.roster.get(peer):
                    member.connected = False
                return []
            case Left(peer):
                return [TellMembers(gone=(peer,))] if self.roster.pop(peer, None) else []
            case Lapsed(peer):
                if self.roster.pop(peer, None) is None:
                    return []
                self.lapsed_ms[peer] = now_ms
                return [
                    Evict(peer, f"silent for {self._spec.lease_ms / 1000:g} s"),
                    TellMembers(gone=(peer,)),
                ]
            case Restarted():
                for member in self.roster.values():
                    member.lease_until_ms, member.connected = now_ms + self._spec.lease_ms, True
                return []
            case _:
                assert_never(event)

    def renew(self, peer: PeerId, now_ms: int) -> None:
        """A sign of life from a member; from anybody else it does nothing."""
        if member := self.roster.get(peer):
            member.lease_until_ms = now_ms + self._spec.lease_ms

    def set_back(self, peer: PeerId) -> None:
        """The member must catch up again before it counts."""
        if member := self.roster.get(peer):
            member.state = "catching up"

    def evict(self, peer: PeerId) -> None:
        """The member is removed by a verdict of the others."""
        self.roster.pop(peer, None)

    def punctual(self, peer: PeerId) -> None:
        """The member announced in time: one strike is forgiven, one round of warm-up is served."""
        if member := self.roster.get(peer):
            member.strikes = max(0, member.strikes - 1)
            member.warmup_left = max(0, member.warmup_left - 1)

    def late(self, peer: PeerId) -> None:
        """The member did not announce in time."""
        if member := self.roster.get(peer):
            member.strikes = min(self._spec.strikes_to_mute, member.strikes + 1)

    def lapsed(self, now_ms: int) -> list[PeerId]:
        """Members whose lease has run out, sorted."""
        earliest_ms = self.next_lapse_ms()
        if earliest_ms is None or now_ms < earliest_ms:
            return []
        self._no_lapse_before_ms = (
            None  # the leases of those who are left were renewed since it was reckoned
        )
        return [member.peer for member in self if member.lease_until_ms <= now_ms]

    def missing(self, since_ms: int) -> list[PeerId]:
        """Nodes that lapsed at or after `since_ms` and have not come back."""
        self.lapsed_ms = {
            peer: at_ms for peer, at_ms in self.lapsed_ms.items() if at_ms >= since_ms
        }
        return sorted(self.lapsed_ms)

    def next_lapse_ms(self) -> int | None:
        """When the first lease may run out, never too late: leases only grow, so it is reckoned
        anew when it has come and not with each sign of life."""
        if self._no_lapse_before_ms is None:
            leases_ms = (member.lease_until_ms for member in self.roster.values())
            self._no_lapse_before_ms = min(leases_ms, default=None)
        return self._no_lapse_before_ms if self.roster else None

    def _join(self, event: Joined, now_ms: int) -> list[Effect]:
        known = self.roster.get(event.peer)
        self.lapsed_ms.pop(event.peer, None)
        if known is None and len(self.roster) >= self._spec.members_max:
            return [Refuse(event.peer, f"the run is full: {self._spec.members_max} members")]
        lease_until_ms = now_ms + self._spec.lease_ms
        if known is None:
            if not self.roster:
                self._no_lapse_before_ms = None
            self.roster[event.peer] = Member(
                event.peer,
                event.addresses,
                event.name,
                event.hardware,
                event.software,
                "catching up",
                now_ms,
                lease_until_ms,
            )
        else:
            moved = known.addresses != event.addresses
            known.addresses, known.name = event.addresses, event.name
            known.hardware, known.software = event.hardware, event.software
            known.state, known.lease_until_ms, known.connected = "catching up", lease_until_ms, True
            if not moved:
                return [Admit(event.peer)]
        return [Admit(event.peer), TellMembers(came=(event.peer,))]
