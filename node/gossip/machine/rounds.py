"""The rounds that an exchange follows: those that are not decided yet, or whose payloads are still
to be had. Pure.

    Offered, ahead of RoundStarted       RoundStarted           Wanted               Settled
    ------------------------------> early ---------> open ---------> committed ---------> forgotten

A round is early when a peer has offered something of it before the coordinator opened it here: the
offers are kept, and nothing is pulled yet; offers of parts, which need the round's plan, are not.
A round may skip states: the coordinator may open one
that nobody offered in, and a commit may come for one that was never opened here. Settled ends any.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.round_state import PeerSet, Round
from protocol.ids import Digest, PeerId
from protocol.sums.asked import bits_of

AHEAD_ROUNDS_MAX = 2
"""Rounds by which a peer's offer may be ahead of the newest round known here: its line to the
coordinator may be faster."""

UNDECIDED_ROUNDS_MAX = 16
"""Rounds without a commit that are followed at once; the oldest is forgotten first. With overlap
two are usual."""


class MissingPayload(NamedTuple):
    """A payload that this node lacks, in the oldest round that knows it."""

    round: int
    digest: Digest
    payload: Payload


class Rounds:
    """Rounds from their first offer or their opening until they are settled."""

    def __init__(self, own: PeerId, neighbours: int) -> None:
        self._own = own
        self._neighbours = neighbours
        self._peers = PeerSet()
        self._rounds: dict[int, Round] = {}
        self._newest: int | None = None

    def __iter__(self) -> Iterator[tuple[int, Round]]:
        return iter(sorted(self._rounds.items()))

    @property
    def newest(self) -> int | None:
        """Newest round that was opened or decided here."""
        return self._newest

    @property
    def peers(self) -> PeerSet:
        """The peers of the run."""
        return self._peers

    def get(self, number: int) -> Round | None:
        """A round that is followed."""
        return self._rounds.get(number)

    def is_over(self, number: int) -> bool:
        """Whether a round was decided here, or forgotten, and is not followed any more."""
        return self._newest is not None and number <= self._newest and number not in self._rounds

    def holding(self, number: int) -> list[Digest]:
        """Held payloads of other authors in a round, sorted; none of one with a plan."""
        round = self._rounds.get(number, Round())
        held = (d for d, payload in round.payloads.items() if payload.held and not payload.own)
        return sorted(held) if round.plan is None else []

    def knows(self, digest: Digest) -> bool:
        """Whether a payload belongs to a round that is followed."""
        return any(digest in round.payloads for round in self._rounds.values())

    def payloads(self, digest: Digest) -> Iterator[MissingPayload]:
        """A payload in each round that knows it, oldest first: a pull outlives no round that needs
        it.
        """
        return (
            MissingPayload(number, digest, round.payloads[digest])
            for number, round in self
            if digest in round.payloads
        )

    def lacking(self) -> Iterator[MissingPayload]:
        """Payloads that are not held, of open and committed rounds."""
        return (
            MissingPayload(number, digest, payload)
            for number, round in self
            if round.open or round.committed
            for digest, payload in round.payloads.items()
            if not payload.held
        )

    # ---- changes

    def meet(self, peers: PeerSet) -> None:
        """The members, the relays or the links changed.

        A peer that left, or whose link broke, may have forgotten what it was offered.
        """
        self._peers = peers
        known = frozenset((*peers.members, *peers.relays))
        if peers.linked is not None:
            known &= peers.linked
        for number, round in self._rounds.items():
            self._choose_takers(number, round)
            for payload in round.payloads.values():
                payload.told &= known

    def start(self, opening: events.RoundStarted) -> list[Digest]:
        """Open a round. Returns the payloads that are forgotten because of it: those of old rounds,
        and what was offered early in a round whose payloads are cut.

        A round that is over stays so: after a reconnect its opening is told again.
        """
        number = opening.round
        if self.is_over(number):
            return []
        self.saw(number)
        opened, dropped = self.follow(number), list[Digest]()
        if opening.plan and opened.plan is None and not opened.committed:
            whole, opened.payloads = opened.payloads, {}
            dropped = self.unneeded(whole)
        opened.open, opened.near = True, opening.near
        opened.plan = opened.plan.with_all(opening.plan) if opened.plan else opening.plan
        self._choose_takers(number, opened)
        undecided = [number for number, round in self if not round.committed]
        for old in undecided[:-UNDECIDED_ROUNDS_MAX]:
            dropped += self.forget(old)
        return dropped

    def add_summer(self, number: int, place: int, peer: PeerId) -> None:
        """One more node gets the parts of a range."""
        round = self._rounds.get(number)
        if round and round.plan:
            round.plan = round.plan.added(place, peer)
            self._choose_takers(number, round)

    def follow(self, number: int) -> Round:
        """A round, followed from now on if it was not before."""
        if number not in self._rounds:
            self._rounds[number] = Round()
            self._choose_takers(number, self._rounds[number])
        return self._rounds[number]

    def saw(self, number: int) -> None:
        """A round was opened or decided."""
        self._newest = number if self._newest is None else max(self._newest, number)

    def forget(self, number: int) -> list[Digest]:
        """Follow a round no more; returns its payloads that no other round needs."""
        round = self._rounds.pop(number, None)
        return self.unneeded(round.payloads) if round else []

    def unneeded(self, digests: Iterable[Digest]) -> list[Digest]:
        """Payloads among these that no round knows, sorted."""
        return sorted(digest for digest in digests if not self.knows(digest))

    def add_holder(self, digest: Digest, peer: PeerId) -> None:
        """A peer holds a payload."""
        for round in self._rounds.values():
            if digest in round.payloads:
                round.payloads[digest].holders.add(peer)

    def remove_holder(self, digest: Digest, peer: PeerId, now_ms: int) -> None:
        """A peer did not give a payload. One that nobody holds and no commit names loses its
        place.
        """
        for round in self._rounds.values():
            payload = round.payloads.get(digest)
            if payload is None:
                continue
            payload.remove_holder(peer, now_ms)
            if not (payload.holders or payload.held or payload.wanted):
                del round.payloads[digest]

    def throw_away(self, digest: Digest, source: PeerId, now_ms: int) -> None:
        """A payload counts for nothing: it loses its place, unless a commit names it by now."""
        for round in self._rounds.values():
            if (payload := round.payloads.get(digest)) is None:
                continue
            if payload.wanted:
                payload.remove_holder(source, now_ms)
            elif not payload.held:
                del round.payloads[digest]
                round.worthless.add(digest)

    def hold(self, digest: Digest, size: int) -> list[events.Effect]:
        """A payload is in the log, verified; returns the reports of it."""
        reports: list[events.Effect] = []
        for number, round in self:
            payload = round.payloads.get(digest)
            if payload and not payload.held:
                payload.held, payload.size = True, size
                if round.has_parts:
                    round.untold.add(digest)
                elif not payload.own and round.plan is None:
                    reports.append(events.ReportHolding(number, (digest,)))
        return reports

    def lose(self, digest: Digest) -> None:
        """A payload is not in the log any more."""
        for round in self._rounds.values():
            if digest in round.payloads:
                round.payloads[digest].held = False

    def _choose_takers(self, number: int, round: Round) -> None:
        if round.plan:
            is_relay = self._own in self._peers.relays
            mine = range(round.plan.ranges) if is_relay else round.plan.ranges_of(self._own)
            round.ranges = bits_of(mine)
            round.takers = tuple(
                self._peers.takers(summers, self._own) for summers in round.plan.summers
            )
            round.tell_again()
        # An author may leave after publishing, so the bound does not shrink with the members.
        places = len(self._peers.members) * (round.ranges.bit_count() if round.plan else 1)
        round.payloads_max = max(round.payloads_max, places)
        if round.near is None:
            round.neighbours = self._peers.neighbours(number, self._own, self._neighbours)
        else:
            round.neighbours = self._peers.among(round.near)
