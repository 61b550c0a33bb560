import pytest
import torch

from node.demo.dct import dct_matrix, exact_products
from node.demo.orthogonalise import inverse_orthogonal_, orthogonalised

CPU = torch.device("cpu")


def votes(seed: int, authors: int = 8, top_k: int = 32, among: int = 4096) -> torch.Tensor:
    """Transposed sums of signs, [16, 64, 64]."""
    generator = torch.Generator().manual_seed(seed)
    sums = torch.zeros(16, 4096)
    for _ in range(authors):
        for chunk in sums:
            places = torch.randperm(among, generator=generator)[:top_k]
            chunk[places] += torch.randint(0, 2, (top_k,), generator=generator) * 2.0 - 1
    return sums.view(16, 64, 64)


def test_directions_that_the_votes_have_move_alike() -> None:
    """The nearest orthogonal matrix has singular values of one; three iterations come from the
    votes' to about that.
    """
    sums = votes(0)
    before = torch.linalg.svdvals(sums)
    with exact_products(CPU):
        found = orthogonalised(sums.clone()) / 256
    after = torch.linalg.svdvals(found)
    assert after.max() < 1.25
    strong = before > before.amax(1, keepdim=True) / 5
    assert after[strong].min() > 0.5
    left, _, right = torch.linalg.svd(sums)
    overlap = (found * (left @ right)).sum() / (found.norm() * (left @ right).norm())
    assert overlap > 0.9


def test_the_update_is_eight_times_what_the_coefficients_stand_for() -> None:
    sums = votes(1)
    with exact_products(CPU):
        coefficients = orthogonalised(sums.clone()).double() / 256
        found = inverse_orthogonal_(sums.clone())
    matrix = dct_matrix(CPU).double()
    expected = 8 * (matrix.T @ coefficients.mT @ matrix)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
    assert 0.5 < found.square().mean().sqrt() < 1.1


@pytest.mark.parametrize(
    ("authors", "top_k", "expected"),
    [(1, 8, 0.26), (1, 32, 0.46), (4, 16, 0.63), (4, 32, 0.82), (8, 32, 0.87)],
)
def test_few_votes_have_fewer_directions_and_each_is_as_long(
    authors: int, top_k: int, expected: float
) -> None:
    """So the rate is the length of a step in a direction, and its root mean square is smaller."""
    sums = votes(4, authors, top_k)
    directions = torch.linalg.matrix_rank(sums).double()
    with exact_products(CPU):
        found = inverse_orthogonal_(sums.clone())
    assert found.square().mean().sqrt() == pytest.approx(expected, abs=0.02)
    of_one = (found.double().square().sum((1, 2)) / directions).sqrt() / 8
    assert of_one.mean() == pytest.approx(0.82, abs=0.12)


def test_the_number_of_voters_changes_nothing_but_rounding() -> None:
    sums = votes(2)
    with exact_products(CPU):
        once, often = orthogonalised(sums.clone()), orthogonalised(sums * 2**18)
    assert torch.equal(once, often)


def test_a_chunk_without_votes_does_not_move() -> None:
    sums = votes(3)
    sums[5] = 0
    with exact_products(CPU):
        found = inverse_orthogonal_(sums)
    assert not found[5].any()
    assert found[4].any()
