"""An auditor that the operator has named, beside a simulated run: it has the state that the log
makes after each round, some time after the first honest node, and says so.
"""

from coordinator.machine.events.acts import Appoint, first_digest, ordered
from coordinator.machine.events.inputs import Audited, Event
from protocol.ids import PeerId, RunId
from tests.simulation.auditor import Auditor
from tests.simulation.coordinator_party import SimulatedCoordinator
from tests.simulation.world import World

LOOK_MS = 700
"""Pause between two looks at the log: part of a round."""

KEY = PeerId("a" * 32)


def appointment(run_id: RunId) -> Event:
    """The act that names it, the first one of the run."""
    return ordered(Appoint(KEY), 1_700_000_000, first_digest(run_id))


class NamedAuditor:
    """Speaks to the sequencer as a session does; its replay is the judge's book of honest
    states.
    """

    def __init__(self, world: World, coordinator: SimulatedCoordinator, judge: Auditor) -> None:
        self._world, self._coordinator, self._judge = world, coordinator, judge
        self._said: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Begin, for good."""
        self._world.after(LOOK_MS, self._look)

    def _look(self) -> None:
        for (round, voids), digest in list(self._judge.digests.items()):
            if (round, voids) not in self._said:
                self._said.add((round, voids))
                self._tell(Audited(KEY, round, digest, b"", voids))
        self._world.after(LOOK_MS, self._look)

    def _tell(self, event: Event) -> None:
        process = self._coordinator.process
        if process is not None and process.state == "runs":
            self._world.call_soon(self._post, event, context=process.context)

    def _post(self, event: Event) -> None:
        if sequencer := self._coordinator.sequencer:
            sequencer.post(event)
