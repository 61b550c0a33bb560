"""Gossip Adam between its two ends: one exact mean each step, or no exchange at all."""

from collections.abc import Callable

import pytest
import torch

from node.gossip_adam.adam import AdamSettings
from node.gossip_adam.wire import WIRE_FORMATS, WireFormat
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.mixing.topologies import Edge, Topology
from protocol.mixing.weights import shares
from tests.support.mixer import Mixer

NUMBERS = 1000
LR, DECAY = 0.01, 0.1

Holds = Callable[[Edge], bool]


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(count)]


def start() -> torch.Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))


def target(peer: PeerId) -> torch.Tensor:
    """Each node's own optimum; the mean of all gradients is zero at their mean."""
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(100 + int(peer, 16)))


def mixers(members: list[PeerId], wire: WireFormat = "float32") -> dict[PeerId, Mixer]:
    settings = AdamSettings(betas=(0.9, 0.95))
    return {member: Mixer(start(), settings, wire, DECAY) for member in members}


def begin(nodes: dict[PeerId, Mixer], edges: tuple[Edge, ...]) -> dict[Edge, torch.Tensor]:
    """Messages by (sender, receiver)."""
    sent = {}
    for member, node in nodes.items():
        around = [a if b == member else b for a, b in edges if member in (a, b)]
        for peer, message in node.begin(around).items():
            sent[member, peer] = message.clone()
    return sent


def finish(
    nodes: dict[PeerId, Mixer],
    edges: tuple[Edge, ...],
    sent: dict[Edge, torch.Tensor],
    holds: Holds = lambda edge: True,
) -> None:
    committed = [edge for edge in edges if holds(edge)]
    for member, node in nodes.items():
        row = shares(member, edges, committed)
        node.finish(row, {peer: sent[peer, member] for peer in row})


def mean(nodes: dict[PeerId, Mixer]) -> torch.Tensor:
    return torch.stack([node.values for node in nodes.values()]).double().mean(0)


def spread(nodes: dict[PeerId, Mixer]) -> float:
    values = torch.stack([node.values for node in nodes.values()])
    return float((values - values.mean(0)).norm())


def test_without_edges_it_is_adamw_on_each_node() -> None:
    (member,) = peers(1)
    node = mixers([member])[member]
    theirs = torch.nn.Parameter(start())
    adam = torch.optim.AdamW([theirs], lr=LR, betas=(0.9, 0.95), weight_decay=DECAY)
    for _ in range(30):
        gradient = node.values - target(member)
        theirs.grad = theirs.detach() - target(member)
        node.begin([])
        node.finish({}, {})
        node.step(gradient, LR)
        adam.step()
    torch.testing.assert_close(node.values, theirs.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_on_the_complete_graph_one_step_of_equal_moments_is_adamw_on_the_mean_gradient(
    count: int,
) -> None:
    """A direction is linear in the gradient only where second moments are equal: nodes with the
    same gradient, and then the mean of all is AdamW's own step.
    """
    members = peers(count)
    nodes, edges = mixers(members), Topology("complete").edges(0, members)
    theirs = torch.nn.Parameter(start())
    adam = torch.optim.AdamW([theirs], lr=LR, betas=(0.9, 0.95), weight_decay=DECAY)
    for _ in range(20):
        sent = begin(nodes, edges)
        before = mean(nodes)
        gradient = (theirs.detach() - target(members[0])).clone()
        finish(nodes, edges, sent)
        torch.testing.assert_close(mean(nodes), before, rtol=0, atol=1e-7)
        for node in nodes.values():
            node.step(gradient, LR)
        theirs.grad = gradient
        adam.step()
        torch.testing.assert_close(mean(nodes).float(), theirs.detach(), rtol=0, atol=1e-5)


def test_one_step_of_the_complete_graph_is_adamw_on_the_mean_gradient() -> None:
    """Unlike gradients, and beta1 = 0 and a large epsilon, so that the direction is linear: the
    mean of the nodes steps as one AdamW on the mean gradient, to float rounding.
    """
    members, epsilon = peers(4), 1e6
    settings = AdamSettings(betas=(0.0, 0.95), epsilon=epsilon)
    nodes = {member: Mixer(start(), settings, "float32", DECAY / epsilon) for member in members}
    edges = Topology("complete").edges(0, members)
    theirs = torch.nn.Parameter(start())
    adam = torch.optim.AdamW(
        [theirs], lr=LR * epsilon, betas=(0.0, 0.95), eps=epsilon, weight_decay=DECAY / epsilon
    )
    sent = begin(nodes, edges)
    gradients = {member: nodes[member].values - target(member) for member in members}
    finish(nodes, edges, sent)
    for member, node in nodes.items():
        node.step(gradients[member], LR * epsilon)
    theirs.grad = torch.stack(list(gradients.values())).mean(0)
    adam.step()
    finish(nodes, edges, begin(nodes, edges))
    for node in nodes.values():
        torch.testing.assert_close(node.values, theirs.detach(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("wire", WIRE_FORMATS)
@pytest.mark.parametrize("name", ["one-peer-exponential", "complete", "random-matching"])
def test_the_mean_moves_by_steps_alone_while_edges_fail(name: str, wire: WireFormat) -> None:
    members = peers(5)
    nodes, topology = mixers(members, wire), Topology(name)  # type: ignore[arg-type]
    chance = torch.Generator().manual_seed(7)
    for round in range(12):
        edges = topology.edges(round, members)
        lost = {edge for edge in edges if torch.rand((), generator=chance) < 0.3}
        sent, before = begin(nodes, edges), mean(nodes)
        finish(nodes, edges, sent, lambda edge, lost=lost: edge not in lost)  # type: ignore[misc]
        torch.testing.assert_close(mean(nodes), before, rtol=0, atol=3e-7)
        for member, node in nodes.items():
            node.step(node.values - target(member), LR)


@pytest.mark.parametrize("wire", WIRE_FORMATS)
def test_distance_contracts_when_nobody_trains(wire: WireFormat) -> None:
    members = peers(5)
    nodes = mixers(members, wire)
    for member, node in nodes.items():
        node.values += target(member)
    first, kept = spread(nodes), mean(nodes)
    for round in range(40):
        edges = Topology("one-peer-exponential").edges(round, members)
        finish(nodes, edges, begin(nodes, edges))
    assert spread(nodes) < first * 2e-3
    torch.testing.assert_close(mean(nodes), kept, rtol=0, atol=1e-6)


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_nodes_together_average_the_noise_that_a_node_alone_is_left_with(wire: WireFormat) -> None:
    members, chance = peers(4), torch.Generator().manual_seed(3)
    optimum = start()

    def noisy(values: torch.Tensor) -> torch.Tensor:
        return values - optimum + 3 * torch.randn(NUMBERS, generator=chance)

    def error_of(values: torch.Tensor) -> float:
        return float((values - optimum).square().mean().sqrt())

    nodes = {member: Mixer(start(), AdamSettings(), wire) for member in members}
    alone = Mixer(start(), AdamSettings())
    for round in range(300):
        edges = Topology("one-peer-exponential").edges(round, members)
        sent = begin(nodes, edges)
        gradients = {member: noisy(node.values) for member, node in nodes.items()}
        finish(nodes, edges, sent)
        for member, node in nodes.items():
            node.step(gradients[member], LR)
        alone.step(noisy(alone.values), LR)
    errors = [error_of(node.values) for node in nodes.values()]
    assert max(errors) < 0.75 * error_of(alone.values)


def test_a_node_that_comes_back_after_many_rounds_mixes_the_same_difference() -> None:
    members = peers(3)
    nodes, pair = mixers(members, "int8"), ((members[0], members[1]),)
    for round in range(10):
        edges = Topology("complete").edges(0, members) if round in (0, 9) else pair
        sent, before = begin(nodes, edges), mean(nodes)
        finish(nodes, edges, sent)
        torch.testing.assert_close(mean(nodes), before, rtol=0, atol=3e-7)
        for member, node in nodes.items():
            node.step(node.values - target(member), LR)


def test_the_order_of_a_round_is_held() -> None:
    first, second = peers(2)
    node = mixers([first])[first]
    with pytest.raises(LocalProtocolError, match="a mix that was begun"):
        node.finish({}, {})
    node.begin([second])
    with pytest.raises(LocalProtocolError, match="finished first"):
        node.begin([second])
    with pytest.raises(LocalProtocolError, match="before the step"):
        node.step(start(), LR)
    with pytest.raises(LocalProtocolError, match="expected messages of"):
        node.finish({}, {PeerId("f" * 32): torch.zeros(4000, dtype=torch.uint8)})


def test_a_broken_message_changes_nothing_and_the_edge_may_still_fail() -> None:
    first, second = peers(2)
    node = mixers([first], "int8")[first]
    node.begin([second])
    before = node.values.clone()
    with pytest.raises(RemoteProtocolError, match="bytes"):
        node.finish({second: 0.5}, {second: torch.zeros(3, dtype=torch.uint8)})
    node.finish({}, {})
    assert torch.equal(node.values, before)


def test_neighbours_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.gossip_adam.edges.NEIGHBOURS_MAX", 2)
    node = mixers(peers(1))[peers(1)[0]]
    with pytest.raises(LocalProtocolError, match="at most 2 neighbours"):
        node.begin(peers(4)[1:])
