"""The accelerator's way, on the CPU: the same bits as the plain one, in few operations."""

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from node.exact.accelerator import STRIP_CHUNKS_MAX, Accelerator, flat_order
from node.exact.chunks import ChunkLayout, strips
from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.demo.votes import DeviceVotes, Votes
from node.exact.engine import GradientError, require_finite
from node.exact.plain import Plain
from protocol.codec.payload import PayloadShape
from tests.node.exact import reference
from tests.node.exact.conftest import BACKENDS, use_backend
from tests.node.exact.demo import test_aggregate

CPU = torch.device("cpu")
SHAPES: dict[str, tuple[int, ...]] = {
    "bias": (97,),
    "conv": (66, 3, 5, 5),
    "embedding": (257, 96),
    "even": (128, 64),
    "gain": (5000,),
    "none": (0, 7),
    "scalar": (),
    "wide": (64, 330),
}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
ONLY_LINES = ChunkLayout.from_shapes({"a": (5000,), "b": (3,)})
ONLY_MATRICES = ChunkLayout.from_shapes({"a": (65, 70), "b": (64, 64)})

in_strips = pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and steps choose the accelerator's way."""
    use_backend(monkeypatch, BACKENDS["accelerator"])


def tensors_of(layout: ChunkLayout, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in layout.shapes.items()}


@in_strips
@pytest.mark.parametrize("layout", [LAYOUT, ONLY_LINES, ONLY_MATRICES])
def test_a_strip_is_gathered_as_tensor_by_tensor(layout: ChunkLayout, size: int) -> None:
    views = layout.views(tensors_of(layout))
    for first, stop in strips(layout.chunks, size):
        plain, found = (torch.full((stop - first, 64, 64), torch.nan) for _ in range(2))
        layout.gather_strip(views, first, plain)
        flat_order(layout, CPU).gather(views, first, found)
        assert torch.equal(found, plain)


def test_missing_tensors_are_zeros_and_any_dtype_and_strides_are_gathered() -> None:
    tensors: dict[str, Tensor | None] = {**tensors_of(LAYOUT), "conv": None, "gain": None}
    tensors["embedding"] = tensors_of(LAYOUT)["embedding"].T.contiguous().T.double()
    tensors["wide"] = tensors_of(LAYOUT)["wide"].bfloat16()
    views, plain, found = (
        LAYOUT.views(tensors),
        torch.empty(LAYOUT.chunks, 64, 64),
        torch.empty(LAYOUT.chunks, 64, 64),
    )
    LAYOUT.gather_strip(views, 0, plain)
    flat_order(LAYOUT, CPU).gather(views, 0, found)
    assert torch.equal(found, plain)


def test_only_tensors_that_are_there_are_moved() -> None:
    tensors = tensors_of(LAYOUT)
    views = LAYOUT.views({**tensors, "conv": None, "scalar": None})
    flat_order(LAYOUT, CPU).move(views, 0, torch.ones(LAYOUT.chunks, 64, 64), 1.0)
    for name, before in tensors_of(LAYOUT).items():
        assert torch.equal(tensors[name], before if name in ("conv", "scalar") else before + 1)


@pytest.mark.parametrize("case", ["random", *test_aggregate.extremes()])
@pytest.mark.parametrize("strip_chunks", [1, 5, 10_000])
def test_a_step_in_strips_of_any_size_is_that_of_the_whole_number_reference(
    case: str, strip_chunks: int
) -> None:
    given = test_aggregate.extremes() | {"random": test_aggregate.contributions(1, value_max=128)}
    test_aggregate.check(given[case], Accelerator(test_aggregate.LAYOUT, CPU, strip_chunks))


def test_votes_on_a_device_sum_to_the_same() -> None:
    rng = np.random.default_rng(5)
    given = [
        Contribution(weight, reference.random_coefficients(rng, 9, top_k=30, value_max=8))
        for weight in (1, 3, 70_000)
    ]
    layout = ChunkLayout.from_shapes({"m": (64 * 9, 64)})
    found, plain = torch.empty(9, 64, 64), torch.zeros(9, 4096, dtype=torch.int64)
    there = DeviceVotes(Votes(layout, given), CPU)
    for first, stop in strips(9, 4):
        there.sum_strip(first, found[first:stop])
    for contribution in given:
        weight, sent = contribution.weight, contribution.coefficients
        chunks = np.repeat(np.arange(9), sent.counts)
        for chunk, index, value in zip(chunks, sent.indices, sent.values, strict=True):
            plain[chunk, index] += weight * int(value)
    assert torch.equal(found.mT.reshape(9, -1).long(), plain)


def test_an_engine_has_the_momentum_of_the_plain_one() -> None:
    engines = []
    for backend in (Plain(LAYOUT), Accelerator(LAYOUT, CPU)):
        engines.append(Momentum(LAYOUT, DemoSettings(), CPU, backend=backend))
        for seed in range(3):
            gradients = {**tensors_of(LAYOUT, seed), "conv": None}
            engines[-1].accumulate(gradients, LAYOUT.chunks_of({"embedding", "gain", "wide"}))
            engines[-1].extract()
    assert torch.equal(engines[0].entries, engines[1].entries)


@pytest.mark.usefixtures("accelerated")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -2e30])
def test_a_broken_gradient_is_named(bad: float) -> None:
    broken: dict[str, Tensor | None] = {**tensors_of(LAYOUT)}
    broken["gain"] = torch.full((5000,), 0.1).index_fill(0, torch.tensor(4999), bad)
    tried = Momentum(LAYOUT, DemoSettings(), CPU)
    with pytest.raises(GradientError, match="got gain with entries"):
        tried.accumulate(broken)
    assert not tried.entries.any()


def test_a_gradient_above_a_bound_of_the_callers_own_is_named() -> None:
    given: dict[str, Tensor | None] = {
        **tensors_of(LAYOUT),
        "conv": torch.full(SHAPES["conv"], 100.0),
    }
    require_finite(given, 100.0)
    with pytest.raises(
        GradientError, match="of magnitude up to 99, got conv with entries from 100 to 100"
    ):
        require_finite(given, 99.0)


@pytest.mark.parametrize(
    ("chunks", "expected"), [(1, 1), (5, 1), (6, 2), (5000, 1000), (50_000, STRIP_CHUNKS_MAX)]
)
def test_models_of_any_size_are_cut_into_strips_small_beside_them(
    chunks: int, expected: int
) -> None:
    layout = ChunkLayout.from_shapes({"m": (64 * chunks, 64)})
    assert Accelerator(layout, CPU).strip_chunks == expected


def peak_bytes(work: Callable[[], object]) -> int:
    """Most bytes of tensors that are alive at once during `work`, beyond those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    events = [
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    return max(
        accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    )


def test_peak_bytes_are_of_tensors_alive_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            one = torch.zeros(10**6)
            del one

    assert peak_bytes(work) == 4 * 10**6


@pytest.mark.usefixtures("accelerated")
def test_a_step_takes_at_most_one_and_a_half_momenta() -> None:
    shapes: dict[str, tuple[int, ...]] = {f"matrix{i}": (1024, 512) for i in range(3)} | {
        "line": (9000,)
    }
    layout = ChunkLayout.from_shapes(shapes)
    gradients, parameters = (
        {name: torch.rand(shape) for name, shape in layout.shapes.items()} for _ in range(2)
    )
    author = Momentum(layout, DemoSettings(), CPU)
    author.accumulate(gradients)
    sent = author.extract()
    commit = [Contribution(1, sent.coefficients)] * 8
    rates = 0.5, 1.0
    steps: dict[str, Callable[[], object]] = {
        "accumulate": lambda: author.accumulate(gradients),
        "extract": lambda: author.extract().body(PayloadShape(layout.chunks, 32, 1)),
        "apply": lambda: apply(layout, parameters, commit, *rates),
    }
    peaks = {name: peak_bytes(work) / author.entries.nbytes for name, work in steps.items()}
    assert all(0 < peak <= 1.5 for peak in peaks.values()), peaks


class Kernels(TorchDispatchMode):
    """Counts operations other than views and looks at one tensor, which is on the host."""

    def __init__(self, on_host: Tensor) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self._on_host = on_host.data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        looks = func is torch.ops.aten._local_scalar_dense.default
        if not func.is_view and not (looks and args[0].data_ptr() == self._on_host):
            self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations(shapes: dict[str, tuple[int, ...]]) -> tuple[Counter[str], Counter[str]]:
    """Operations that accumulate a step's gradients, and that follow, to the payload and changed
    parameters.
    """
    layout = ChunkLayout.from_shapes(shapes)
    gradients: dict[str, Tensor | None] = {
        name: torch.ones(shape) for name, shape in shapes.items()
    }
    parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}
    rng = np.random.default_rng(0)
    given = [
        Contribution(1, reference.random_coefficients(rng, layout.chunks, top_k=4, value_max=1))
        for _ in range(2)
    ]
    author = Momentum(layout, DemoSettings(top_k=4), CPU)
    count = author.accumulations
    with Kernels(count) as taken:
        author.accumulate(gradients)
    with Kernels(count) as made:
        sent = author.extract()
        sent.body(PayloadShape(layout.chunks, 4, 1))
        apply(layout, parameters, given, 0.5, 0.5)
    return taken.seen, made.seen


@pytest.mark.usefixtures("accelerated")
def test_sixty_tensors_take_no_more_operations_than_four_and_one_look_at_the_device() -> None:
    four, sixty = (
        {f"line{i:02}": (30 // count,) for i in range(count)}
        | {f"matrix{i:02}": (64 * 30 // count, 64) for i in range(count)}
        for count in (2, 30)
    )
    operations(four)  # makes what is made once
    taken, made = operations(sixty)
    assert (taken, made) == operations(four)
    assert [seen["aten._local_scalar_dense.default"] for seen in (taken, made)] == [1, 0]
