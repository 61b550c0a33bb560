"""The relays that offer to add, while their sessions last, and what they have added: part of a
run's state. `coordinator.machine.rules.sums.offering` changes it.
"""

from dataclasses import dataclass, field
from typing import Final

from coordinator.machine.state.member import WorkRecord
from protocol.ids import PeerId

OFFERS_MAX: Final = 64
"""Relays that are remembered: four times those that a run has beside its named ones."""


@dataclass(slots=True)
class AddingRelay:
    """One relay that offers to add, or did."""

    name: str
    instance: int
    """The process that offers; 0 when it did not say."""
    lease_until_ms: int
    here: bool = True
    """Whether its session lasts, as far as the coordinator knows."""
    work: WorkRecord = field(default_factory=WorkRecord)
    """The ranges that it has added, and the rounds that it has missed: it survives a session."""


@dataclass(slots=True)
class AddingRelays:
    """The relays by id, the one that came first in front."""

    known: dict[PeerId, AddingRelay] = field(default_factory=dict)

    # ---- queries

    def get(self, peer: PeerId) -> AddingRelay | None:
        """The relay with this id, while it offers to add."""
        relay = self.known.get(peer)
        return relay if relay and relay.here else None

    def here(self) -> list[PeerId]:
        """The relays that offer to add, sorted."""
        return sorted(peer for peer, relay in self.known.items() if relay.here)

    def has_room(self, peer: PeerId) -> bool:
        """Whether this relay may offer: it is known, or another one can be forgotten."""
        return peer in self.known or len(self.known) < OFFERS_MAX or self._oldest_gone() is not None

    def next_lapse_ms(self) -> int | None:
        """The time at which the first lease runs out; None without relays."""
        return min((self.known[peer].lease_until_ms for peer in self.here()), default=None)

    def lapsed(self, now_ms: int) -> list[PeerId]:
        """The relays whose lease has run out, sorted."""
        return [peer for peer in self.here() if self.known[peer].lease_until_ms <= now_ms]

    # ---- changes

    def put(self, peer: PeerId, name: str, instance: int, lease_until_ms: int) -> None:
        """A relay that has room offers to add, with a new session."""
        if relay := self.known.get(peer):
            relay.name, relay.instance, relay.here = name, instance, True
            relay.lease_until_ms = lease_until_ms
            return
        if len(self.known) >= OFFERS_MAX and (oldest := self._oldest_gone()) is not None:
            del self.known[oldest]
        self.known[peer] = AddingRelay(name, instance, lease_until_ms)

    def renew(self, peer: PeerId, lease_until_ms: int) -> None:
        """A relay is alive; does nothing for another node."""
        if relay := self.get(peer):
            relay.lease_until_ms = lease_until_ms

    def restart(self, lease_until_ms: int) -> None:
        """The coordinator is back: every relay has a whole lease to open its session again."""
        for peer in self.here():
            self.known[peer].lease_until_ms = lease_until_ms

    def end(self, peer: PeerId) -> None:
        """The session of a relay has ended."""
        if relay := self.get(peer):
            relay.here = False

    def _oldest_gone(self) -> PeerId | None:
        return next((peer for peer, relay in self.known.items() if not relay.here), None)
