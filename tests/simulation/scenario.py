"""One seed, one history: a run with faults first and then none, and what must hold in the end."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from node.links.frames import PART_BYTES_MAX
from protocol.clock import longest_slot
from protocol.runfile import RunSpec
from tests.simulation.auditor import Auditor
from tests.simulation.checkers import Violation, require
from tests.simulation.coordinator_party import SimulatedCoordinator
from tests.simulation.faults import WEATHERS, Faults
from tests.simulation.machinery import installed
from tests.simulation.network import Network
from tests.simulation.node_party import TOP_K, SimulatedNode
from tests.simulation.party import Place
from tests.simulation.relay_party import relays_of
from tests.simulation.session import Switchboard
from tests.simulation.world import World

ROUNDS = 60
FAULTY_ROUNDS = 40
"""Rounds of a seed in all, and those among them in which faults are made."""

PROGRESS_ROUNDS = 10
"""Rounds after the last fault within which one must be committed: by then the leases of dead nodes
have run out, and the others are back."""

PATIENCE_MS = 12_000
"""Time that the longest of the product's own pauses may add: backoffs, retries, a silent line."""

FAREWELLS = 0.3
"""Share of the scenarios that end with every node asked to leave, of those whose run goes on."""

NODES_MAX = 16
MANY = 0.06
"""Share of the seeds with eight nodes or more; a small run shows most faults, and is cheap."""

ENDING = 0.3
"""Share of the seeds whose run comes to its end."""

SAVE_EVERY = (1, 1, 3, 6)
"""Rounds from one save of a node's state to the next."""

LINES_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a seed."""

    seed: int
    nodes: int
    rounds: int
    commits: int
    actions: int
    restarts: int
    faults: Counter[str] = field(default_factory=Counter)
    fingerprint: str = ""
    """Hash of the whole history."""


LOCAL_SAMPLES = (1, 3, 4, 16)
"""Samples of a local step in runs with them: from many steps in a round to a part of one."""


SUMS = (2, 3, 3, 5)
"""Authors from which on summers add, in runs with them."""


def spec_of(
    chance: random.Random, nodes: int, local_samples: int, *, local_steps: bool, sums: int = 0
) -> RunSpec:
    """A run file of short rounds; one that this many nodes can fulfil."""
    ending = chance.random() < ENDING
    short_log = chance.random() < 0.25
    overlap = chance.randint(0, 1)
    algorithm: dict[str, object] = {"name": "demo", "top_k": TOP_K}
    if overlap or local_steps:
        algorithm |= {"name": "local_steps", "local_samples": local_samples}
    return RunSpec.model_validate(
        {
            "algorithm": algorithm,
            "schedule": {
                "steps": chance.randint(15, 45) if ending else 400,
                # of no account, but the run's id depends on it, and every choice by hash
                "learning_rate": 0.004,
                "warmup_steps": 5,
            },
            "rounds": {
                "compute_ms": chance.choice([300, 600, 1500]),
                "publish_ms": chance.choice([200, 500]),
                "exchange_ms": chance.choice([500, 1000]),
                "overlap": overlap,
                "quorum": chance.randint(1, max(1, nodes // 2)),
                "copies_min": chance.choice([0, 1, 1, 1, 2]),
                "batch_samples_max": chance.choice([5, 32, 64]),
                "share_samples_first": 4,
                "sums": sums,
            },
            "membership": {
                "start_members": chance.randint(1, nodes),
                "lease_ms": chance.choice([3000, 6000]),
                "heartbeat_ms": 500,
                "strikes_to_mute": chance.randint(1, 4),
                "neighbours": chance.choice([2, 4]),
            },
            "retention": {
                "log_rounds": 12 if short_log else 1000,
                "snapshot_every": chance.choice([4, 8]) if short_log else chance.choice([5, 20]),
            },
        }
    )


class Scenario:
    """The parties of one seed. Runs whose rounds overlap have local steps, the others votes or, if
    asked for, `local_steps` as well; with `sums` all have, and summers, some of which are relays.
    """

    node: type[SimulatedNode] = SimulatedNode

    def __init__(self, seed: int, *, local_steps: bool = False, sums: bool = False) -> None:
        self.seed = seed
        self.world = World(seed)
        chance = self.world.random
        many = chance.random() < MANY
        count = (
            chance.randint(8, NODES_MAX)
            if many
            else min(NODES_MAX, 2 + int(chance.expovariate(0.5)))
        )
        samples = LOCAL_SAMPLES[seed % len(LOCAL_SAMPLES)]
        least = SUMS[seed % len(SUMS)] if sums else 0
        self.spec = spec_of(chance, count, samples, local_steps=local_steps or sums, sums=least)
        self.network = Network(self.world, chance.choice(WEATHERS))
        self.switchboard = Switchboard(self.network)
        self.error: Exception | None = None
        self.coordinator = SimulatedCoordinator(
            self.world, self.switchboard, self.spec, self._failed
        )
        journal = self.coordinator.journal
        self.auditor = Auditor(
            journal.commits_by_round.get,
            journal.commit_before,
            lambda round, digest: (round, digest) in self.coordinator.referee.voids,
            lambda: journal.opened_until,
            lambda round: journal.signed[round].trained,
        )
        self.save_every = chance.choice(SAVE_EVERY)
        self.part_bytes = chance.choice([PART_BYTES_MAX, PART_BYTES_MAX, PART_BYTES_MAX, 48])
        place = Place(
            self.world,
            self.network,
            self.switchboard,
            self.auditor,
            self._failed,
            self.save_every,
            self.part_bytes,
        )
        rounds = self.spec.rounds
        in_time_ms = (rounds.compute_ms + rounds.publish_ms) // 4
        self.nodes = []
        for number in range(count):  # as many as the quorum are fast enough, others may be hopeless
            hopeless = [6 * in_time_ms] if number >= rounds.quorum and chance.random() < 0.3 else []
            self.nodes.append(
                self.node(
                    place,
                    chance.choice([in_time_ms // 20, in_time_ms // 6, in_time_ms // 2, *hopeless]),
                )
            )
        self.relays = relays_of(seed, place) if sums else []
        self.faults = Faults(self.world, self.network, self.coordinator, self.nodes, self.relays)

    def run(self) -> Outcome:
        """Faults, then progress. A `Violation` carries the seed and the end of the history."""
        with installed(self.world, self.part_bytes):
            try:
                self._play()
            except Exception as error:
                raise Violation(f"seed {self.seed}: {error}\n{self._report()}") from error
            finally:
                self.world.end()
        referee = self.coordinator.referee
        return Outcome(
            self.seed,
            len(self.nodes),
            len(referee.words),
            len(referee.commits),
            self.world.actions,
            self.coordinator.restarts,
            self.faults.counts + Counter(self.network.counts),
            self.world.fingerprint(),
        )

    def _report(self) -> str:
        machine = self.coordinator.rounds
        members = [(member.peer[:8], member.state, member.connected) for member in machine.members]
        flights = [flight.round for flight in machine.state.undecided]
        lines = [
            *self.world.history(LINES_SHOWN),
            *(party.in_words() for party in (*self.nodes, *self.relays)),
            f"coordinator decided round {machine.state.decided_round}, in flight {flights}",
            f"members {members}",
            f"{self.spec.rounds}",
            f"{self.spec.membership}",
            f"{self.spec.retention}",
            f"save_every={self.save_every} part_bytes={self.part_bytes}",
        ]
        return "\n".join(lines)

    def _failed(self, who: str, error: Exception) -> None:
        self.error = self.error or error
        self.world.say("%s fails: %s", who[:8], repr(error))

    # ---- the course

    def _play(self) -> None:
        self.coordinator.start()
        for party in (*self.nodes, *self.relays):
            self.world.after(self.world.random.randint(0, 3000), party.start)
        self.faults.begin()
        self.round_ms = longest_slot(self.spec.rounds).milliseconds
        words = self.coordinator.referee.words
        self._until(
            lambda: len(words) >= FAULTY_ROUNDS or self._finished, FAULTY_ROUNDS * self.round_ms
        )
        self.faults.end()
        self._progress()
        self._until(lambda: len(words) >= ROUNDS or self._finished, ROUNDS * self.round_ms)
        require(
            len(words) >= ROUNDS or self._finished,
            "no steady progress: round",
            len(words),
            "of",
            ROUNDS,
        )
        self._agreement()
        if not self._finished and self.world.random.random() < FAREWELLS:
            self._farewell()

    @property
    def _finished(self) -> bool:
        return self.coordinator.rounds.state.end.concluded

    def _until(self, done: Callable[[], object], limit_ms: int) -> None:
        until_ms = self.world.now_ms + limit_ms
        self.world.run_until(lambda: self.error is not None or bool(done()), until_ms)
        if self.error is not None:
            raise self.error

    def _progress(self) -> None:
        commits = self.coordinator.referee.commits
        before = len(commits)
        limit_ms = self.spec.membership.lease_ms + PATIENCE_MS + PROGRESS_ROUNDS * self.round_ms
        self._until(lambda: len(commits) > before or self._finished, limit_ms)
        require(
            len(commits) > before or self._finished,
            "no commit in",
            PROGRESS_ROUNDS,
            "rounds after the faults",
        )

    def _agreement(self) -> None:
        """Every node gets to one state, which holds the samples that count. A node that was away
        when the run was concluded finds no other node that could give it the rest.
        """
        limit_ms = self.spec.membership.lease_ms + PATIENCE_MS + PROGRESS_ROUNDS * self.round_ms
        commits = self.coordinator.referee.commits
        bound = [
            node
            for node in self.nodes
            if not self._finished or node.peer in self.coordinator.journal.let_go
        ]
        if self._finished:
            self._until(lambda: all(node.ended for node in bound), limit_ms)
            lost = [node.peer for node in bound if not node.ended]
            require(not lost, "did not hear of the end:", lost)
        target = commits[-1].round if commits else -1
        voids = self.coordinator.referee.voids  # a further one may come meanwhile

        def there(node: SimulatedNode) -> bool:
            return node.head_round >= target and node.void_count == len(voids)

        self._until(lambda: all(map(there, bound)), limit_ms)
        behind = [node.peer for node in bound if not there(node)]
        require(
            not behind, "still without the commit of round", target, "after the faults:", behind
        )
        front = max(self.nodes, key=lambda node: (node.head_round, node.peer))
        applied = [commit for commit in commits if commit.round <= front.head_round]
        self.auditor.judge_parameters(front.applied_positions, applied)

    def _farewell(self) -> None:
        """One node has lost its disk and begins anew when all are asked to leave: none waits for a
        node that is gone.
        """
        late = self.world.random.choice(self.nodes)
        late.lose_disk()
        self._until(lambda: late.catches_up, self.spec.membership.lease_ms + PATIENCE_MS)
        for node in self.nodes:
            self.world.after(0, node.leave)
        self._until(
            lambda: not any(node.runs for node in self.nodes), 4 * self.round_ms + PATIENCE_MS
        )
        still = [node.peer for node in self.nodes if node.runs]
        require(not still, "still there after they were asked to leave:", still)
