"""Two processes over gloo on the loopback interface: one launch, several stories, judged here."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from node.exact import process_group
from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.engine import GradientError
from node.exact.process_group import Ranks
from protocol.errors import DivergedError
from tests.node.exact import reference
from tests.node.exact.every_step import every_step
from tests.support.ranks import join_group

RANKS = 2
LR = 0.002
SHAPES = {"0": (128, 80), "1": (128,), "2": (80, 128), "3": (80,)}

Story = Callable[[int], Any]


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(0.1 * torch.randn(shape, generator=generator))
        for shape in SHAPES.values()
    ]


def loss_of(params: list[torch.nn.Parameter], rank: int, step: int) -> torch.Tensor:
    """An autoencoder's loss on samples of this rank's own."""
    inputs = torch.randn(32, 80, generator=torch.Generator().manual_seed(2 * step + rank))
    hidden = torch.tanh(inputs @ params[0].T + params[1])
    return torch.nn.functional.mse_loss(hidden @ params[2].T + params[3], inputs)


def gradients(params: list[torch.nn.Parameter], rank: int, step: int) -> float:
    for parameter in params:
        parameter.grad = None
    loss = loss_of(params, rank, step)
    loss.backward()
    return loss.item()


def tensors(params: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in params]


def training(rank: int) -> dict[str, Any]:
    params = parameters()
    optimizer = every_step(params, lr=LR, weight_decay=0.1, momentum_decay=0.9)
    losses = []
    after_three: list[torch.Tensor] = []
    for step in range(40):
        losses.append(gradients(params, rank, step))
        optimizer.step()
        if step == 2:
            after_three = tensors(params)
    return {"losses": losses, "parameters": tensors(params), "after three": after_three}


def missing_gradients(rank: int) -> list[torch.Tensor]:
    params = parameters()
    optimizer = every_step(params, lr=LR, weight_decay=0.1)
    for step in range(3):
        gradients(params, rank, step)
        params[rank].grad = None  # 0 is missing on rank 0, 1 on rank 1
        params[2].grad = None  # 2 is missing on both
        optimizer.step()
    return tensors(params)


def two_groups_of_unlike_length(rank: int) -> list[torch.Tensor]:
    params = parameters()
    optimizer = every_step(
        [{"params": params[:2], "top_k": 100}, {"params": params[2:], "value_bits": 8}], lr=LR
    )
    for step in range(3):
        gradients(params, rank, step)
        if rank:
            params[0].grad = torch.zeros_like(params[0])  # sends next to nothing
        optimizer.step()
    return tensors(params)


def broken_gradients(rank: int) -> dict[str, Any]:
    params = parameters()
    optimizer = every_step(params, lr=LR)
    gradients(params, rank, 0)
    optimizer.step()
    before = [*tensors(params), *(each.clone() for each in optimizer.state[params[0]].values())]
    gradients(params, rank, 1)
    if rank == 1:
        params[3].grad.fill_(torch.nan)  # type: ignore[union-attr]
    with pytest.raises(GradientError) as caught:
        optimizer.step()
    after = [*tensors(params), *(each.clone() for each in optimizer.state[params[0]].values())]
    gradients(params, rank, 2)
    optimizer.step()
    return {
        "said": str(caught.value),
        "before": before,
        "after": after,
        "parameters": tensors(params),
    }


def unequal_starts(rank: int) -> list[str]:
    said = []
    for settings in ({"lr": LR + rank}, {"lr": LR}):
        params = parameters()
        if settings["lr"] == LR and rank == 1:
            params[2].data[5, 5] += 1e-6
        optimizer = every_step(params, **settings)
        gradients(params, rank, 0)
        with pytest.raises(DivergedError) as caught:
            optimizer.step()
        said.append(str(caught.value))
    return said


def groups_of_one(rank: int) -> list[torch.Tensor]:
    alone = [dist.new_group([other]) for other in range(RANKS)][rank]
    params = parameters()
    optimizer = every_step(params, lr=LR, process_group=alone)
    gradients(params, rank, 0)
    optimizer.step()
    return tensors(params)


def exchanges(rank: int) -> Any:
    ranks = Ranks(None)
    blob = [b"first", b"the second, which is longer"][rank]
    any_length = [ranks.gather_any(blob, room) for room in (0, 5, 100)]
    return any_length, ranks.gather(b"%d" % rank), ranks.names


STORIES: list[Story] = [
    training,
    missing_gradients,
    two_groups_of_unlike_length,
    broken_gradients,
    unequal_starts,
    groups_of_one,
    exchanges,
]


def run_rank(rank: int, folder: str) -> None:
    join_group(rank, folder, ranks=RANKS, timeout_s=60)
    told = {story.__name__: story(rank) for story in STORIES}
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    told["group is gone"] = group() is None
    torch.save(told, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The notes of each rank."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_rank, (str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def simulated(steps: int) -> list[torch.Tensor]:
    """The parameters after some steps of `training`, by two engines and the reference in one
    process.
    """
    layout = ChunkLayout.from_shapes(SHAPES)
    engines = [Momentum(layout, DemoSettings(momentum_decay=0.9), "cpu") for _ in range(RANKS)]
    params = parameters()
    for step in range(steps):
        sent = []
        for rank, engine in enumerate(engines):
            gradients(params, rank, step)
            engine.accumulate({name: p.grad for name, p in zip(SHAPES, params, strict=True)})
            sent.append(Contribution(1, engine.extract().coefficients))
        arrays = {name: p.detach().numpy() for name, p in zip(SHAPES, params, strict=True)}
        stepped = reference.apply(arrays, sent, LR, 1 - LR * 0.1)
        for name, parameter in zip(SHAPES, params, strict=True):
            parameter.data.copy_(torch.from_numpy(np.ascontiguousarray(stepped[name])))
    return tensors(params)


def test_ranks_end_equal_and_their_losses_fall(told: list[dict[str, Any]]) -> None:
    first, second = (each["training"] for each in told)
    assert equal(first["parameters"], second["parameters"])
    assert first["losses"] != second["losses"]
    for each in (first, second):
        assert each["losses"][-1] < 0.8 * each["losses"][0]


def test_ranks_make_the_steps_of_the_reference(told: list[dict[str, Any]]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks, so that the gradients are the same
    expected = simulated(3)
    torch.set_num_threads(threads)
    assert equal(told[0]["training"]["after three"], expected)


def test_a_gradient_on_one_rank_moves_all_and_on_none_moves_nothing(
    told: list[dict[str, Any]],
) -> None:
    first, second = (each["missing_gradients"] for each in told)
    assert equal(first, second)
    start = tensors(parameters())
    assert [torch.equal(a, b) for a, b in zip(first, start, strict=True)] == [
        False,
        False,
        True,
        False,
    ]


def test_payloads_of_unlike_length_and_several_groups_arrive(told: list[dict[str, Any]]) -> None:
    first, second = (each["two_groups_of_unlike_length"] for each in told)
    assert equal(first, second)
    assert not equal(first, tensors(parameters()))


def test_a_broken_gradient_on_one_rank_raises_on_all_and_training_goes_on(
    told: list[dict[str, Any]],
) -> None:
    first, second = (each["broken_gradients"] for each in told)
    sentence = (
        "rank 1: expected gradients of magnitude up to 1e+30, got parameter 3 with entries NaN"
    )
    assert first["said"] == second["said"] == sentence
    for each in (first, second):
        assert equal(each["before"], each["after"])  # of the parameters and of the state
    assert not equal(first["after"][: len(SHAPES)], first["parameters"])
    assert equal(first["parameters"], second["parameters"])


def test_unequal_parameters_or_settings_are_refused_on_all_ranks(
    told: list[dict[str, Any]],
) -> None:
    for each in told:
        rates, entries = each["unequal_starts"]
        assert f"lr of group 0 is {LR + 1} on rank 1 where rank 0 has {LR}" in rates
        assert "expected equal parameters on all ranks, but parameter 2 of group 0 is " in entries
        assert " on rank 1 where rank 0 has " in entries
        assert "seed all ranks alike" in entries


def test_a_process_group_bounds_the_exchange(told: list[dict[str, Any]]) -> None:
    first, second = (each["groups_of_one"] for each in told)
    assert not equal(first, second)


def test_ranks_gather_bytes_of_any_length(told: list[dict[str, Any]]) -> None:
    blobs = [b"first", b"the second, which is longer"]
    assert told[0]["exchanges"] == told[1]["exchanges"] == ([blobs] * 3, [b"0", b"1"], [0, 1])


def test_a_destroyed_process_group_ends_and_takes_its_threads_along(
    told: list[dict[str, Any]],
) -> None:
    assert all(each["group is gone"] for each in told)


def test_a_process_alone_is_rank_zero_of_one() -> None:
    ranks = Ranks(None)
    assert (ranks.count, ranks.mine, ranks.names) == (1, 0, [0])
    assert ranks.gather(b"own") == ranks.gather_any(b"own") == [b"own"]


def test_ranks_that_have_not_begun_the_step_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "LATE_S", 0)
    store = dist.HashStore()
    for rank, steps in ((1, 7), (2, 6), (4, 8)):
        store.set(process_group._key(rank), str(steps))
    assert process_group._late(store, [1, 2, 3, 4], 7) == [2, 3]
    assert process_group._late(store, [1, 4], 7) == []
