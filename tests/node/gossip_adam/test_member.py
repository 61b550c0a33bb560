"""Members that are killed at any instant, over a network that loses messages: a seeded world.

Faults first, then progress. The checkers judge the whole history: what all members hold together is
what they began with and what steps moved; both ends of an edge have the same estimates; and once
nobody trains, they come together.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
import torch

from node.gossip_adam.adam import AdamSettings
from node.gossip_adam.member import (
    Committed,
    Effect,
    Event,
    Fetch,
    Fetched,
    Holds,
    Keep,
    Member,
    RoundBegun,
    Save,
    Saved,
    State,
)
from node.gossip_adam.mixer import Mixer
from node.gossip_adam.wire import WireFormat
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.mixing.topologies import Topology, TopologyName
from protocol.mixing.weights import committed_edges

NUMBERS = 300


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(count)]


def start() -> torch.Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))


@dataclass
class Disk:
    """What survives a kill."""

    state: State | None = None
    moved: torch.Tensor = field(default_factory=lambda: torch.zeros(NUMBERS, dtype=torch.float64))
    kept: dict[tuple[int, PeerId], torch.Tensor] = field(default_factory=dict)


class Node:
    """A process: its memory, in front of its disk."""

    def __init__(self, own: PeerId, wire: WireFormat, topology: Topology, disk: Disk) -> None:
        self.disk = disk
        self.member = Member(own, Mixer(start(), AdamSettings(), wire), topology)
        self.moved = disk.moved.clone()
        self.events: deque[Event] = deque()
        self.effects: deque[Effect] = deque()
        self.fetches: list[Fetch] = []

    @property
    def values(self) -> torch.Tensor:
        return self.member.mixer.values

    def step(self, gradient: torch.Tensor) -> None:
        before = self.values.double()
        self.member.mixer.step(gradient, 0.01)
        self.moved += self.values.double() - before


class World:
    """Members, their disks, and a coordinator that forgets nothing."""

    def __init__(self, seed: int, wire: WireFormat, topology: TopologyName, count: int = 5) -> None:
        self.chance = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.wire, self.topology = wire, Topology(topology)
        self.disks = {own: Disk() for own in peers(count)}
        self.nodes: dict[PeerId, Node] = {}
        self.decisions: list[Committed] = []
        self.opened: RoundBegun | None = None
        self.holdings: dict[PeerId, set[PeerId]] = {}
        self.faulty, self.training = True, True
        self.kills = self.edges = 0
        for own in self.disks:
            self.begin_process(own)

    def happens(self, part: float) -> bool:
        return self.faulty and self.chance.random() < part

    def begin_process(self, own: PeerId) -> None:
        disk = self.disks[own]
        node = self.nodes[own] = Node(own, self.wire, self.topology, disk)
        told = -1
        if disk.state is not None:
            told = disk.state["decided"]
            node.effects.extend(node.member.restore(disk.state, disk.kept))
        node.events.extend(self.decisions[told + 1 :])
        mixing = node.member.round
        if self.opened and own in self.opened.members and mixing != self.opened.round:
            node.events.append(self.opened)

    def kill(self, own: PeerId) -> None:
        del self.nodes[own]
        self.kills += 1

    def act(self, own: PeerId, effect: Effect) -> None:
        node = self.nodes[own]
        match effect:
            case Save(round):
                node.disk.state, node.disk.moved = node.member.state(), node.moved.clone()
                node.member.handle(Saved(round))
            case Keep(fetched):
                node.disk.kept[fetched.round, fetched.peer] = fetched.message.clone()
            case Holds(round, peer):
                if self.opened and round == self.opened.round and not self.happens(0.05):
                    self.holdings.setdefault(own, set()).add(peer)
            case Fetch():
                node.fetches.append(effect)

    def turn(self, own: PeerId) -> None:
        """One thing happens at a node: others go on between two effects, and kills come there."""
        node = self.nodes[own]
        if self.happens(0.02):
            self.kill(own)
        elif node.effects:
            self.act(own, node.effects.popleft())
        elif node.events and (not node.fetches or self.chance.random() < 0.5):
            was = node.member.round
            node.effects.extend(node.member.handle(node.events.popleft()))
            if was is not None and node.member.round is None:
                self.train(node)
        elif node.fetches:
            self.fetch(own, node.fetches.pop(self.chance.randrange(len(node.fetches))))

    def train(self, node: Node) -> None:
        if self.training and not self.happens(0.1):
            node.step(torch.randn(NUMBERS, generator=self.noise))

    def fetch(self, own: PeerId, wanted: Fetch) -> None:
        there = self.nodes.get(wanted.peer)
        message = there.member.message_for(wanted.round, own) if there else None
        if message is None or self.happens(0.2):
            if wanted.round == self.nodes[own].member.round and self.opened:
                self.nodes[own].fetches.append(wanted)  # it asks again
            return
        fetched = Fetched(wanted.round, wanted.peer, message.clone())
        self.nodes[own].effects.extend(self.nodes[own].member.handle(fetched))

    def round(self) -> None:
        """Open a round, let things happen, decide it."""
        for own in self.disks:
            if own not in self.nodes and not self.happens(0.5):
                self.begin_process(own)
        self.holdings = {}
        self.opened = RoundBegun(len(self.decisions), tuple(sorted(self.nodes)))
        for node in self.nodes.values():
            node.events.append(self.opened)
        self.let_happen(100 if self.faulty else 250)
        planned = self.topology.edges(self.opened.round, self.opened.members)
        edges = () if self.happens(0.1) else committed_edges(planned, self.holdings)
        self.edges += len(edges)
        self.decisions.append(decision := Committed(self.opened.round, edges))
        self.opened = None
        for node in self.nodes.values():
            node.events.append(decision)
        self.let_happen(15)

    def let_happen(self, turns: int) -> None:
        for _ in range(turns):
            if self.nodes:
                self.turn(self.chance.choice(sorted(self.nodes)))
            if self.happens(0.02):
                gone = sorted(set(self.disks).difference(self.nodes))
                if gone:
                    self.begin_process(self.chance.choice(gone))

    def settle(self) -> None:
        """No more faults: everybody comes back and hears all decisions."""
        self.faulty = False
        for own in self.disks:
            if own not in self.nodes:
                self.begin_process(own)
        while any(node.events or node.effects for node in self.nodes.values()):
            self.let_happen(10)

    def values(self) -> torch.Tensor:
        return torch.stack([node.values for node in self.nodes.values()])

    def spread(self) -> float:
        return float((self.values() - self.values().mean(0)).norm())

    def judge(self) -> None:
        """What all hold is what they began with and what steps moved; edges are settled alike."""
        moved = torch.stack([node.moved for node in self.nodes.values()]).sum(0)
        expected = len(self.nodes) * start().double() + moved
        torch.testing.assert_close(self.values().double().sum(0), expected, rtol=0, atol=2e-5)
        for own, node in self.nodes.items():
            for peer, end in node.member.state()["mixer"]["edges"]["ends"].items():
                other = self.nodes[peer].member.state()["mixer"]["edges"]["ends"].get(own)
                if "mine" in end and other is not None:
                    assert torch.equal(end["mine"], other["theirs"]), (own, peer)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("wire", "topology"), [("int8", "one-peer-exponential"), ("float16", "complete")]
)
def test_kills_at_any_instant_and_losses_keep_the_mean_and_every_edge_whole(
    seed: int, wire: WireFormat, topology: TopologyName
) -> None:
    world = World(seed, wire, topology)
    for _ in range(25):
        world.round()
    world.settle()
    world.judge()
    assert world.kills > 5
    assert world.edges > 5
    before, world.training = world.spread(), False
    for _ in range(15):
        world.round()
    world.settle()
    world.judge()
    assert world.spread() < 0.05 * before  # float16 has a floor: its own rounding


def test_a_member_serves_the_same_bytes_after_a_kill() -> None:
    a, b = peers(2)
    member = Member(a, Mixer(start(), AdamSettings(), "int8"), Topology("complete"))
    member.mixer.values += 1
    assert member.handle(RoundBegun(0, (a, b))) == [Save(0), Fetch(0, b)]
    again = Member(a, Mixer(start(), AdamSettings(), "int8"), Topology("complete"))
    assert again.restore(member.state(), {}) == [Fetch(0, b)]
    assert member.message_for(0, b) is None  # not yet on disk
    member.handle(Saved(0))
    first, second = member.message_for(0, b), again.message_for(0, b)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert again.message_for(1, b) is None


def test_a_broken_message_is_as_if_it_had_never_come() -> None:
    a, b = peers(2)
    member = Member(a, Mixer(start(), AdamSettings()), Topology("complete"))
    member.handle(RoundBegun(0, (a, b)))
    with pytest.raises(RemoteProtocolError, match="bytes"):
        member.handle(Fetched(0, b, torch.zeros(5, dtype=torch.uint8)))
    assert member.handle(Committed(0, ())) == []
    assert torch.equal(member.mixer.values, start())


def test_a_commit_of_an_edge_that_was_never_held_is_refused() -> None:
    a, b = peers(2)
    member = Member(a, Mixer(start(), AdamSettings()), Topology("complete"))
    with pytest.raises(RemoteProtocolError, match="not mixing round 0"):
        member.handle(Committed(0, ((a, b),)))
    member.handle(RoundBegun(0, (a, b)))
    with pytest.raises(RemoteProtocolError, match="messages that are held"):
        member.handle(Committed(0, ((a, b),)))


def test_a_round_is_decided_before_the_next_opens_and_old_ones_are_passed_over() -> None:
    a, b = peers(2)
    member = Member(a, Mixer(start(), AdamSettings()), Topology("complete"))
    member.handle(RoundBegun(3, (a, b)))
    with pytest.raises(LocalProtocolError, match="round 3 to be decided"):
        member.handle(RoundBegun(4, (a, b)))
    member.handle(Committed(3, ()))
    assert member.handle(RoundBegun(3, (a, b))) == []
    assert member.handle(Committed(3, ((a, b),))) == []
    assert member.handle(Fetched(3, b, torch.zeros(1, dtype=torch.uint8))) == []
