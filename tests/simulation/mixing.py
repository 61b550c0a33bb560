"""A run whose nodes mix parameters: the coordinator's real machine and the real replicas.

Under faults that a seed draws payloads and receipts are lost, nodes lag, are killed at any instant
and come back with a state that may be rounds old. Nobody trains, so:

    the mean of all parameters stays as it was, to float rounding   (no edge is half mixed)
    the distance from it falls once the faults end
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coordinator.machine.events.effects import SkipRound
from coordinator.machine.events.inputs import Announced, Applied, Holding, LinksMeasured
from node.replica.factory import replica_for
from node.replica.gossip_adam import GossipAdamReplica
from node.replica.position import Position
from protocol.codec.commits import Commit, genesis_digest
from protocol.codec.payload import Header
from protocol.ids import Digest, PeerId, sha256
from protocol.mixing.link_report import MeasuredLink
from protocol.runfile import AlgorithmSpec
from tests.coordinator.machine.driver import PEERS, RUN, Driver, of_kind
from tests.simulation.checkers import Violation
from tests.support.tiny import tiny_spec

ROUNDS_FAULTY, ROUNDS_QUIET = 14, 6

MIXING = {"exchange": "float32", "mean_every": 1000}

UPDATE = 0.01
"""Size of an update, as nodes that train would report it."""

MEAN_ERROR_MAX = 1e-5
"""Largest change of a number of the mean: float32 rounding over all rounds."""


@dataclass
class Node:
    """One node: memory, and a disk that a kill leaves as it is."""

    peer: PeerId
    replica: GossipAdamReplica
    path: Path
    log: dict[Digest, bytes] = field(default_factory=dict)
    next_round: int = 0
    alive: bool = True

    @property
    def vector(self) -> npt.NDArray[np.float64]:
        """All parameters."""
        tensors = (self.replica.committed[name] for name in sorted(self.replica.committed))
        return np.concatenate([tensor.numpy().ravel().astype(np.float64) for tensor in tensors])

    def save(self) -> None:
        """Write the state to disk."""
        position = Position(self.next_round, genesis_digest(RUN), -1)
        self.replica.save(self.path, position)

    def start_again(self) -> None:
        """A new process: what was not on disk is gone."""
        self.replica.reset()
        position = self.replica.load(self.path)
        assert position is not None
        self.next_round, self.alive = position.next_round, True

    def make_payload(self, round: int, *, mean: bool = False) -> bytes:
        """The parameters, as a payload in this node's log."""
        extraction = self.replica.extract(round, mean=mean)
        payload, _ = self.replica.encoded(Header(RUN, round, self.peer), extraction)
        return payload

    def take(self, decision: tuple[int, Commit | None]) -> None:
        """Apply the commit of a round, or pass over its skip."""
        round, commit = decision
        if commit is not None:
            needed = commit.needed_by(self.peer)
            for entry in needed:
                if entry.digest not in self.log:
                    raise Violation(f"{self.peer} lacks a payload of round {round} that it held")
            payloads = [
                self.log[entry.digest] if entry in needed else b"" for entry in commit.entries
            ]
            self.replica.apply(commit, payloads)
        self.next_round = round + 1


class MixingRun:
    """A whole run of one seed. `houses`: members with fast links among them, which each measures
    once it has joined. `deaf`: a holder and an author whose payloads never reach it.
    """

    def __init__(
        self,
        seed: int,
        directory: Path,
        topology: str,
        houses: Collection[Collection[PeerId]] = (),
        deaf: tuple[PeerId, PeerId] | None = None,
        **mixing: Any,
    ) -> None:
        self._random = Random(seed)
        algorithm = {"name": "gossip-adam", "mixing": {**MIXING, "topology": topology, **mixing}}
        rounds = {"payload_bytes_max": 10**7, "quorum": 1}
        members = {"members_max": 16, "strikes_to_mute": 1000}
        self._driver = Driver(*PEERS, algorithm=algorithm, rounds=rounds, membership=members)
        self.nodes = [self._node(peer, directory, algorithm) for peer in PEERS]
        self._reports = "critical" in mixing
        self.decisions: list[tuple[int, Commit | None]] = []
        self.committed_edges = 0
        self.near_edges = 0
        """Committed edges within a house."""
        self._houses, self._deaf = houses, deaf
        for peer in PEERS:
            self._measure_links(peer)
        self.kills = 0

    def _node(self, peer: PeerId, directory: Path, algorithm: dict[str, Any]) -> Node:
        spec = tiny_spec().model_copy(update={"algorithm": AlgorithmSpec.model_validate(algorithm)})
        replica = replica_for(spec, RUN, torch.device("cpu"), 1, peer)
        assert isinstance(replica, GossipAdamReplica)
        generator = torch.Generator().manual_seed(self._random.randrange(2**31))
        for tensor in replica.committed.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) / 10)
        replica.extract(0)
        replica.digest = replica.apply(_nothing(), [])
        node = Node(peer, replica, directory / f"{peer}.safetensors")
        node.save()
        return node

    def check(self) -> None:
        """Run it; `Violation` for a promise that does not hold."""
        before = self._mean()
        self.make_faults()
        self._compare(before)
        apart = self._distance()
        for _ in range(ROUNDS_QUIET):
            self._round(faulty=False)
        self._compare(before)
        if self._distance() > apart / 4 + 1e-6:
            raise Violation(f"members were {apart} apart, and are {self._distance()} apart")

    def make_faults(self) -> None:
        """Rounds with faults; then all nodes are back and have every decision."""
        for _ in range(ROUNDS_FAULTY):
            self._round(faulty=True)
        self._all_back()

    @property
    def only_mixed(self) -> int:
        """Rounds that only mixed because the members were too far apart."""
        return self._driver.machine.state.consensus.only_mixed

    # ---- a round

    def _round(self, *, faulty: bool) -> None:
        if not self._driver.machine.state.undecided:
            self._all_back()
        round = self._driver.machine.state.undecided[-1].round
        victims = self._victims() if faulty else iter(())
        doomed, instant = next(victims, (None, 0))
        for node in self.nodes:
            if node.alive and self._is_asked(node, round) and self._follows(node, faulty=faulty):
                payload = node.make_payload(round, mean=self._takes_mean(round))
                saves = self._random.random() < 0.4
                if node is doomed and instant == 0:
                    continue  # killed before anybody hears of it
                node.log[sha256(payload)] = payload
                self._announce(node, round, payload)
                if saves:
                    node.save()
        if doomed and instant < 2:
            self._kill(doomed)
        self._spread(round, faulty=faulty, doomed=doomed if instant == 2 else None)
        while self._driver.machine.undecided(round):
            self._driver.wait(250)
        self._note()
        if doomed and instant == 3 and doomed.alive:
            self._kill(doomed)
        for node in self.nodes:
            if not node.alive and self._random.random() < 0.6:
                self._come_back(node)

    def _victims(self) -> Iterator[tuple[Node, int]]:
        alive = [node for node in self.nodes if node.alive]
        if alive and self._random.random() < 0.5:
            yield self._random.choice(alive), self._random.randrange(4)

    def _is_asked(self, node: Node, round: int) -> bool:
        undecided = self._driver.machine.undecided(round)
        return undecided is not None and node.peer in undecided.silent

    def _take(self, node: Node, decision: tuple[int, Commit | None]) -> None:
        """Apply a decision; a node that has missed a mean fetches what it lacks."""
        commit = decision[1]
        if commit and commit.mix and commit.mix.mean:
            for entry in commit.entries:
                held = (other.log.get(entry.digest) for other in self.nodes)
                node.log[entry.digest] = next(each for each in held if each is not None)
        node.take(decision)
        if commit and self._reports and node.alive:
            projection = tuple(node.replica.own_report()["projection"])
            digest = node.replica.digest
            self._driver.tell(Applied(node.peer, commit.round, digest, b"", 0, projection, UPDATE))

    def _takes_mean(self, round: int) -> bool:
        undecided = self._driver.machine.undecided(round)
        return undecided is not None and undecided.mean

    def _follows(self, node: Node, *, faulty: bool) -> bool:
        """Whether the node has taken all decisions, as it must before its next payload."""
        if faulty and self._random.random() < 0.15:
            return False
        for decision in self.decisions[node.next_round :]:
            self._take(node, decision)
        return True

    def _announce(self, node: Node, round: int, payload: bytes) -> None:
        undecided = self._driver.machine.undecided(round)
        samples = int(bool(undecided and undecided.assignments[node.peer].shares))
        said = Announced(node.peer, round, sha256(payload), len(payload), samples, 1000, 2.0)
        self._driver.tell(said)

    def _spread(self, round: int, *, faulty: bool, doomed: Node | None) -> None:
        undecided = self._driver.machine.undecided(round)
        if undecided is None:
            return
        by_peer = {node.peer: node for node in self.nodes}
        pairs = [pair for edge in undecided.edges for pair in (edge, edge[::-1])]
        self._random.shuffle(pairs)
        for number, (holder, author) in enumerate(pairs):
            said = undecided.announced.get(author)
            if doomed and number == len(pairs) // 2 and doomed.alive:
                self._kill(doomed)
            if said is None or not by_peer[holder].alive or not by_peer[author].alive:
                continue
            if (holder, author) == self._deaf or (faulty and self._random.random() < 0.1):
                continue  # the payload is lost
            digest = Digest(said.digest)
            by_peer[holder].log[digest] = by_peer[author].log[digest]
            if not faulty or self._random.random() < 0.9:
                self._driver.tell(Holding(holder, round, (digest,), (author,)))

    def _note(self) -> None:
        commits = {each.commit.round: each.commit for each in self._driver.commits}
        skipped = {each.round for each in of_kind(SkipRound, self._driver.effects)}
        for decided in range(len(self.decisions), self._driver.machine.state.decided_round + 1):
            assert (decided in commits) is not (decided in skipped)
            commit = commits.get(decided)
            if commit and commit.mix:
                self.committed_edges += len(commit.mix.edges)
                authors = [entry.author for entry in commit.entries]
                ends = ({authors[first], authors[second]} for first, second, _ in commit.mix.edges)
                self.near_edges += sum(
                    any(both <= set(each) for each in self._houses) for both in ends
                )
            self.decisions.append((decided, commit))

    def _kill(self, node: Node) -> None:
        node.alive = False
        self.kills += 1
        self._driver.part(node.peer)

    def _come_back(self, node: Node) -> None:
        node.start_again()
        for decision in self.decisions[node.next_round :]:
            self._take(node, decision)
        self._driver.join(node.peer)
        self._measure_links(node.peer)

    def _measure_links(self, peer: PeerId) -> None:
        near = next((house for house in self._houses if peer in house), ())
        if near:
            fast, slow = (2, 10**9), (60, 10**7)
            others = (other for other in PEERS if other != peer)
            links = (MeasuredLink(other, *(fast if other in near else slow)) for other in others)
            self._driver.tell(LinksMeasured(peer, tuple(links)))

    def _all_back(self) -> None:
        for node in self.nodes:
            if not node.alive:
                self._come_back(node)
            for decision in self.decisions[node.next_round :]:
                self._take(node, decision)

    # ---- judged

    def _mean(self) -> npt.NDArray[np.float64]:
        return np.mean([node.vector for node in self.nodes], axis=0)

    def _compare(self, before: npt.NDArray[np.float64]) -> None:
        self._all_back()
        if (moved := float(np.abs(self._mean() - before).max())) > MEAN_ERROR_MAX:
            raise Violation(f"the mean moved by {moved}: an edge is half mixed")

    def _distance(self) -> float:
        mean = self._mean()
        return max(float(np.linalg.norm(node.vector - mean)) for node in self.nodes)


def _nothing() -> Commit:
    return Commit(RUN, 0, 0, (), 0, 0, genesis_digest(RUN))
