"""Faults, drawn from the world's chance, one after the other, and each put right after a while.

Each fault is one method and is counted by its name. A fault is not made if it would destroy what
the design does not promise to keep: the last copy of a payload, the honesty of a whole quorum.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from protocol.ids import Digest
from tests.simulation.coordinator_party import SimulatedCoordinator
from tests.simulation.network import Network, Weather
from tests.simulation.node_party import SimulatedNode
from tests.simulation.party import Party
from tests.simulation.poison import Poisoner
from tests.simulation.relay_party import SimulatedRelay
from tests.simulation.session import COORDINATOR, Call
from tests.simulation.world import World

STEPS_MAX = 400
"""Longest delay of a kill, in actions of its process: it may come at any step."""

WEATHERS = (
    Weather((1, 12), 0.0, 0.0, 0.0, 0.0),
    Weather((2, 60), 0.01, 0.01, 0.005, 0.0005),
    Weather((5, 400), 0.05, 0.05, 0.02, 0.003),
    Weather((1, 900), 0.10, 0.10, 0.05, 0.01),
)


class Faults:
    """Makes faults until `end`."""

    KINDS = (
        *(["kill"] * 4),
        "interrupt",
        *(["lose_disk"] * 2),
        "swap_disks",
        "speak_twice",
        "power_cut",
        "kill_in_write",
        "stop",
        "leave",
        "slow",
        "fill_disk",
        "rot",
        "cut_off",
        "cut_from_coordinator",
        "one_way",
        "partition",
        "break_sessions",
        "weather",
        *(["flip"] * 2),
        *(["kill_coordinator"] * 2),
        "kill_coordinator_in_write",
        "stop_coordinator",
        "fill_journal",
        "poison",
    )

    RELAY_KINDS = (
        *(["kill"] * 3),
        "interrupt",
        "power_cut",
        "kill_in_write",
        "stop",
        "leave",
        *(["dawdle"] * 2),
        "fill_disk",
        "rot",
        "cut_off",
        "cut_from_coordinator",
        "one_way",
    )
    """What happens to relays, beside that."""

    def __init__(
        self,
        world: World,
        network: Network,
        coordinator: SimulatedCoordinator,
        nodes: list[SimulatedNode],
        relays: Sequence[SimulatedRelay] = (),
    ):
        self.world, self.network, self.coordinator, self.nodes = world, network, coordinator, nodes
        self.relays = relays
        self.parties: list[Party] = [*nodes, *relays]
        self.counts: Counter[str] = Counter()
        self.over = False
        rounds = coordinator.spec.rounds
        round_ms = rounds.compute_ms + rounds.publish_ms + rounds.exchange_ms
        self.pause_ms = round_ms * world.random.choice([1, 2, 4]) // 2
        self._flips = 0
        self.poisoned: set[Digest] = set()
        """Digests that were announced and belong to no payload."""
        self._quiet: Callable[[], bool] = lambda: True

    def begin(self) -> None:
        """Plan the first fault of nodes, and of relays."""
        self._plan(0, 2 * self.pause_ms, self.KINDS, self.nodes)
        if self.relays:
            self._plan(0, 2 * self.pause_ms, self.RELAY_KINDS, self.relays)

    def _plan(
        self, least_ms: int, most_ms: int, kinds: Sequence[str], parties: Sequence[Party]
    ) -> None:
        pause_ms = self.world.random.randint(least_ms, most_ms)
        self.world.after(pause_ms, lambda: self._next(kinds, parties))

    def _next(self, kinds: Sequence[str], parties: Sequence[Party]) -> None:
        if self.over:
            return
        chance = self.world.random
        kind = chance.choice(kinds)
        if self._quiet() and getattr(self, f"_{kind}")(chance.choice(parties)) is not False:
            self.counts[kind if parties is self.nodes else f"relay_{kind}"] += 1
        self._plan(self.pause_ms // 4, 2 * self.pause_ms, kinds, parties)

    def end(self) -> None:
        """Put everything right, and make no more faults."""
        self.over = True
        self.world.say("the faults end")
        self.network.weather = WEATHERS[0]
        self.network.cut.clear()
        self.coordinator.journal.full, self.coordinator.journal.steps_left = False, None
        for node in self.nodes:
            node.replica and setattr(node.replica.trainee, "sample_ms", node.sample_ms)
        for relay in self.relays:
            relay.late_ms = 0
        for party in self.parties:
            party.disk.full, party.disk.steps_left = False, None
            if party.process:
                party.process.steps_left = None
                party.process.resume(self.world)
        if self.coordinator.process:
            self.coordinator.process.steps_left = None
            self.coordinator.process.resume(self.world)
        self.coordinator.start()
        for party in self.parties:
            party.start()

    def _later(self, action: Any, least_ms: int = 50, most_ms: int = 8_000) -> None:
        """Put a fault right after a while: mostly a short one."""
        span = most_ms - least_ms
        self.world.after(least_ms + span * self.world.random.random() ** 3, action)

    # ---- processes

    def _kill(self, node: Party) -> bool | None:
        if not node.runs:
            return False
        assert node.process is not None
        self.world.say("node %s is to die", node.peer[:8])
        node.process.steps_left = self.world.random.randint(0, STEPS_MAX)
        return None

    def _interrupt(self, node: Party) -> bool | None:
        if not node.runs:
            return False
        self._later(node.interrupt, 0, 1_000)
        return None

    def _kill_in_write(self, node: Party) -> bool | None:
        if not node.runs:
            return False
        node.disk.steps_left = self.world.random.randint(0, 12)
        return None

    def _power_cut(self, node: Party) -> bool | None:
        if not node.runs:
            return False
        node.kill()
        cut = node.disk.cut_power(self._held_beside(node))
        self.world.say("node %s lost power: %s files cut", node.peer[:8], cut)
        return None

    def _lose_disk(self, node: SimulatedNode) -> bool | None:
        if self.coordinator.rounds.state.end.finished or not self._recoverable_without(node):
            return False
        node.lose_disk()
        return None

    def _swap_disks(self, node: SimulatedNode) -> bool:
        """A backup of the disk is made now and restored some rounds later, which is the fault."""
        node.copy_disk()
        self._later(lambda: self._restore(node), 1_000, 16_000)
        return False

    def _restore(self, node: SimulatedNode) -> None:
        if not self.over and self._recoverable_without(node):
            self.counts["swap_disks"] += 1
            node.swap_disks()

    def _speak_twice(self, node: SimulatedNode) -> bool | None:
        """A process with a copy of a node's directory announces another payload of its round."""
        undecided = self.coordinator.rounds.state.undecided
        said = next((each for flight in undecided for each in flight.payloads()), None)
        if said is None:
            return False
        self.world.say("node %s speaks twice of round %s", said.peer[:8], said.round)
        another = Digest(hashlib.sha256(said.digest).digest())
        self.coordinator.post(replace(said, digest=another))
        return None

    def _stop(self, node: Party) -> bool | None:
        process = node.process
        if process is None or process.state != "runs":
            return False
        self.world.say("node %s is stopped", node.peer[:8])
        process.stop()
        self._later(lambda: process.resume(self.world))
        return None

    def _leave(self, node: Party) -> bool | None:
        if not node.at_work:
            return False
        self.world.say("node %s is asked to leave", node.peer[:8])
        node.leave()
        self._later(node.start, 1_000)
        return None

    def _slow(self, node: SimulatedNode) -> bool | None:
        if node.replica is None:
            return False
        replica = node.replica
        replica.trainee.sample_ms = node.sample_ms * self.world.random.choice([5, 20])
        self._later(lambda: setattr(replica.trainee, "sample_ms", node.sample_ms))
        return None

    def _dawdle(self, relay: SimulatedRelay) -> None:
        """A relay that has much else to do: it is late with its sums."""
        self.world.say("relay %s dawdles", relay.peer[:8])
        relay.late_ms = self.world.random.choice([300, 2_000, 8_000])
        self._later(lambda: setattr(relay, "late_ms", 0))

    # ---- disks

    def _fill_disk(self, node: Party) -> None:
        self.world.say("the disk of node %s is full", node.peer[:8])
        disk = node.disk
        disk.full = True
        self._later(lambda: setattr(disk, "full", False))

    def _rot(self, node: Party) -> bool | None:
        name = node.disk.rot("/payloads", self._held_beside(node))
        self.world.say("a file of node %s rots: %s", node.peer[:8], name)
        return None if name else False

    def _flip(self, node: SimulatedNode) -> bool | None:
        """A machine that computes wrong, once: an honest majority is at work beside it, and nothing
        else goes wrong until it has resynced.
        """
        ready = [member.peer for member in self.coordinator.rounds.members.ready()]
        replica = node.replica
        if (
            self._flips
            or replica is None
            or node.peer not in ready
            or len(ready) < 4
            or len(ready) < len(self.nodes)
        ):
            return False
        self._flips += 1
        self.network.weather = WEATHERS[0]
        self._quiet = lambda: not replica.faulty or node.replica is not replica
        self.world.say("a bit of node %s flips", node.peer[:8])
        replica.flip(16_000)
        return None

    # ---- the network

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        self.network.cut.update(pairs)
        self._later(lambda: self.network.cut.difference_update(pairs), 100, 12_000)

    def _cut_off(self, node: Party) -> None:
        others = [COORDINATOR, *(other.peer for other in self.parties if other is not node)]
        self.world.say("node %s is cut off", node.peer[:8])
        self._cut([pair for other in others for pair in ((node.peer, other), (other, node.peer))])

    def _cut_from_coordinator(self, node: Party) -> None:
        self.world.say("node %s is cut from the coordinator", node.peer[:8])
        self._cut([(node.peer, COORDINATOR), (COORDINATOR, node.peer)])

    def _one_way(self, node: Party) -> None:
        others = [COORDINATOR, *(other.peer for other in self.parties if other is not node)]
        other = self.world.random.choice(others)
        pair = self.world.random.choice([(node.peer, other), (other, node.peer)])
        self.world.say("nothing gets from %s to %s", pair[0][:8], pair[1][:8])
        self._cut([pair])

    def _partition(self, node: SimulatedNode) -> None:
        """All parties fall into two groups; each still sees the coordinator."""
        peers = [other.peer for other in self.parties]
        group = {peer for peer in peers if self.world.random.random() < 0.5}
        self.world.say("a partition into %s and %s", len(group), len(peers) - len(group))
        self._cut([(a, b) for a in peers for b in peers if (a in group) != (b in group)])

    def _break_sessions(self, node: SimulatedNode) -> None:
        switchboard = self.coordinator.switchboard
        for call in list(switchboard.calls):
            if isinstance(call, Call) and self.world.random.random() < 0.5:
                call.break_()

    def _weather(self, node: SimulatedNode) -> None:
        self.network.weather = self.world.random.choice(WEATHERS)
        self.world.say("the weather is %s", self.network.weather)

    # ---- the coordinator

    def _kill_coordinator(self, node: SimulatedNode) -> bool | None:
        process = self.coordinator.process
        if process is None or process.state == "dead":
            return False
        self.world.say("the coordinator is to die")
        process.steps_left = self.world.random.randint(0, STEPS_MAX)
        return None

    def _kill_coordinator_in_write(self, node: SimulatedNode) -> bool | None:
        if not self.coordinator.runs:
            return False
        self.coordinator.journal.steps_left = self.world.random.randint(0, 6)
        return None

    def _fill_journal(self, node: SimulatedNode) -> bool | None:
        if not self.coordinator.runs:
            return False
        journal = self.coordinator.journal
        self.world.say("the journal's disk is full")
        journal.full = True
        self._later(lambda: setattr(journal, "full", False), 50, 3_000)
        return None

    def _stop_coordinator(self, node: SimulatedNode) -> bool | None:
        process = self.coordinator.process
        if process is None or process.state != "runs":
            return False
        self.world.say("the coordinator is stopped")
        process.stop()
        self._later(lambda: process.resume(self.world))
        return None

    # ---- hostile members

    def _poison(self, node: SimulatedNode) -> bool | None:
        """One key announces a digest of nothing, others say that they hold it, and all leave."""
        poisoner = Poisoner(self.world, self.coordinator, node.place.auditor, len(self.poisoned))
        if self.over or not poisoner.may_join():
            return False
        self.poisoned.add(poisoner.digest)
        poisoner.join()
        return None

    # ---- the limits of what a fault may destroy

    def _held_beside(self, node: Party) -> Callable[[str], bool]:
        """A test whether a payload, by its file's name, is whole on the disk of another node."""
        others = [other.disk for other in self.nodes if other is not node]
        return lambda name: any(disk.holds(name) for disk in others)

    def _recoverable_without(self, node: SimulatedNode) -> bool:
        """Whether all payloads and results of ranges that are or may become committed are whole on
        the other disks.
        """
        commits = self.coordinator.journal.commits_by_round.values()
        needed = {each.digest for commit in commits for each in (*commit.entries, *commit.needed)}
        needed |= {
            signed.digest
            for undecided in self.coordinator.rounds.state.undecided
            if undecided.sums and undecided.sums.adding
            for signed in undecided.sums.adding.signed()
        }
        needed -= self.poisoned | {digest for _, digest in self.coordinator.referee.voids}
        # A payload on its way to the coordinator may be committed too; without a copy, if no other
        # member is left then.
        undecided = self.coordinator.rounds.state.decided_round + 1
        needed |= {
            digest for digest, round in node.place.auditor.payloads.items() if round >= undecided
        }
        return all(map(self._held_beside(node), (digest.hex() for digest in needed)))
