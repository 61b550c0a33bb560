import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from node.exact.accelerator import Accelerator
from node.exact.backend import Backend
from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from node.exact.plain import Plain
from protocol.codec.payload import Coefficients
from protocol.errors import LocalProtocolError
from protocol.limits import VOTE_SUM_MAX
from tests.node.exact import reference

pytestmark = pytest.mark.usefixtures("each_backend")

SHAPES: dict[str, tuple[int, ...]] = {
    "embedding": (257, 96),
    "conv": (66, 3, 5, 5),
    "wide": (64, 330),
    "bias": (97,),
    "scalar": (),
}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
LEARNING_RATE = float(np.float32(0.004))
DECAY = float(np.float32(1 - 0.004 * 0.1))

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings_survive() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")


def parameters(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def contributions(
    seed: int, *, authors: int = 5, top_k: int = 40, value_max: int = 1
) -> list[Contribution]:
    rng = np.random.default_rng(seed)
    return [
        Contribution(
            int(rng.integers(1, 4)),
            reference.random_coefficients(rng, LAYOUT.chunks, top_k=top_k, value_max=value_max),
        )
        for _ in range(authors)
    ]


def on_one_coefficient(values: list[int], chunk: int = 3, index: int = 1234) -> list[Coefficients]:
    counts = np.zeros(LAYOUT.chunks, np.uint16)
    counts[chunk] = 1
    return [
        Coefficients(counts, np.array([index], np.uint16), np.array([value], np.int16))
        for value in values
    ]


def extremes() -> dict[str, list[Contribution]]:
    rng = np.random.default_rng(9)
    dense = [
        reference.random_coefficients(rng, LAYOUT.chunks, top_k=4096, value_max=128, empty=0)
        for _ in range(2)
    ]
    return {
        "a sum that rounds above the bound": [
            Contribution(4095, sent) for sent in on_one_coefficient([1], chunk=5)
        ]
        + [
            Contribution(
                6,
                reference.random_coefficients(rng, LAYOUT.chunks, top_k=1200, value_max=1, empty=0),
            )
        ],
        "no contribution": [],
        "one empty payload": [
            Contribution(
                7, reference.random_coefficients(rng, LAYOUT.chunks, top_k=3, value_max=1, empty=1)
            )
        ],
        "all authors on one coefficient": [
            Contribution(3, sent) for sent in on_one_coefficient([-128] * 50)
        ],
        "votes that cancel out": [Contribution(5, sent) for sent in on_one_coefficient([1, -1])],
        "the whole bound on one coefficient": [
            Contribution(VOTE_SUM_MAX - 1, sent) for sent in on_one_coefficient([1])
        ]
        + [Contribution(1, sent) for sent in on_one_coefficient([-1])],
        "the whole bound on every coefficient": [
            Contribution((VOTE_SUM_MAX - 128) // 128, dense[0]),
            Contribution(1, dense[1]),
        ],
    }


def check(given: list[Contribution], backend: Backend | None = None) -> None:
    found = parameters()
    apply(LAYOUT, found, given, LEARNING_RATE, DECAY, backend=backend)
    plain = {name: tensor.numpy() for name, tensor in parameters().items()}
    expected = reference.apply(plain, given, LEARNING_RATE, DECAY)
    for name in SHAPES:
        assert found[name].numpy().tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("value_max", [1, 2, 8, 128])
def test_a_step_is_that_of_the_whole_number_reference(value_max: int) -> None:
    for seed in range(3):
        check(contributions(seed, value_max=value_max))


@pytest.mark.parametrize("case", extremes())
def test_extreme_contributions_give_the_reference_too(case: str) -> None:
    check(extremes()[case])


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_permission_for_lower_precision_changes_no_bit(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    with torch.autocast("cpu"):
        check(extremes()["the whole bound on every coefficient"])


@pytest.mark.parametrize("strip_chunks", [1, 7, 64, 10_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_strips_and_threads_change_no_bit(strip_chunks: int, threads: int) -> None:
    torch.set_num_threads(threads)
    check(contributions(1, value_max=8))
    for backend in (Plain(LAYOUT, strip_chunks), Accelerator(LAYOUT, CPU, strip_chunks)):
        check(contributions(1, value_max=8), backend)


def test_the_order_of_contributions_changes_no_bit() -> None:
    given = contributions(2, value_max=128)
    for _ in range(3):
        given = [given[-1], *given[:-1]]
        check(given)


def test_zeros_keep_their_sign() -> None:
    found = {name: torch.full(shape, -0.0) for name, shape in SHAPES.items()}
    apply(LAYOUT, found, [], LEARNING_RATE, 1.0)
    assert all(torch.signbit(tensor).all() for tensor in found.values())


def test_a_step_reaches_parameters_of_any_strides_and_grad_flags() -> None:
    plain, odd = parameters(), parameters()
    odd["embedding"] = torch.nn.Parameter(odd["embedding"].T.contiguous().T)
    odd["conv"] = odd["conv"].contiguous(memory_format=torch.channels_last)
    odd["bias"] = torch.stack([odd["bias"], odd["bias"]], dim=1)[:, 0]
    given = contributions(3)
    apply(LAYOUT, plain, given, LEARNING_RATE, DECAY)
    apply(LAYOUT, odd, given, LEARNING_RATE, DECAY)
    assert all(torch.equal(plain[name], odd[name]) for name in SHAPES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_makes_the_same_step_bit_for_bit() -> None:
    torch.set_float32_matmul_precision("high")
    given = contributions(4, value_max=128)
    on_cpu, on_gpu = parameters(), {name: tensor.cuda() for name, tensor in parameters().items()}
    apply(LAYOUT, on_cpu, given, LEARNING_RATE, DECAY)
    backend = Accelerator(LAYOUT, torch.device("cuda"))
    apply(LAYOUT, on_gpu, given, LEARNING_RATE, DECAY, backend=backend)
    assert all(torch.equal(on_cpu[name], on_gpu[name].cpu()) for name in SHAPES)


def refused(given: list[Contribution], match: str, **rates: float) -> None:
    found = parameters()
    rates = {"learning_rate": LEARNING_RATE, "decay": DECAY} | rates
    with pytest.raises(LocalProtocolError, match=match):
        apply(LAYOUT, found, given, rates["learning_rate"], rates["decay"])
    assert all(torch.equal(found[name], tensor) for name, tensor in parameters().items())


def test_votes_that_float32_could_not_count_are_refused() -> None:
    over = [Contribution(VOTE_SUM_MAX, sent) for sent in on_one_coefficient([1])] + [
        Contribution(1, sent) for sent in on_one_coefficient([1], chunk=0)
    ]
    refused(over, f"at most {VOTE_SUM_MAX}, got up to {VOTE_SUM_MAX + 1}")


def test_rates_that_are_not_float32_values_are_refused() -> None:
    refused([], r"learning_rate that is a float32 value, got 0\.1", learning_rate=0.1)
    refused([], r"decay that is a float32 value, got 0\.9", decay=0.9)
    refused([], "learning_rate that is a float32 value, got nan", learning_rate=math.nan)
    refused([], "decay that is a float32 value, got inf", decay=math.inf)


def test_contributions_that_do_not_fit_the_model_are_refused() -> None:
    good = on_one_coefficient([1])[0]
    refused([Contribution(0, good)], "weight of at least 1, got 0")
    refused(
        [Contribution(1, Coefficients(good.counts[:-1], good.indices, good.values))],
        "counts, 1 indices and values, got",
    )
    refused(
        [Contribution(1, Coefficients(good.counts, good.indices[:0], good.values))],
        "counts, 1 indices and values, got",
    )
    far = np.array([4096], np.uint16)
    refused(
        [Contribution(1, Coefficients(good.counts, far, good.values))],
        "indices below 4096, got 4096",
    )


def test_parameters_in_another_dtype_are_refused() -> None:
    half = parameters() | {"bias": torch.zeros(SHAPES["bias"], dtype=torch.bfloat16)}
    with pytest.raises(LocalProtocolError, match=r"expected bias in float32, got torch\.bfloat16"):
        apply(LAYOUT, half, [], LEARNING_RATE, DECAY)
