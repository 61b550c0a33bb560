"""Hostile members of a simulated run: they have a payload committed that does not exist."""

from collections.abc import Callable

from coordinator.machine.events.inputs import Announced, Event, Holding, Joined, Left, Ready
from protocol.ids import PeerId, sha256
from tests.simulation.auditor import Auditor
from tests.simulation.coordinator_party import SimulatedCoordinator
from tests.simulation.world import World

LOOK_MS = 40
"""Pause between two looks at the run."""

STAY_MS = 20_000
"""Time after which they leave in any case."""

HOLDERS = 2
"""As many as the run asks for copies."""


class Poisoner:
    """Three keys of one person. They speak to the sequencer as sessions do, and serve nobody."""

    def __init__(
        self, world: World, coordinator: SimulatedCoordinator, auditor: Auditor, number: int
    ) -> None:
        self._world, self._coordinator, self._auditor = world, coordinator, auditor
        self.digest = sha256(b"nothing %d" % number)
        names = (sha256(b"poisoner %d %d" % (number, each)).hex() for each in range(1 + HOLDERS))
        self._author, *self._holders = (PeerId(name[:32]) for name in names)
        self._left_ms = 0

    def may_join(self) -> bool:
        """Whether the run stands at a round whose state is known, and goes on."""
        state = self._coordinator.rounds.state
        return self._coordinator.runs and not state.end.finished and self._state_digest is not None

    def join(self) -> None:
        """Become members, announce when asked, leave when it is committed."""
        self._world.say("%s comes to poison the run", self._author)
        self._left_ms = self._world.now_ms + STAY_MS
        for peer in (self._author, *self._holders):
            self._tell(Joined(peer, (f"{peer[:8]}:1",), "nobody", "", ""))
        self._look()

    @property
    def _state_digest(self) -> int | None:
        state = self._coordinator.rounds.state
        voids = state.voids.expected(state.head_round)
        return self._auditor.digests.get((state.head_round, voids))

    def _look(self) -> None:
        rounds = self._coordinator.rounds
        member = rounds.members.get(self._author)
        committed = self.digest in {
            entry.digest for commit in self._coordinator.referee.commits for entry in commit.entries
        }
        if committed or self._world.now_ms >= self._left_ms:
            self._leave()
            return
        if member and member.state != "ready" and (digest := self._state_digest) is not None:
            round = rounds.state.head_round
            voids = rounds.state.voids.expected(round)
            self._tell(Ready(self._author, round, digest, voids=voids))
        for undecided in rounds.state.undecided:
            asked = undecided.assignments.get(self._author)
            if asked and not asked.muted and self._author not in undecided.announced:
                round = undecided.round
                self._tell(Announced(self._author, round, self.digest, 100, 1, 1, 2.0))
                for peer in self._holders:
                    self._tell(Holding(peer, round, (self.digest,)))
        self._world.after(LOOK_MS, self._look)

    def _leave(self) -> None:
        for peer in (self._author, *self._holders):
            self._tell(Left(peer, "goodbye"))

    def _tell(self, event: Event) -> None:
        process, post = self._coordinator.process, self._post
        if process is not None and process.state == "runs":
            say: Callable[[Event], None] = post
            self._world.call_soon(say, event, context=process.context)

    def _post(self, event: Event) -> None:
        if sequencer := self._coordinator.sequencer:
            sequencer.post(event)
