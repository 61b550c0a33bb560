"""One run as its rules see it: the run file, and the state that the events have made."""

from functools import cached_property

from coordinator.machine.state.member import WorkRecord
from coordinator.machine.state.membership import Membership
from coordinator.machine.state.run_state import RunState, new_state
from coordinator.machine.state.sums.relays import AddingRelays
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId
from protocol.planner.parameters import size_of
from protocol.runfile import RunSpec


class Run:
    """The run file and the state of one run. Its rules read it, and change the state."""

    def __init__(self, spec: RunSpec, run_id: RunId) -> None:
        self.spec, self.run_id = spec, run_id
        self.install(new_state(spec, run_id))

    @cached_property
    def chunks(self) -> int | None:
        """Chunks of the model; None for one whose layout is not written down."""
        try:
            return size_of(self.spec.model).chunks
        except SettingsError:
            return None

    def install(self, state: RunState) -> None:
        """Take this state in place of the one that was there."""
        self.state = state
        self.members = Membership(self.spec.membership, state.members)

    @property
    def relays(self) -> AddingRelays:
        """The relays that offer to add."""
        return self.state.relays

    def may_add(self, relay: PeerId) -> bool:
        """Whether a relay may be drawn: it is no member, and in a run that is open to the public it
        is named by the operator.
        """
        standing, auditors = self.members.standing, self.state.verdicts.auditors
        if self.members.get(relay) or relay in standing.demoted:
            return False
        return not self.members.public or relay in standing.vouched or relay in auditors

    def is_here(self, peer: PeerId) -> bool:
        """Whether the node is a member, or a relay that offers to add."""
        return self.members.get(peer) is not None or self.relays.get(peer) is not None

    def work_of(self, peer: PeerId) -> WorkRecord | None:
        """The record of a member, or of a relay that offers to add or did."""
        if member := self.members.get(peer):
            return member.work
        relay = self.relays.known.get(peer)
        return relay.work if relay else None

    def renew(self, peer: PeerId, now_ms: int) -> None:
        """Renew the lease of a member or relay; does nothing for another node."""
        self.members.renew(peer, now_ms)
        self.relays.renew(peer, now_ms + self.members.lease_ms)

    def drawn_for(self, purpose: bytes, round: int) -> list[PeerId]:
        """Members with standing that can come to the state after a round, in the order in which
        they are drawn for a purpose.
        """
        able = [
            member.peer
            for member in self.members.ready()
            if self.members.decides(member.peer) and member.round <= round
        ]
        return self.members.standing.drawn_first(round, able, purpose)
