"""How ranks of one machine share its CPU threads."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from node.ranks.exchange import TensorExchange
from node.ranks.place import RankPlace
from node.system.device import with_threads

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with with_threads(1):
        yield


def used(place: RankPlace, ranks: set[int], between: int, device: torch.device = CPU) -> int:
    """Threads of a rank as it works among these, of one that has so many between orders."""
    torch.set_num_threads(between)
    line: Any = SimpleNamespace(place=place)
    with TensorExchange(line, device, lambda _: None).threads_among(ranks):
        found = torch.get_num_threads()
    assert torch.get_num_threads() == between
    return found


@pytest.mark.parametrize(
    ("busy", "rank_0", "follower"), [({0, 1}, 4, 4), ({0}, 8, 8), ({1}, 8, 8), (set(), 8, 4)]
)
def test_those_that_work_have_the_threads_of_those_that_wait(
    busy: set[int], rank_0: int, follower: int
) -> None:
    assert used(RankPlace(0, 2, 0, 2), busy, between=8) == rank_0
    assert used(RankPlace(1, 2, 1, 2), busy, between=4) == follower


def test_only_the_ranks_of_this_machine_share_its_threads() -> None:
    third = RankPlace(rank=3, count=4, local_rank=1, local_count=2)
    assert used(third, {0, 1, 3}, between=2) == 4
    assert used(third, {0, 1}, between=2) == 2, "none is here"


def test_each_of_many_has_a_thread_at_least() -> None:
    assert used(RankPlace(0, 4, 0, 4), {0, 1, 2, 3}, between=2) == 1


def test_threads_beside_a_card_and_of_a_rank_alone_on_its_machine_stay() -> None:
    assert used(RankPlace(0, 2, 0, 2), {0, 1}, between=4, device=torch.device("cuda")) == 4
    assert used(RankPlace(1, 2, 0, 1), {1}, between=4) == 4
