from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from node.exact.top_k import ascending, largest, largest_above_threshold, largest_in_groups


def magnitudes_of_every_kind(seed: int) -> Tensor:
    """[n, 4096]: numbers without ties, ties everywhere, mostly zeros, all zeros, all equal, the
    least floats, steep.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(4, 4096, generator=generator).abs()
    few = torch.randint(0, 5, (4, 4096), generator=generator).float()
    sparse = normal * (torch.rand(normal.shape, generator=generator) < 0.005)
    steep = normal**40 * torch.linspace(1, 1e-3, 4096)
    return torch.cat(
        [normal, few, sparse, torch.zeros(2, 4096), torch.ones(2, 4096), normal * 1e-44, steep]
    )


@pytest.mark.parametrize("top_k", [1, 7, 32, 128, 255, 256, 511, 512, 2000, 4096])
@pytest.mark.parametrize("find", [largest, largest_in_groups])
def test_k_places_are_found_that_no_other_entry_exceeds_also_among_equals(
    find: Callable[[Tensor, int], Tensor], top_k: int
) -> None:
    every_kind = magnitudes_of_every_kind(top_k)
    for magnitudes in (every_kind, *every_kind.split(4)):
        places = find(magnitudes, top_k)
        assert all(len(set(row.tolist())) == top_k for row in places)
        taken = magnitudes.gather(1, places).sort(1).values
        assert torch.equal(taken, magnitudes.topk(top_k, dim=1).values.sort(1).values)


@pytest.mark.parametrize("top_k", [1, 32, 100])
def test_both_ways_to_the_largest_take_the_same(top_k: int) -> None:
    magnitudes = torch.randn(9, 4096, generator=torch.Generator().manual_seed(top_k)).abs()
    found = largest_above_threshold(magnitudes, top_k)
    assert found is not None
    assert torch.equal(found.sort(1).values, largest_in_groups(magnitudes, top_k).sort(1).values)


def test_rows_of_equal_entries_are_left_to_the_search_in_groups() -> None:
    zeros = torch.zeros(3, 4096)
    assert largest_above_threshold(zeros, 32) is None


def test_places_are_ordered_row_by_row() -> None:
    places = torch.tensor([[5, 1, 3], [0, 4095, 7]], dtype=torch.int16)
    assert ascending(places).tolist() == [[1, 3, 5], [0, 7, 4095]]
    assert ascending(places).dtype == torch.int16
