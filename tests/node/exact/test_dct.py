import threading
from collections.abc import Iterator
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch

from node.exact import dct
from node.exact.dct import (
    dct_matrix,
    exact_products,
    forward,
    integer_matrix,
    inverse_signs_,
    product,
    transposed,
)
from protocol.limits import VOTE_SUM_MAX
from tests.node.exact import reference

CPU = torch.device("cpu")


def inverse_signs(sums: torch.Tensor, *, may_look: bool = True) -> torch.Tensor:
    """U of vote sums S, float32 [n, 64, 64]."""
    with exact_products(sums.device):
        return inverse_signs_(sums.mT.contiguous(), VOTE_SUM_MAX, may_look=may_look)


@pytest.fixture(autouse=True)
def _settings_survive() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def decimal_cosine(numerator: int) -> Decimal:
    """cos(pi * numerator / 128) to about 40 digits, by its series."""
    getcontext().prec = 60
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
    angle = pi * (numerator % 256) / 128
    term = total = Decimal(1)
    for n in range(1, 60):
        term = -term * angle * angle / ((2 * n - 1) * 2 * n)
        total += term
    return total


def test_no_entry_of_the_integer_matrix_is_near_a_half() -> None:
    matrix = integer_matrix(CPU)
    for k in range(64):
        for n in range(64):
            exact = 128 * decimal_cosine((2 * n + 1) * k) if k else 128 / Decimal(2).sqrt()
            assert abs(exact - int(matrix[k, n])) < Decimal("0.491")


def test_the_bounds_that_exactness_rests_on_hold() -> None:
    matrix = integer_matrix(CPU).double()
    assert matrix.abs().max() == 128
    assert matrix.abs().sum(0).max() == 5243
    assert 5243 * dct.OPERAND_MAX < 2**24


def test_the_dct_is_orthonormal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dct, "bfloat16_is_faster", lambda: False)
    matrix = dct_matrix(CPU).double()
    assert torch.allclose(matrix @ matrix.T, torch.eye(64, dtype=torch.float64), atol=1e-6)
    chunks = torch.randn(5, 64, 64)
    coefficients = forward(chunks)
    expected = reference.D @ chunks.double().numpy() @ reference.D.T
    assert np.allclose(coefficients.mT.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_in_bfloat16_the_dct_is_off_by_its_rounding_alone(
    monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    chunks = torch.randn(50, 64, 64) * scale
    monkeypatch.setattr(dct, "bfloat16_is_faster", lambda: False)
    expected = forward(chunks).double()
    monkeypatch.setattr(dct, "bfloat16_is_faster", lambda: True)
    error = forward(chunks).double() - expected
    size = expected.square().mean().sqrt()
    assert (
        0 < error.square().mean().sqrt() < 0.006 * size
    )  # 2^-9 at most of each number, thrice; and of the matrix
    assert abs(error.mean()) < 1e-4 * size


def test_transposed_names_the_place_of_an_index_and_undoes_itself() -> None:
    chunk = torch.arange(4096).view(64, 64)
    assert torch.equal(transposed(torch.arange(4096)), chunk.mT.flatten())
    assert torch.equal(transposed(transposed(torch.arange(4096))), torch.arange(4096))


def adversarial_sums() -> np.ndarray:
    """[n, 64, 64] of integers up to 2^24 - 1: dense, sparse, at every edge of a shift, and worst
    for a column.
    """
    rng = np.random.default_rng(1)
    chunks = [np.zeros((64, 64), np.int64)]
    for bits in range(1, 25):
        chunks.append(rng.integers(-(2**bits) + 1, 2**bits, (64, 64)))
        sparse = rng.integers(-(2**bits) + 1, 2**bits, (64, 64)) * (rng.random((64, 64)) < 0.01)
        chunks.append(sparse)
    for shift in range(14):
        for peak in (2047 << shift, (4095 << shift) // 2, (4095 << shift) // 2 + 1, 2048 << shift):
            edge = rng.integers(-3, 4, (64, 64)) << shift >> 1
            edge[rng.integers(64), rng.integers(64)] = min(peak, 2**24 - 1) * rng.choice([-1, 1])
            chunks.append(edge)
    worst = np.argmax(np.abs(reference.T).sum(0))
    column = np.sign(reference.T[:, worst])
    for magnitude in (2047, 2**24 - 1):
        chunks.append(magnitude * np.outer(column, column))
        chunks.append(magnitude * np.outer(column, np.ones(64, np.int64)))
    for value in (1, -1, 2**24 - 1):
        single = np.zeros((64, 64), np.int64)
        single[0, 0] = value
        chunks.append(single)
    return np.stack(chunks)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_signs_equal_the_whole_number_reference_at_any_precision_setting(precision: str) -> None:
    sums = adversarial_sums()
    torch.set_float32_matmul_precision(precision)
    found = inverse_signs(torch.from_numpy(sums).float())
    assert np.array_equal(found.numpy(), reference.signs(sums))


def test_signs_equal_the_reference_under_autocast() -> None:
    sums = adversarial_sums()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = inverse_signs(torch.from_numpy(sums).float())
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), reference.signs(sums))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_signs_equal_the_reference_with_torch_s_own_product_too(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dct, "_linear_of_onednn", lambda: None)
    sums = adversarial_sums()
    torch.set_float32_matmul_precision(precision)
    found = inverse_signs(torch.from_numpy(sums).float())
    assert np.array_equal(found.numpy(), reference.signs(sums))


@pytest.mark.parametrize("chunks", [1, 3, 128])
def test_both_ways_to_multiply_agree_on_whole_numbers_to_the_bit(
    chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(chunks)
    rows = torch.randint(-2047, 2048, (chunks * 64, 64), generator=generator).float()
    matrix = integer_matrix(CPU)
    expected = matrix.double() @ rows.double().T
    for _ in range(2):
        with exact_products(CPU):
            assert torch.equal(product(matrix.T.contiguous().T, rows).double(), expected)
            assert torch.equal(product(rows, matrix).double(), expected.T)
        monkeypatch.setattr(dct, "_linear_of_onednn", lambda: None)


@pytest.mark.parametrize(
    "fault", [RuntimeError("no such schema"), TypeError("no such argument"), None]
)
def test_an_operator_of_onednn_that_has_changed_or_is_wrong_is_not_used(
    fault: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(left: torch.Tensor, *_: object) -> torch.Tensor:
        if fault:
            raise fault
        return torch.zeros_like(left)

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", changed, raising=False)
    assert dct._linear_of_onednn.__wrapped__() is None


def test_signs_are_the_same_with_a_bound_that_rules_out_a_shift() -> None:
    sums = torch.from_numpy(adversarial_sums()).float()
    sums = sums[sums.abs().amax((1, 2)) <= dct.OPERAND_MAX]
    assert len(sums) > 20
    with exact_products(CPU):
        spared = inverse_signs_(sums.mT.contiguous(), int(sums.abs().max()))
    assert torch.equal(spared, inverse_signs(sums))


def test_signs_are_the_same_without_a_look_at_the_sums() -> None:
    sums = torch.from_numpy(adversarial_sums()).float()
    for part in (sums, torch.zeros(2, 64, 64), sums[sums.abs().amax((1, 2)) <= dct.OPERAND_MAX]):
        assert torch.equal(inverse_signs(part, may_look=False), inverse_signs(part))


def test_signs_are_the_same_one_by_one_as_together_and_with_any_threads() -> None:
    sums = torch.from_numpy(adversarial_sums()).float()
    together = inverse_signs(sums)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(torch.cat([inverse_signs(chunk[None]) for chunk in sums]), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_signs_on_a_gpu_equal_those_on_a_cpu(precision: str) -> None:
    sums = adversarial_sums()
    torch.set_float32_matmul_precision(precision)
    found = inverse_signs(torch.from_numpy(sums).float().cuda())
    assert np.array_equal(found.cpu().numpy(), reference.signs(sums))


def test_most_signs_are_those_of_the_float_transform() -> None:
    rng = np.random.default_rng(2)
    sums = rng.integers(-8, 9, (40, 64, 64)) * (rng.random((40, 64, 64)) < 0.05)
    exact = np.sign(reference.D.T @ sums @ reference.D)
    assert (inverse_signs(torch.from_numpy(sums).float()).numpy() == exact).mean() > 0.99


def test_a_zero_update_has_no_sign_bit_whatever_zeros_a_product_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def minus_zeros(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.full((len(left), len(right)), -0.0)

    monkeypatch.setattr(dct, "product", minus_zeros)
    assert not torch.signbit(inverse_signs(torch.zeros(2, 64, 64))).any()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_exact_products_are_of_full_precision_inside_and_as_set_outside(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    outside = dct._precision()
    with torch.autocast("cpu"), exact_products(CPU):
        assert set(dct._precision()) <= {"ieee", "highest"}
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        with exact_products(CPU):
            pass
        assert set(dct._precision()) <= {"ieee", "highest"}
    assert dct._precision() == outside
    assert torch.get_float32_matmul_precision() == precision


def test_a_thread_that_leaves_does_not_take_the_precision_from_one_that_stays() -> None:
    torch.set_float32_matmul_precision("medium")
    outside = dct._precision()
    entered, left = threading.Event(), threading.Event()

    def visit() -> None:
        with exact_products(CPU):
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=visit)
    thread.start()
    entered.wait(10)
    with exact_products(CPU):
        left.set()
        thread.join(10)
        assert set(dct._precision()) <= {"ieee", "highest"}
    assert dct._precision() == outside


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
def test_a_backend_that_inherits_the_precision_goes_on_inheriting() -> None:
    before = torch.backends.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.backends.fp32_precision = "bf16"
    try:
        with exact_products(CPU):
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = before


def test_the_older_torch_setting_is_held_and_restored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dct, "_HAS_BACKEND_PRECISION", False)
    torch.set_float32_matmul_precision("medium")
    with exact_products(CPU):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"
