"""One seed, one history: a run with faults first and then none, and what must hold in the end."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.rounds import Rounds
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from tests.simulation.actors import RUN, SimulatedCoordinator, SimulatedNode
from tests.simulation.checkers import Violation, require
from tests.simulation.world import CALM, STORM, Network, World

FAULTS_MS = 60_000
"""How long the weather is bad and processes die: about twenty rounds."""

PROGRESS_ROUNDS = 8
"""Rounds after the last fault within which one must be committed: leases of the dead run out, nodes find back."""

STEPS_AFTER = 10
"""Steps that the run still has to make when the faults end, at least."""

LOG_LINES_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to."""

    log: list[str]
    commits: int
    skipped: int
    restarts: int


def spec_of(chance: random.Random, nodes: int) -> RunSpec:
    """A run file of short rounds; one that this many nodes can fulfil."""
    return RunSpec.model_validate(
        {
            "schedule": {"steps": 400, "warmup_steps": 5},
            "rounds": {
                "compute_ms": chance.choice([500, 1000, 2000]),
                "publish_ms": chance.choice([200, 500]),
                "exchange_ms": chance.choice([500, 1000]),
                "overlap": chance.randint(0, 1),
                "quorum": chance.randint(1, max(1, nodes // 2)),
                "copies_min": chance.randint(0, 3),
                "batch_samples_max": chance.choice([5, 32, 1000]),
                "share_samples_first": 4,
            },
            "membership": {
                "start_members": chance.randint(1, nodes),
                "lease_ms": chance.choice([3000, 6000]),
                "heartbeat_ms": 500,
                "strikes_to_mute": chance.randint(1, 4),
                "warmup_rounds": chance.randint(0, 2),
            },
        }
    )


class Scenario:
    """The parties of one seed and the plan of its faults."""

    def __init__(self, seed: int, machine: Callable[[RunSpec], Rounds] | None = None) -> None:
        self.seed = seed
        self.world = World(seed)
        self.network = Network(self.world, STORM)
        chance = self.world.random
        count = chance.randint(2, 8)
        self.spec = spec_of(chance, count)
        make = machine or (lambda spec: Rounds(spec, RUN))
        self.coordinator = SimulatedCoordinator(self.world, self.network, self.spec, lambda: make(self.spec))
        in_time_ms = (self.spec.rounds.compute_ms + self.spec.rounds.publish_ms) // 2
        self.nodes = []
        for number in range(1, count + 1):  # as many as the quorum are fast enough, others may be hopeless
            speed = chance.choice([5, 50, in_time_ms, *([3 * in_time_ms] if number > self.spec.rounds.quorum else [])])
            self.nodes.append(SimulatedNode(PeerId(f"{number:032x}"), speed, self.coordinator))
        self.restarts = 0
        self._calm_ms = self.world.now_ms + FAULTS_MS

    def run(self) -> Outcome:
        """Faults, then progress. A `Violation` carries the seed and the end of the history."""
        try:
            for node in self.nodes:
                self.world.after(self.world.random.randint(0, 3000), node.live)
            self._next_fault()
            self.world.run_until(lambda: False, self._calm_ms)
            self._clear_up()
            self._progress()
        except Exception as error:
            shown = "\n".join(self.world.log[-LOG_LINES_SHOWN:])
            raise Violation(
                f"seed {self.seed}: {error}\n{self.spec.rounds}\n{self.spec.membership}\n{shown}"
            ) from error
        machine = self.coordinator.machine
        return Outcome(self.world.log, machine.committed, machine.skipped, self.restarts)

    # ---- faults

    def _next_fault(self) -> None:
        chance = self.world.random
        self.world.after(chance.randint(200, 4000), self._fault)

    def _fault(self) -> None:
        if self.world.now_ms >= self._calm_ms:
            return
        chance = self.world.random
        node = chance.choice(self.nodes)
        match chance.choice(["die", "die", "leave", "cut", "crash"]):
            case "die":
                others = [other for other in self.nodes if other is not node]
                disk_too = chance.random() < 0.3 and all(self._keeps_the_log(other) for other in others)
                node.die(disk_too=disk_too)
                self.world.after(chance.randint(100, 10_000), node.live)
            case "leave":
                node.leave()
                self.world.after(chance.randint(100, 10_000), node.live)
            case "cut":
                self.world.say(f"node {node.peer[-2:]} is cut off")
                self.network.cut_off.add(node.peer)
                self.world.after(chance.randint(100, 10_000), lambda: self.network.cut_off.discard(node.peer))
            case "crash":
                self.restarts += 1
                self.coordinator.crash()
                self.world.after(chance.randint(1, 8000), self.coordinator.start)
        self._next_fault()

    def _keeps_the_log(self, node: SimulatedNode) -> bool:
        """A disk may only be lost while the others have all payloads: what copies_min does not cover is not tested."""
        needed = {entry.digest for commit in self.coordinator.referee.commits for entry in commit.entries}
        return needed <= node.disk.payloads and not self.coordinator.machine.in_flight

    def _clear_up(self) -> None:
        self.world.say("the faults end")
        self.network.weather = CALM
        self.network.cut_off.clear()
        self.coordinator.start()
        for node in self.nodes:
            node.live()

    # ---- progress

    def _progress(self) -> None:
        rounds, membership, referee = self.spec.rounds, self.spec.membership, self.coordinator.referee
        round_ms = rounds.compute_ms + rounds.publish_ms + rounds.exchange_ms
        before = len(referee.commits)
        limit_ms = self.world.now_ms + membership.lease_ms + PROGRESS_ROUNDS * round_ms
        self.world.run_until(lambda: len(referee.commits) > before, limit_ms)
        require(len(referee.commits) > before, "no commit within", PROGRESS_ROUNDS, "rounds after the faults")
        limit_ms = self.world.now_ms + 4 * STEPS_AFTER * round_ms
        self.world.run_until(lambda: len(referee.commits) >= before + STEPS_AFTER, limit_ms)
        require(len(referee.commits) >= before + STEPS_AFTER, "no steady progress after the faults")
        limit_ms = self.world.now_ms + membership.lease_ms + PROGRESS_ROUNDS * round_ms
        self.world.run_until(lambda: len(self.coordinator.machine.members.ready()) == len(self.nodes), limit_ms)
        absent = {node.peer for node in self.nodes} - {
            member.peer for member in self.coordinator.machine.members.ready()
        }
        require(not absent, "still no ready members after the faults:", absent)
        behind = [node.peer for node in self.nodes if len(node.disk.applied) <= before]
        require(not behind, "still without the first commit after the faults:", behind)
        for node in self.nodes:
            applied = node.disk.applied
            require(applied == referee.commits[: len(applied)], node.peer, "applied another history")
