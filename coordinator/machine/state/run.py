"""One run as its rules see it: the run file, and the state that the events have made."""

from functools import cached_property

from coordinator.machine.state.membership import Membership
from coordinator.machine.state.run_state import RunState, new_state
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
