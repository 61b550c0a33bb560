"""An operator who is busy: each kind of act once, at moments of its own chance, on a coordinator
that is killed in the middle of rounds and comes back on its journal.

What it does, and when, depends on the seed alone, so a run with hostile members and the same run
without them have the same operator. An order that a dead coordinator may not have taken is given
again, as a person would.
"""

import random
from collections.abc import Callable, Sequence

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act
from coordinator.machine.events.inputs import RestartAsked
from protocol.ids import Digest, PeerId
from tests.simulation.coordinator_party import SimulatedCoordinator
from tests.simulation.node_party import SimulatedNode
from tests.simulation.world import World

KINDS = (
    "pause",
    "finish",
    "extend",
    "rate",
    "announce",
    "evict_honest",
    "evict_hostile",
    "ban",
    "admit",
    "restart",
    *(["kill"] * 2),
    "kill_in_write",
)
"""Acts and deaths of one run; each happens once, a kill twice."""

RETRY_MS = 700
"""Time after which an order that was not answered is given again."""

HOLD_MS = (200, 1_200)
"""Least and most time for which a run is paused or ended."""

CLOSED_MS = 2_500
"""Time for which a ban or a rule of admission holds."""

DOWN_MS = (50, 1_000)
"""Least and most time for which a coordinator is down."""

RETURN_MS = (0, 1_000, 2_500)
"""Moments after an extension at which nodes that have ended are started again."""

STEPS_MAX = 300
"""Longest delay of a kill, in actions of the process."""

AWAY_S = 1
"""Time for which an honest node that was evicted is kept away."""


class Operator:
    """Gives orders to one coordinator over `span_ms`."""

    def __init__(
        self,
        world: World,
        coordinator: SimulatedCoordinator,
        nodes: Sequence[SimulatedNode],
        hostile: Sequence[PeerId],
        seed: int,
    ) -> None:
        self._world, self._coordinator, self._nodes = world, coordinator, nodes
        self._chance = random.Random(f"operator {seed}")
        self._hostile = hostile[self._chance.randrange(12) % len(hostile)] if hostile else None
        coordinator.down_ms = lambda: self._chance.uniform(*DOWN_MS)

    def begin(self, span_ms: int) -> None:
        """Plan all acts, one in each part of the span."""
        kinds = [*KINDS]
        self._chance.shuffle(kinds)
        part_ms = span_ms / len(kinds)
        for place, kind in enumerate(kinds):
            at_ms = (place + self._chance.random() / 2) * part_ms
            hold_ms = self._chance.randint(*HOLD_MS)
            number = self._chance.randrange(STEPS_MAX)
            act: Callable[[int, int], None] = getattr(self, f"_{kind}")
            self._world.after(at_ms, lambda act=act, h=hold_ms, n=number: act(h, n))

    def _give(self, act: Act, then: Callable[[], None] = lambda: None) -> None:
        """Give an order until it was answered."""
        answered = False

        def done() -> None:
            nonlocal answered
            if not answered:
                answered = True
                then()

        def attempt() -> None:
            if not answered:
                self._coordinator.order(act, done)
                self._world.after(RETRY_MS, attempt)

        attempt()

    def _later(self, milliseconds: int, act: Act, then: Callable[[], None] = lambda: None) -> None:
        self._world.after(milliseconds, lambda: self._give(act, then))

    # ---- acts

    def _pause(self, hold_ms: int, number: int) -> None:
        self._give(acts.Pause("a new disk"))
        self._later(hold_ms, acts.Resume())

    def _finish(self, hold_ms: int, number: int) -> None:
        """The run ends, and is extended: nodes that were let go are started again."""
        again = acts.Extend(5000)
        self._give(acts.Finish("enough"), lambda: self._later(hold_ms, again, self._start_nodes))

    def _start_nodes(self) -> None:
        """Some of them may not have ended yet."""
        for later_ms in RETURN_MS:
            for node in self._nodes:
                self._world.after(later_ms, node.start)

    def _extend(self, hold_ms: int, number: int) -> None:
        self._give(acts.Extend(1 + number))

    def _rate(self, hold_ms: int, number: int) -> None:
        self._give(acts.Rate(0.001 * (1 + number)))

    def _announce(self, hold_ms: int, number: int) -> None:
        self._give(acts.Announce("the disk is new"))

    def _evict_honest(self, hold_ms: int, number: int) -> None:
        node = self._nodes[number % len(self._nodes)]
        self._give(acts.Evict(node.peer, "by mistake", AWAY_S))

    def _evict_hostile(self, hold_ms: int, number: int) -> None:
        if self._hostile:
            self._give(acts.Evict(self._hostile, "it is hostile", AWAY_S))

    def _ban(self, hold_ms: int, number: int) -> None:
        if self._hostile:
            self._give(acts.Ban(self._hostile, "it is hostile"))
            self._later(CLOSED_MS, acts.Unban(self._hostile))

    def _admit(self, hold_ms: int, number: int) -> None:
        """For some time no new key is admitted; members stay."""
        self._give(acts.Admit("list"))
        self._later(CLOSED_MS, acts.Admit("open"))

    def _restart(self, hold_ms: int, number: int) -> None:
        """The run goes on from the newest snapshot on record, whatever members have."""
        recorded = [
            row
            for row in self._coordinator.journal.digests.values()
            if row.snapshot_sha256 and row.reports
        ]
        if recorded and self._coordinator.sequencer is not None:
            newest = max(recorded, key=lambda row: row.round)
            sha256 = Digest(newest.snapshot_sha256)
            self._coordinator.post(RestartAsked(sha256, newest.state_digest, forced=True))

    # ---- deaths

    def _kill(self, hold_ms: int, number: int) -> None:
        process = self._coordinator.process
        if process is not None and process.state != "dead":
            self._world.say("the coordinator is to die")
            process.steps_left = number

    def _kill_in_write(self, hold_ms: int, number: int) -> None:
        if self._coordinator.runs:
            self._coordinator.journal.steps_left = number % 6
