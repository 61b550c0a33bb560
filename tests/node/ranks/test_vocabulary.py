"""Ranks that have rows of embedding and head compute what one rank computes with both."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from node.model.build import build_model, named_parameters_once
from node.model.training import TrainingModel
from node.ranks.exchange import TensorExchange
from node.ranks.vocabulary import SplitTraining, split_tables
from tests.support.tiny import CONFIG

RANKS = 3
PHI = {name: CONFIG[name] for name in ("hidden_size", "num_hidden_layers", "intermediate_size")}


class Threads(TensorExchange):
    """The exchange of one of some ranks in threads of this process."""

    rank, ranks = 0, RANKS

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self._board, self._barrier = rank, board, barrier
        self._device = torch.device("cpu")

    def gather(self, whole: Tensor, part: Tensor) -> None:
        self._met(part, lambda parts: whole.copy_(torch.cat([*parts]).view(whole.shape)))

    def sum_parts(self, part: Tensor, whole: Tensor) -> None:
        self._met(
            whole, lambda held: part.copy_(sum(each.chunk(RANKS)[self.rank] for each in held))
        )

    def _met(self, own: Tensor, take: Callable[[list[Any]], Any]) -> None:
        self._board[self.rank] = own
        self._barrier.wait(60)
        take(self._board)
        self._barrier.wait(60)


def made(kind: str, config: dict[str, Any]) -> nn.Module:
    """Its weights are not near zero, so that likelihoods differ."""
    model = build_model(kind, {"vocab_size": 37} | config)
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def of_ranks(model: nn.Module, shares: list[Tensor]) -> tuple[list[TrainingModel], float, float]:
    """Networks of all ranks with the gradients of their samples, and the loss of all: as they are
    trained, and as it is measured.
    """
    board, barrier = [None] * RANKS, threading.Barrier(RANKS)

    def work(rank: int) -> tuple[TrainingModel, float, float]:
        own = copy.deepcopy(model)
        whole = {name: each.data for name, each in named_parameters_once(own).items()}
        apart = split_tables(own, Threads(rank, board, barrier))
        trainee = SplitTraining(own, "cpu", 4)
        for name, parameter in trainee.parameters.items():
            if any(parameter is each for each in apart):
                rows = whole[name][rank * len(parameter) : (rank + 1) * len(parameter)]
                parameter.data[: len(rows)] = rows
        weight = float(len(shares[rank]) > 0)
        own = shares[rank] if weight else torch.zeros((1, 2), dtype=torch.int64)
        with torch.no_grad():
            measured = weight * float(trainee.nats(own))
        return trainee, weight * float(trainee.gradient(own, weight)), measured

    with ThreadPoolExecutor(RANKS) as pool:
        trainees, losses, measured = zip(*pool.map(work, range(RANKS)), strict=True)
    return [*trainees], sum(losses), sum(measured)


@pytest.mark.parametrize(
    ("kind", "config", "split"),
    [
        ("llama", CONFIG | {"tie_word_embeddings": True}, 1),
        ("llama", CONFIG | {"tie_word_embeddings": False, "pad_token_id": 3}, 2),
        ("phi", PHI | {"num_attention_heads": 4}, 3),
        ("cohere", CONFIG | {"tie_word_embeddings": True}, 0),
        ("cohere", CONFIG | {"tie_word_embeddings": False}, 1),
        ("gemma2", CONFIG, 0),
    ],
    ids=["tied", "two tables", "a bias", "other logits", "other logits, two tables", "other rows"],
)
def test_rows_on_ranks_have_the_gradients_of_the_whole(
    kind: str, config: dict[str, Any], split: int
) -> None:
    """37 rows are unlike parts of three ranks, which have two samples, none, and one."""
    model = made(kind, {**config, "vocab_size": 37})
    samples = torch.randint(0, 37, (3, 9))
    samples[:, 4] = 3  # of which one kind has no gradient as an embedding
    alone = TrainingModel(copy.deepcopy(model), "cpu", 4)
    loss = float(alone.gradient(samples))
    trainees, *found = of_ranks(model, [samples[:2], samples[:0], samples[2:]])
    assert found == pytest.approx([loss, loss], rel=1e-5)
    sharded = 0
    for name, parameter in alone.parameters.items():
        parts = [each.parameters[name].grad for each in trainees]
        if is_split := parts[0].shape != parameter.shape:
            together = torch.cat(parts)[: len(parameter)]
        else:
            together = sum(part for part in parts if part is not None)
        sharded += is_split
        torch.testing.assert_close(together, parameter.grad, rtol=1e-4, atol=1e-5)
    assert sharded == split
