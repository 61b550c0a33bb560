import math

import numpy as np
import pytest
import torch

from node.exact import dct
from node.exact.chunks import ChunkLayout
from node.exact.dct import transposed
from node.exact.demo.momentum import DemoSettings, Momentum, quantise
from node.exact.engine import GradientError
from protocol.codec.payload import Header, PayloadShape, decode, encode
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId
from tests.node.exact import reference

pytestmark = pytest.mark.usefixtures("each_backend")

SHAPES: dict[str, tuple[int, ...]] = {"a": (130, 70), "b": (97,), "c": (65, 3, 43), "d": ()}
LAYOUT = ChunkLayout.from_shapes(SHAPES)


def gradients(seed: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def engine_after(steps: int, settings: DemoSettings | None = None) -> Momentum:
    engine = Momentum(LAYOUT, settings or DemoSettings(), "cpu")
    for seed in range(steps):
        engine.accumulate(gradients(seed))
    return engine


def as_numpy(tensors: dict[str, torch.Tensor | None]) -> dict[str, reference.Floats]:
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


@pytest.mark.parametrize("value_bits", [1, 2, 4, 8])
def test_steps_equal_the_reference_in_double_precision(
    monkeypatch: pytest.MonkeyPatch, value_bits: int
) -> None:
    monkeypatch.setattr(dct, "bfloat16_is_faster", lambda: False)
    engine = Momentum(LAYOUT, DemoSettings(0.6, top_k=24, value_bits=value_bits), "cpu")
    author = reference.Author(LAYOUT.chunks)
    for seed in range(4):
        engine.accumulate(gradients(seed))
        found = engine.extract().coefficients
        expected = author.step(
            as_numpy(gradients(seed)), decay=0.6, top_k=24, value_bits=value_bits
        )
        assert np.array_equal(found.counts, expected.counts)
        # float32 may prefer another of two nearly equal coefficients, or round a value on a half
        # the other way
        same = found.indices == expected.indices
        assert same.mean() > 0.99
        assert (found.values[same] == expected.values[same]).mean() > 0.99
        assert np.abs(found.values[same].astype(int) - expected.values[same]).max() <= 1
    close = np.isclose(engine.entries.mT.numpy(), author.momentum, atol=1e-3)
    assert close.mean() > 0.999


def test_extraction_fits_the_payload_and_comes_back_from_it() -> None:
    settings = DemoSettings(top_k=17, value_bits=4)
    coefficients = engine_after(2, settings).extract().coefficients
    shape = PayloadShape(LAYOUT.chunks, settings.top_k, settings.value_bits)
    header = Header(RunId("0" * 32), 3, PeerId("1" * 32))
    _, decoded = decode(encode(header, coefficients, shape), shape)
    assert np.array_equal(decoded.indices, coefficients.indices)
    assert np.array_equal(decoded.values, coefficients.values)
    assert np.array_equal(decoded.counts, coefficients.counts)


def test_the_largest_of_each_chunk_are_taken() -> None:
    engine = engine_after(3)
    before = engine.entries.flatten(1).abs()
    indices = engine.extract().coefficients.indices.reshape(LAYOUT.chunks, -1)
    taken = before.gather(1, transposed(torch.from_numpy(indices.astype(np.int64))))
    assert torch.equal(taken.sort(1).values, before.topk(32, dim=1).values.sort(1).values)


def test_zeros_are_never_sent() -> None:
    engine = Momentum(LAYOUT, DemoSettings(top_k=8), "cpu")
    engine.entries[0, 0, 0] = -3.0
    engine.entries[2, 1, 1] = 1e-45  # the least number above zero
    sent = engine.extract().coefficients
    assert sent.counts.tolist() == [1, 0, 1] + [0] * (LAYOUT.chunks - 3)
    assert (sent.indices.tolist(), sent.values.tolist()) == ([0, 65], [-1, 1])
    assert Momentum(LAYOUT, DemoSettings(), "cpu").extract().coefficients.indices.size == 0


def test_one_bit_is_a_sign_and_no_magnitude_is_as_small_as_none() -> None:
    kept = torch.tensor([[3.0, -1e-45, 0.0], [0.0, 0.0, 0.0]])
    assert quantise(kept, 1).tolist() == [[1, -1, 0], [0, 0, 0]]


def test_wider_values_are_parts_of_the_largest_and_at_least_one() -> None:
    kept = torch.tensor([[8.0, -5.2, 0.001, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert quantise(kept, 4).tolist() == [[8, -5, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("value_bits", [1, 8])
def test_sent_coefficients_leave_the_momentum_and_the_others_stay(value_bits: int) -> None:
    engine = engine_after(2, DemoSettings(value_bits=value_bits))
    before = engine.entries.clone().flatten(1)
    extraction = engine.extract()
    places = transposed(extraction.indices.long())
    expected = before.scatter(1, places, 0.0)
    assert torch.equal(engine.entries.flatten(1), expected)


def test_an_extraction_that_was_not_sent_comes_back_bit_for_bit() -> None:
    for bits in (1, 8):
        engine = engine_after(3, DemoSettings(value_bits=bits))
        before = engine.entries.clone()
        extraction = engine.extract()
        assert not torch.equal(engine.entries, before)
        engine.put_back(extraction)
        assert torch.equal(engine.entries.view(torch.int32), before.view(torch.int32))


def test_chunks_that_are_not_active_neither_change_nor_send() -> None:
    engine = engine_after(2)
    before = engine.entries.clone()
    active = LAYOUT.chunks_of({"a"})
    engine.accumulate(gradients(5), active)
    assert torch.equal(engine.entries[~active], before[~active])
    assert not torch.equal(engine.entries[active], before[active])
    extraction = engine.extract(active)
    assert torch.equal(engine.entries[~active].view(torch.int32), before[~active].view(torch.int32))
    assert (extraction.coefficients.counts > 0).tolist() == active.tolist()
    everywhere = engine_after(2)
    everywhere.accumulate(gradients(5))
    everywhere.extract()
    assert torch.equal(engine.entries[active], everywhere.entries[active])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_broken_gradient_is_named_before_the_momentum_is_touched(
    bad: float, dtype: torch.dtype
) -> None:
    engine = engine_after(1)
    before = engine.entries.clone()
    broken = gradients(1)
    broken["c"] = torch.zeros(SHAPES["c"], dtype=dtype)
    broken["c"][64, 2, 5] = bad
    with pytest.raises(GradientError, match="got c with entries"):
        engine.accumulate(broken)
    assert torch.equal(engine.entries, before)


def test_none_is_a_gradient_of_zeros() -> None:
    zeros, nones = engine_after(1), engine_after(1)
    some = gradients(1)
    zeros.accumulate({**some, "a": torch.zeros(SHAPES["a"]), "b": torch.zeros(SHAPES["b"])})
    nones.accumulate({**some, "a": None, "b": None})
    assert torch.equal(zeros.entries, nones.entries)


@pytest.mark.parametrize(
    "wrong",
    [
        {"momentum_decay": 1.0},
        {"momentum_decay": -0.1},
        {"momentum_decay": math.nan},
        {"top_k": 0},
        {"top_k": 4097},
        {"value_bits": 3},
    ],
)
def test_settings_outside_their_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=f"expected .*{next(iter(wrong))}.*, got"):
        DemoSettings(**wrong)  # type: ignore[arg-type]
