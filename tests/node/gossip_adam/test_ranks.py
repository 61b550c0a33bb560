"""Three processes over gloo, an odd number: one launch, several stories, judged here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.functional import cross_entropy

from node.gossip_adam.adam import AdamSettings
from node.gossip_adam.optimizer import GossipAdam
from protocol.errors import DivergedError
from protocol.ids import PeerId
from protocol.mixing.topologies import TOPOLOGY_NAMES, Topology
from protocol.mixing.weights import shares
from tests.support.mixer import Mixer
from tests.support.ranks import join_group

pytestmark = pytest.mark.slow

RANKS = 3
LR, DECAY = 0.01, 0.1
SHAPES = ((6, 4), (6,), (2, 6))
STEPS = 7

Story = Callable[[int], Any]


def parameters() -> list[torch.nn.Parameter]:
    chance = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in SHAPES]


def target(rank: int) -> torch.Tensor:
    return torch.randn(6 * 4 + 6 + 2 * 6, generator=torch.Generator().manual_seed(50 + rank))


def vector(params: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(params).detach().clone()


def gradients(params: list[torch.nn.Parameter], rank: int) -> None:
    loss = (torch.nn.utils.parameters_to_vector(params) - target(rank)).square().sum() / 2
    for parameter in params:
        parameter.grad = None
    loss.backward()


def training(rank: int) -> list[torch.Tensor]:
    params = parameters()
    optimizer = GossipAdam(
        params, lr=LR, betas=(0.9, 0.95), weight_decay=DECAY, accumulate=2, wire="int8"
    )
    seen = []
    for _ in range(STEPS):
        gradients(params, rank)
        optimizer.step()
        seen.append(vector(params))
    optimizer.finish()
    return [*seen, vector(params)]


def mixing_alone(rank: int) -> dict[str, list[torch.Tensor]]:
    """Unequal starts, a rate of zero: the parameters by topology."""
    ended = {}
    for name in TOPOLOGY_NAMES:
        params = parameters()
        params[0].data += rank
        optimizer = GossipAdam(params, lr=0.0, topology=name)
        first = vector(params)
        for _ in range(12):
            gradients(params, rank)
            optimizer.step()
        optimizer.finish()
        ended[name] = [first, vector(params)]
    return ended


def tied_weights(rank: int) -> dict[str, Any]:
    """An embedding that is the output layer too."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(16, 8)
    output = torch.nn.Linear(8, 16, bias=False)
    output.weight = embedding.weight
    model = torch.nn.Sequential(embedding, torch.nn.Linear(8, 8), torch.nn.Tanh(), output)
    optimizer = GossipAdam(model.parameters(), lr=0.03, accumulate=RANKS)
    chance, losses = torch.Generator().manual_seed(1 + rank), []
    for _ in range(60):
        tokens = torch.randint(16, (8,), generator=chance)
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), (tokens + 3) % 16)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    own = vector(list(model.parameters()))
    with optimizer.mean_parameters() as distance:
        mean = vector(list(model.parameters()))
    return {
        "losses": losses,
        "parameters": sum(p.numel() for p in model.parameters()),
        "own": own,
        "mean": mean,
        "distance": distance,
        "estimate": optimizer.distance(),
        "after": vector(list(model.parameters())),
        "tied": output.weight is embedding.weight,
    }


def broken_gradients(rank: int) -> dict[str, Any]:
    params = parameters()
    optimizer = GossipAdam(params, lr=LR)
    for step in range(4):
        gradients(params, rank)
        if rank == 1 and step == 1:
            params[0].grad[0, 0] = torch.nan  # type: ignore[index]
        optimizer.step()
    optimizer.finish()
    return {"skipped": optimizer.skipped_steps, "parameters": vector(params)}


def unequal_settings(rank: int) -> str:
    params = parameters()
    gradients(params, rank)
    with pytest.raises(DivergedError) as caught:
        GossipAdam(params, wire="int8" if rank == 2 else "float16").step()
    return str(caught.value)


def far_apart(rank: int) -> list[int]:
    """Rounds after four steps, far apart: without the rule, and with it."""
    rounds = []
    for critical in (0.0, 1.0):
        params = parameters()
        params[0].data += 10 * rank
        optimizer = GossipAdam(params, lr=1e-4, topology="ring", critical=critical, check_every=1)
        for _ in range(4):
            gradients(params, rank)
            optimizer.step()
        optimizer.finish()
        rounds.append(optimizer.param_groups[0]["round"])
    return rounds


def loaded(rank: int) -> list[torch.Tensor]:
    """Two more steps, with the optimizer and with one that loaded its state."""
    params = parameters()
    optimizer = GossipAdam(params, lr=LR, wire="float32")
    for _ in range(3):
        gradients(params, rank)
        optimizer.step()
    optimizer.finish()
    other = [torch.nn.Parameter(parameter.detach().clone()) for parameter in params]
    again = GossipAdam(other, lr=0.5, wire="float32")
    again.load_state_dict(optimizer.state_dict())
    for both in ((params, optimizer), (other, again)):
        for _ in range(2):
            gradients(both[0], rank)
            both[1].step()
        both[1].finish()
    return [vector(params), vector(other)]


STORIES: list[Story] = [
    training,
    mixing_alone,
    tied_weights,
    broken_gradients,
    unequal_settings,
    far_apart,
    loaded,
]


def run_rank(rank: int, folder: str) -> None:
    join_group(rank, folder, ranks=RANKS, timeout_s=120)
    told = {story.__name__: story(rank) for story in STORIES}
    dist.destroy_process_group()
    torch.save(told, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The notes of each rank."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_rank, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def simulated() -> list[list[torch.Tensor]]:
    """`training` by three mixers in one process: the parameters after each step, by rank."""
    peers = [PeerId(f"{rank:032x}") for rank in range(RANKS)]
    settings = AdamSettings(betas=(0.9, 0.95), accumulate=2)
    start = vector(parameters())
    nodes = [Mixer(start, settings, "int8", DECAY) for _ in peers]
    seen: list[list[torch.Tensor]] = [[] for _ in peers]
    for step in range(STEPS + 1):
        unmixed = [node.values.clone() for node in nodes]
        if step:
            edges = Topology("one-peer-exponential").edges(step, peers)
            rows = [shares(peer, edges, edges) for peer in peers]
            sent = [node.begin(row) for node, row in zip(nodes, rows, strict=True)]
            for own, (node, row) in enumerate(zip(nodes, rows, strict=True)):
                node.finish(row, {peer: sent[int(peer, 16)][peers[own]] for peer in row})
        for rank, node in enumerate(nodes):
            if step < STEPS:
                node.step(unmixed[rank] - target(rank), LR)
            seen[rank].append(node.values.clone())
    return seen


def test_ranks_make_the_steps_of_mixers_in_one_process(told: list[dict[str, Any]]) -> None:
    for each, expected in zip(told, simulated(), strict=True):
        for ours, theirs in zip(each["training"], expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", TOPOLOGY_NAMES)
def test_every_topology_brings_an_odd_number_of_ranks_to_their_mean(
    told: list[dict[str, Any]], name: str
) -> None:
    first, last = (torch.stack([each["mixing_alone"][name][at] for each in told]) for at in (0, 1))
    torch.testing.assert_close(last.mean(0), first.mean(0), rtol=0, atol=1e-6)
    assert (last - last.mean(0)).norm() < 0.05 * (first - first.mean(0)).norm()


def test_tied_weights_train_as_one_parameter(told: list[dict[str, Any]]) -> None:
    for each in (rank["tied_weights"] for rank in told):
        assert each["tied"]
        assert each["parameters"] == 16 * 8 + 8 * 8 + 8
        assert sum(each["losses"][-5:]) < 0.5 * sum(each["losses"][:5])


def test_the_mean_is_the_same_everywhere_and_a_rank_s_own_come_back(
    told: list[dict[str, Any]],
) -> None:
    found = [each["tied_weights"] for each in told]
    mean = torch.stack([each["own"] for each in found]).mean(0)
    for each in found:
        torch.testing.assert_close(each["mean"], mean, rtol=0, atol=1e-6)
        assert torch.equal(each["mean"], found[0]["mean"])
        assert torch.equal(each["after"], each["own"])
        assert not torch.equal(each["own"], each["mean"])


def test_the_estimated_distance_is_near_the_true_one(told: list[dict[str, Any]]) -> None:
    found = [each["tied_weights"] for each in told]
    true = (sum(each["distance"] ** 2 for each in found) / RANKS) ** 0.5
    assert found[0]["estimate"] == found[1]["estimate"] == pytest.approx(true, rel=0.4)


def test_a_rank_with_broken_gradients_mixes_and_leaves_out_its_step(
    told: list[dict[str, Any]],
) -> None:
    assert [each["broken_gradients"]["skipped"] for each in told] == [0, 1, 0]
    assert all(bool(each["broken_gradients"]["parameters"].isfinite().all()) for each in told)


def test_unequal_settings_are_refused_on_all_ranks(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert "others than rank 0's on ranks [2]" in each["unequal_settings"]


def test_ranks_far_apart_insert_mixing_only_rounds(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["far_apart"] == [4, 8]


def test_a_loaded_state_goes_on_as_the_saved_one(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert torch.equal(*each["loaded"])
