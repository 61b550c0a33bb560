import math

import numpy as np
import pytest
import torch

from node.demo import dct
from node.demo.chunks import ChunkLayout
from node.demo.dct import transposed
from node.demo.engine import (
    EXTRACTED,
    DemoSettings,
    Engine,
    Extraction,
    GradientError,
    quantise,
)
from protocol.codec.payload import Header, PayloadShape, decode, encode
from protocol.errors import LocalProtocolError, SettingsError
from protocol.ids import PeerId, RunId
from tests.node.demo import reference

pytestmark = pytest.mark.usefixtures("each_backend")

SHAPES: dict[str, tuple[int, ...]] = {"a": (130, 70), "b": (97,), "c": (65, 3, 43), "d": ()}
LAYOUT = ChunkLayout.from_shapes(SHAPES)


def gradients(seed: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def engine_after(steps: int, settings: DemoSettings | None = None) -> Engine:
    engine = Engine(LAYOUT, settings or DemoSettings(), "cpu")
    for seed in range(steps):
        engine.accumulate(gradients(seed))
    return engine


def as_numpy(tensors: dict[str, torch.Tensor | None]) -> dict[str, reference.Floats]:
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}


@pytest.mark.parametrize("value_bits", [1, 2, 4, 8])
def test_steps_equal_the_reference_in_double_precision(
    monkeypatch: pytest.MonkeyPatch, value_bits: int
) -> None:
    monkeypatch.setattr(dct, "_bfloat16_is_faster", lambda: False)
    engine = Engine(LAYOUT, DemoSettings(0.6, top_k=24, value_bits=value_bits), "cpu")
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
    close = np.isclose(engine.momentum.mT.numpy(), author.momentum, atol=1e-3)
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
    before = engine.momentum.flatten(1).abs()
    indices = engine.extract().coefficients.indices.reshape(LAYOUT.chunks, -1)
    taken = before.gather(1, transposed(torch.from_numpy(indices.astype(np.int64))))
    assert torch.equal(taken.sort(1).values, before.topk(32, dim=1).values.sort(1).values)


def test_zeros_are_never_sent() -> None:
    engine = Engine(LAYOUT, DemoSettings(top_k=8), "cpu")
    engine.momentum[0, 0, 0] = -3.0
    engine.momentum[2, 1, 1] = 1e-45  # the least number above zero
    sent = engine.extract().coefficients
    assert sent.counts.tolist() == [1, 0, 1] + [0] * (LAYOUT.chunks - 3)
    assert (sent.indices.tolist(), sent.values.tolist()) == ([0, 65], [-1, 1])
    assert Engine(LAYOUT, DemoSettings(), "cpu").extract().coefficients.indices.size == 0


def test_one_bit_is_a_sign_and_no_magnitude_is_as_small_as_none() -> None:
    kept = torch.tensor([[3.0, -1e-45, 0.0], [0.0, 0.0, 0.0]])
    assert quantise(kept, 1).tolist() == [[1, -1, 0], [0, 0, 0]]


def test_wider_values_are_parts_of_the_largest_and_at_least_one() -> None:
    kept = torch.tensor([[8.0, -5.2, 0.001, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert quantise(kept, 4).tolist() == [[8, -5, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("value_bits", [1, 8])
def test_sent_coefficients_leave_the_momentum_and_the_others_stay(value_bits: int) -> None:
    engine = engine_after(2, DemoSettings(value_bits=value_bits))
    before = engine.momentum.clone().flatten(1)
    extraction = engine.extract()
    places = transposed(extraction.indices.long())
    expected = before.scatter(1, places, 0.0)
    assert torch.equal(engine.momentum.flatten(1), expected)


def test_reclaim_right_after_extract_restores_every_bit() -> None:
    for bits in (1, 8):
        engine = engine_after(3, DemoSettings(value_bits=bits))
        before = engine.momentum.clone()
        extraction = engine.extract()
        assert not torch.equal(engine.momentum, before)
        engine.reclaim(extraction)
        assert torch.equal(engine.momentum.view(torch.int32), before.view(torch.int32))


def test_a_late_reclaim_is_as_if_nothing_had_been_taken() -> None:
    settings = DemoSettings(momentum_decay=0.9)
    engine, untouched = engine_after(2, settings), engine_after(2, settings)
    extraction = engine.extract()
    for seed in (10, 11, 12):
        engine.accumulate(gradients(seed))
        untouched.accumulate(gradients(seed))
    engine.reclaim(extraction)
    assert torch.allclose(engine.momentum, untouched.momentum, atol=1e-4)


def test_two_extractions_come_back_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        engine = engine_after(2)
        before = engine.momentum.clone()
        taken: list[Extraction] = [engine.extract(), engine.extract()]
        for index in order:
            engine.reclaim(taken[index])
        assert torch.allclose(engine.momentum, before, atol=1e-4)


def test_reclaiming_twice_or_from_another_momentum_is_refused() -> None:
    engine = engine_after(1)
    extraction = engine.extract()
    with pytest.raises(LocalProtocolError, match="from another"):
        engine_after(1).reclaim(extraction)
    engine.reclaim(extraction)
    with pytest.raises(LocalProtocolError, match="second time"):
        engine.reclaim(extraction)
    stale = engine.extract()
    engine.load_state_dict(engine.state_dict())
    with pytest.raises(LocalProtocolError, match="from another"):
        engine.reclaim(stale)


def test_chunks_that_are_not_active_neither_change_nor_send() -> None:
    engine = engine_after(2)
    before = engine.momentum.clone()
    active = LAYOUT.chunks_of({"a"})
    engine.accumulate(gradients(5), active)
    assert torch.equal(engine.momentum[~active], before[~active])
    assert not torch.equal(engine.momentum[active], before[active])
    extraction = engine.extract(active)
    assert torch.equal(
        engine.momentum[~active].view(torch.int32), before[~active].view(torch.int32)
    )
    assert (extraction.coefficients.counts > 0).tolist() == active.tolist()
    everywhere = engine_after(2)
    everywhere.accumulate(gradients(5))
    everywhere.extract()
    assert torch.equal(engine.momentum[active], everywhere.momentum[active])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_broken_gradient_is_named_before_the_momentum_is_touched(
    bad: float, dtype: torch.dtype
) -> None:
    engine = engine_after(1)
    before = engine.momentum.clone()
    broken = gradients(1)
    broken["c"] = torch.zeros(SHAPES["c"], dtype=dtype)
    broken["c"][64, 2, 5] = bad
    with pytest.raises(GradientError, match="got c with entries"):
        engine.accumulate(broken)
    assert torch.equal(engine.momentum, before)


def test_none_is_a_gradient_of_zeros() -> None:
    zeros, nones = engine_after(1), engine_after(1)
    some = gradients(1)
    zeros.accumulate({**some, "a": torch.zeros(SHAPES["a"]), "b": torch.zeros(SHAPES["b"])})
    nones.accumulate({**some, "a": None, "b": None})
    assert torch.equal(zeros.momentum, nones.momentum)


def test_the_momentum_survives_a_round_trip_and_a_foreign_one_is_refused() -> None:
    engine = engine_after(2)
    other = Engine(LAYOUT, DemoSettings(), "cpu")
    other.load_state_dict({name: tensor.clone() for name, tensor in engine.state_dict().items()})
    assert torch.equal(other.momentum, engine.momentum)
    assert other.accumulations == engine.accumulations == 2
    counted = engine.state_dict() | {"accumulations": torch.tensor([-1])}
    for foreign in (
        {},
        {"momentum": torch.zeros(1, 64, 64)},
        {"momentum": engine.momentum},
        counted,
    ):
        with pytest.raises(LocalProtocolError, match="expected momentum of"):
            other.load_state_dict(foreign)


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


@pytest.mark.parametrize("top_k", [3, 100])
def test_an_extraction_may_have_a_k_of_its_own(top_k: int) -> None:
    engine = engine_after(3, DemoSettings(top_k=24))
    twin = Engine(LAYOUT, DemoSettings(top_k=top_k), "cpu")
    twin.load_state_dict(engine.state_dict())
    before = engine.momentum.clone()
    extraction, expected = engine.extract(top_k=top_k), twin.extract()
    assert torch.equal(extraction.indices, expected.indices)
    assert torch.equal(extraction.values, expected.values)
    assert torch.equal(engine.momentum, twin.momentum)
    engine.reclaim(extraction)
    assert torch.equal(engine.momentum, before)
    engine.withdraw(expected.coefficients)
    assert torch.equal(engine.momentum, twin.momentum)


# ---- a momentum from before


def sent_since(engine: Engine) -> tuple[Engine, Extraction]:
    """An older copy of the engine, and what the engine has sent since."""
    older = Engine(LAYOUT, engine.settings, "cpu")
    older.load_state_dict(engine.state_dict())
    return older, engine.extract()


@pytest.mark.parametrize("value_bits", [1, 4])
def test_a_payload_is_withdrawn_from_an_older_copy_as_extract_took_it(value_bits: int) -> None:
    engine = engine_after(3, DemoSettings(top_k=24, value_bits=value_bits))
    engine.momentum[0] = 0
    engine.momentum[0, 3, :5] = torch.arange(1.0, 6)
    older, extraction = sent_since(engine)
    shape = PayloadShape(LAYOUT.chunks, 24, value_bits)
    header = Header(RunId("ab" * 16), 0, PeerId("cd" * 16))
    _, received = decode(encode(header, extraction.coefficients, shape), shape)
    older.withdraw(received)
    full = torch.from_numpy(received.counts == 24)
    assert full.tolist() == [False, *[True] * (LAYOUT.chunks - 1)]
    assert torch.equal(older.momentum[full], engine.momentum[full])
    torch.testing.assert_close(older.momentum, engine.momentum, rtol=0, atol=1e-5)


def test_a_withdrawal_leaves_entries_of_the_other_sign() -> None:
    engine = engine_after(1, DemoSettings(top_k=8))
    older, extraction = sent_since(engine)
    older.momentum.neg_()
    before = older.momentum.clone()
    older.withdraw(extraction.coefficients)
    assert torch.equal(older.momentum, before)


def test_a_withdrawal_from_no_momentum_leaves_none() -> None:
    engine = engine_after(1, DemoSettings(top_k=8))
    _, extraction = sent_since(engine)
    empty = Engine(LAYOUT, engine.settings, "cpu")
    empty.withdraw(extraction.coefficients)
    assert not empty.momentum.any()


def test_a_revived_extraction_is_reclaimed_as_the_one_it_was() -> None:
    engine = engine_after(2, DemoSettings(momentum_decay=0.5, top_k=8))
    extraction = engine.extract()
    engine.accumulate(gradients(7))
    again = Engine(LAYOUT, engine.settings, "cpu")
    again.load_state_dict(engine.state_dict())
    revived = again.revive(
        {name: getattr(extraction, name) for name in EXTRACTED}, engine.age(extraction)
    )
    engine.reclaim(extraction)
    again.reclaim(revived)
    assert torch.equal(again.momentum, engine.momentum)
