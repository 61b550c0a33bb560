"""The member list: who is there, whom rounds wait for, leases and strikes. Part of a run's state;
`coordinator.machine.rules.joining` and `membership` beside it change it.
"""

from collections.abc import Iterator

from coordinator.machine.events.inputs import Joined
from coordinator.machine.state.member import FormerMember, Member, MembershipState
from coordinator.machine.state.standing import RANKS, Standing
from protocol.ids import PeerId
from protocol.mixing.link_report import MeasuredLink
from protocol.runfile import MembershipSpec
from protocol.words import quantity

LAPSES_KEPT_LEASES = 4
"""Leases for which a lapse is remembered: a finished run asks for those of the last two leases
before its end, for at most two leases after it."""

FIRST_STEP_MS = 120_000
"""Time for the first step of a member, from its first Ready: kernels take half a minute to compile
where none are kept, and several times that on a machine that does other work."""

LOST_TOGETHER_MS = 3_000
"""Time before the coordinator's last word in which lost sessions count as lost with it: as it ends,
it closes all of them, and its line may fail first. A member that was away for longer is not waited
for."""

FORMER_KEPT = 16
"""Former members that are remembered: those with the newest states, one of which a run that has no
other holder needs back."""

UNCOPIED_MAX = 2
"""Rounds in a row in which an announced payload was not available, after which no round waits for
the copies of its author; one may be a lost link."""

UNCONFIRMED_MAX = 5
"""Rounds in a row without a receipt after which a member is no witness; an honest one is slow."""


class Membership:
    """The member list, and what the run file says of it."""

    def __init__(self, spec: MembershipSpec, state: MembershipState) -> None:
        self._spec, self._state = spec, state
        self._no_lapse_before_ms: int | None = None
        """A lower bound, computed from the roster; None when it must be computed again."""

    def __len__(self) -> int:
        return len(self.roster)

    def __iter__(self) -> Iterator[Member]:
        """Members in the order of their ids."""
        return iter([self.roster[peer] for peer in sorted(self.roster)])

    # ---- queries

    @property
    def roster(self) -> dict[PeerId, Member]:
        """The members by id."""
        return self._state.roster

    def get(self, peer: PeerId) -> Member | None:
        """The member with this id, if there is one."""
        return self.roster.get(peer)

    def ready(self) -> list[Member]:
        """Members that have caught up and are connected, sorted by id."""
        return [member for member in self if member.state == "ready" and member.connected]

    @property
    def lease_ms(self) -> int:
        """Time for which a silent member stays one."""
        return self._spec.lease_ms

    @property
    def standing(self) -> Standing:
        """The standing of all keys."""
        return self._state.standing

    @property
    def public(self) -> bool:
        """Whether only standing decides."""
        return self._spec.trust == "public"

    def decides(self, peer: PeerId) -> bool:
        """Whether the key counts where members are counted."""
        return self.standing.has(peer) if self.public else peer not in self.standing.demoted

    def rank(self, peer: PeerId) -> int:
        """The weight of the key's word against that of others; equal among people that know each
        other.
        """
        return RANKS[self.standing.word(peer)] if self.public else 0

    def live(self, peer: PeerId) -> bool:
        """Whether the node is a connected member. Rounds wait for such nodes only."""
        member = self.roster.get(peer)
        return member is not None and member.connected

    def awaited_until(self, peer: PeerId, now_ms: int) -> int:
        """When a round stopped waiting for a silent member: now, or as its session was lost."""
        member = self.roster.get(peer)
        return now_ms if member is None or member.connected else min(now_ms, member.lost_ms)

    def kept_for_another(self, event: Joined) -> bool:
        """Whether the key of a hello is that of a member whose process is another one and may open
        its next session soon: no session was lost since the coordinator started, or it was lost by
        a process in another place, whose line may be back in a moment.
        """
        known = self.roster.get(event.peer)
        if known is None or known.instance in (0, event.instance):
            return False
        return known.connected or _host(known.addresses) != _host(event.addresses)

    def keeps_time(self, peer: PeerId) -> bool:
        """Whether rounds wait for this node, and their slot follows its needs: it is in time, and
        does not come long after the others, round after round.
        """
        return self.is_in_time(peer) and not self.standing.is_tardy(peer)

    def is_in_time(self, peer: PeerId) -> bool:
        """Whether a member decides, is live, and has not been late as often as it can be, although
        the slot grew meanwhile.
        """
        in_time = self.live(peer) and self.roster[peer].strikes < self._most(peer)
        return in_time and self.decides(peer)

    def copies_are_awaited(self, peer: PeerId) -> bool:
        """Whether rounds wait for the copies of this author's payload: it decides, others get what
        it announces, and it is not late round after round.
        """
        return self.gives_copies(peer) and self.decides(peer) and not self.standing.is_tardy(peer)

    def gives_copies(self, peer: PeerId) -> bool:
        """Whether others get what it announces: it did not just announce payloads that nobody could
        get, round after round, or break links as they were sent.
        """
        member = self.roster.get(peer)
        copied = member is None or member.work.uncopied < UNCOPIED_MAX
        return copied and peer not in self._state.unlinked

    def confirms(self, peer: PeerId) -> bool:
        """Whether the member may be drawn as a witness: it is on time, and gives receipts."""
        return self.keeps_time(peer) and self.roster[peer].work.unconfirmed < UNCONFIRMED_MAX

    def remark(self, member: Member) -> str:
        """What this member costs the others although it is never late; empty for most."""
        return "; ".join(self._remarks(member))

    def _remarks(self, member: Member) -> Iterator[str]:
        if self._sayers(self._state.greedy, member.peer):
            yield "it takes the same payloads again and again"
        if member.work.uncopied >= UNCOPIED_MAX:
            yield "nobody could get its last payloads: no round waits for them"
        elif self.standing.is_tardy(member.peer) and member.work.copies_tardy:
            yield "others got its payloads late, as over broken links: no round waits for it"
        elif self.standing.is_tardy(member.peer):
            yield "it came long after the others: no round waits for it"
        if member.peer in self._state.unlinked:
            yield "links to it break again and again as it sends payloads: no round waits for them"
        if member.work.unconfirmed >= UNCONFIRMED_MAX:
            yield "it does not say which payloads it holds: none waits for its word"

    def _sayers(self, said_by: dict[PeerId, set[PeerId]], peer: PeerId) -> int:
        """The number of members that decide and say it of the key; 0 unless they are most of the
        others.
        """
        if not (sayers := said_by.get(peer, set()) & self.roster.keys()):
            return 0
        said = sum(map(self.decides, sayers))
        return said if 2 * said > sum(map(self.decides, self.roster.keys() - {peer})) else 0

    def muted_reason(self, member: Member) -> str:
        """The reason why the member's payloads do not count at present; empty when they do."""
        if demoted := self.standing.demoted.get(member.peer):
            return demoted.reason
        if member.strikes >= self._spec.strikes_to_mute:
            late = quantity(member.strikes, "round")
            return f"late in {late}: counted again after a punctual one"
        return ""

    def missing(self, since_ms: int) -> list[PeerId]:
        """Nodes that lapsed at or after `since_ms` and have not come back, sorted."""
        return sorted(peer for peer, at_ms in self._state.lapsed_ms.items() if at_ms >= since_ms)

    def next_lapse_ms(self) -> int | None:
        """A time before which no lease runs out; None without members. Leases only grow, so the
        bound holds until `check_leases` moves it, however many messages arrive.
        """
        if self._no_lapse_before_ms is None:
            leases_ms = (member.lease_until_ms for member in self.roster.values())
            self._no_lapse_before_ms = min(leases_ms, default=None)
        return self._no_lapse_before_ms if self.roster else None

    # ---- changes

    def add(self, said: Joined, now_ms: int) -> None:
        """A node becomes a member."""
        if not self.roster:
            self._no_lapse_before_ms = None
        self._state.lapsed_ms.pop(said.peer, None)
        self.roster[said.peer] = Member(
            said.peer,
            said.addresses,
            said.name,
            said.hardware,
            said.software,
            "catching up",
            now_ms,
            now_ms + self._spec.lease_ms,
            instance=said.instance,
            progress_ms=now_ms,
            listed=self.decides(said.peer),
        )

    def meet(self, known: Member, said: Joined, now_ms: int) -> None:
        """A member opens another session."""
        known.addresses, known.name, known.instance = said.addresses, said.name, said.instance
        known.hardware, known.software = said.hardware, said.software
        known.state, known.connected = "catching up", True
        self.renew(known.peer, now_ms)

    def take_links(self, member: Member, links: tuple[MeasuredLink, ...]) -> None:
        """A member has measured its links anew."""
        member.work.links = links
        greedy, breaking = (
            {link.peer for link in links if link.greedy},
            {link.peer for link in links if link.breaks},
        )
        self._state.greedy = self._said(member.peer, greedy, self._state.greedy)
        self._state.breaking = self._said(member.peer, breaking, self._state.breaking)
        self._find_unlinked()

    def _find_unlinked(self) -> None:
        said_by = self._state.breaking
        self._state.unlinked = {other for other in said_by if self._sayers(said_by, other) > 1}

    def _said(
        self, peer: PeerId, of: set[PeerId], before: dict[PeerId, set[PeerId]]
    ) -> dict[PeerId, set[PeerId]]:
        """What is said of keys, and by whom, once `peer` says it of these members alone."""
        others = self.roster.keys() - {peer}
        said_by = {other: said & others for other, said in before.items()}
        for other in sorted(of & self.roster.keys()):
            said_by[other] = said_by.get(other, set()) | {peer}
        return {other: said for other, said in said_by.items() if said}

    def note_ready(self, member: Member, round: int, now_ms: int) -> None:
        """The member has caught up to this round."""
        if round > member.round:
            member.progress_ms = now_ms
        member.state, member.round = "ready", round
        member.first_ready_ms = member.first_ready_ms or now_ms
        self._state.former.pop(member.peer, None)
        self.renew(member.peer, now_ms)

    def let_go(self, peer: PeerId, now_ms: int) -> bool:
        """A node goes; returns whether it was a member. Those that went with the newest states are
        kept in mind.
        """
        former, gone = self._state.former, self._removed(peer)
        if gone and gone.round >= 0:
            former[peer] = FormerMember(gone.name, gone.round, now_ms)
            if len(former) > FORMER_KEPT:
                del former[min(former, key=lambda each: (former[each].round, former[each].gone_ms))]
        return gone is not None

    def lapse(self, peer: PeerId, now_ms: int) -> bool:
        """A lease ran out; returns whether it was that of a member."""
        gone, lapsed_ms = self.let_go(peer, now_ms), self._state.lapsed_ms
        if gone:
            oldest_ms = now_ms - LAPSES_KEPT_LEASES * self._spec.lease_ms
            for old in [each for each, at_ms in lapsed_ms.items() if at_ms < oldest_ms]:
                del lapsed_ms[old]
            lapsed_ms[peer] = now_ms
        return gone

    def restart(self, last_ms: int, now_ms: int) -> None:
        """The coordinator is back, whose last word before was at `last_ms`: every member has a
        whole lease to open its session again.
        """
        for member in self.roster.values():
            member.lease_until_ms = now_ms + self._spec.lease_ms
            member.connected |= last_ms - member.lost_ms <= LOST_TOGETHER_MS

    def check_leases(self, now_ms: int) -> list[PeerId]:
        """Look for members whose lease has run out, and move `next_lapse_ms` past the leases that
        were renewed. Returns those members, sorted.
        """
        earliest_ms = self.next_lapse_ms()
        if earliest_ms is None or now_ms < earliest_ms:
            return []
        self._no_lapse_before_ms = None
        return [member.peer for member in self if member.lease_until_ms <= now_ms]

    def renew(self, peer: PeerId, now_ms: int) -> None:
        """Renew the lease of a member; does nothing for another node."""
        if member := self.roster.get(peer):
            member.lease_until_ms = now_ms + self._spec.lease_ms

    def set_back(self, peer: PeerId) -> None:
        """Let the member catch up again before it counts."""
        if member := self.roster.get(peer):
            member.state = "catching up"

    def evict(self, peer: PeerId) -> None:
        """Remove the member."""
        self._removed(peer)

    def _removed(self, peer: PeerId) -> Member | None:
        gone = self.roster.pop(peer, None)
        self._find_unlinked()  # its words count no more
        return gone

    def note_applied(self, peer: PeerId, round: int, now_ms: int) -> None:
        """The member's state includes this round."""
        member = self.roster[peer]
        if round > member.round:
            member.round, member.progress_ms = round, now_ms

    def note_copies(self, peer: PeerId, now_ms: int, *, copied: bool) -> None:
        """A round has ended in which the member's payload had its copies, or did not get them in
        all the time that there was: one strike.
        """
        if member := self.roster.get(peer):
            member.work.uncopied = 0 if copied else min(UNCOPIED_MAX, member.work.uncopied + 1)
            if not copied:
                self.note_late(peer, now_ms)

    def note_receipts(self, peer: PeerId, *, given: bool) -> None:
        """A round has ended in which others could be had, and the member has said so or not."""
        if member := self.roster.get(peer):
            unconfirmed = 0 if given else member.work.unconfirmed + 1
            member.work.unconfirmed = min(UNCONFIRMED_MAX, unconfirmed)

    def note_punctual(self, peer: PeerId) -> None:
        """The member announced in time: forgive one strike."""
        if member := self.roster.get(peer):
            member.first_step = False
            member.strikes = max(0, member.strikes - 1)

    def note_late(self, peer: PeerId, now_ms: int) -> None:
        """The member did not announce in time: one strike, but in its first step not the last."""
        if member := self.roster.get(peer):
            member.first_step &= now_ms < member.first_ready_ms + FIRST_STEP_MS
            member.strikes = min(self._most(peer), member.strikes + 1)

    def _most(self, peer: PeerId) -> int:
        """Strikes that a member may have: those that mute it, or one less in its first step."""
        return self._spec.strikes_to_mute - self.roster[peer].first_step


def _host(addresses: tuple[str, ...]) -> str:
    """Where a node is, as far as it says: its first address without the port."""
    return addresses[0].rpartition(":")[0] if addresses else ""
