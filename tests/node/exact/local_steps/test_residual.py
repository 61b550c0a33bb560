"""What was moved is sent or stays, and no more than once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.residual import Residual
from node.exact.rounding import Rounding
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, sealed
from protocol.codec.scales import scales_of
from protocol.ids import PeerId, RunId
from protocol.sums.movements import Movement
from tests.node.exact import reference

SHAPES: dict[str, tuple[int, ...]] = {"a": (130, 70), "b": (97,), "c": (65, 3, 43), "d": ()}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
SHAPE = PayloadShape(LAYOUT.chunks, 24, 1, scaled=True)

pytestmark = pytest.mark.usefixtures("each_backend")


def moved(seed: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * 0.01 for name, shape in SHAPES.items()}


def residual_after(rounds: int, **settings: Any) -> Residual:
    residual = Residual(LAYOUT, 24, "cpu", **settings)
    for seed in range(rounds):
        residual.accumulate(moved(seed))
    return residual


def said(sent: Coefficients) -> np.ndarray:
    """Float64 [chunks, 64, 64], transposed as a residual is: s * q."""
    found = np.zeros((LAYOUT.chunks, 4096))
    assert sent.scales is not None
    rows = np.repeat(np.arange(LAYOUT.chunks), sent.counts)
    columns = scales_of(sent.scales).reshape(LAYOUT.chunks, -1)
    sizes = columns[rows, np.abs(sent.values) - 1].astype(np.float64)
    found[rows, sent.indices] = sizes * np.sign(sent.values)
    return found.reshape(-1, 64, 64).swapaxes(1, 2)


def test_the_residual_is_the_transform_of_all_that_was_moved() -> None:
    residual = residual_after(2)
    tensors = [
        {name: tensor.numpy() for name, tensor in moved(seed).items() if tensor is not None}
        for seed in range(2)
    ]
    total = sum(reference.to_chunks(each) for each in tensors)
    expected = (reference.D @ total @ reference.D.T).swapaxes(1, 2)
    np.testing.assert_allclose(residual.entries, expected, atol=2e-3)  # bfloat16 on some


def test_signs_of_the_largest_leave_with_their_mean_magnitude_and_the_rest_stays() -> None:
    residual = residual_after(1)
    before = residual.entries.clone().numpy().astype(np.float64)
    sent = residual.extract().coefficients
    np.testing.assert_allclose(residual.entries, before - said(sent), atol=1e-7)
    assert sent.scales is not None
    for chunk in range(LAYOUT.chunks):
        largest = np.sort(np.abs(before[chunk]).ravel())[-24:]
        assert scales_of(sent.scales)[chunk] == pytest.approx(largest.mean(), rel=0.13)
        assert np.abs(said(sent)[chunk]).sum() > 0


@pytest.mark.parametrize("fade", [0.0, 0.5, 1.0])
def test_of_what_was_not_said_the_fade_is_left_after_a_round(fade: float) -> None:
    residual, fresh = residual_after(1), residual_after(0)
    residual.fade = fade
    residual.extract()
    rest = residual.entries.clone()
    for each in (residual, fresh):
        each.accumulate(moved(7))
    assert rest.abs().sum() > 0
    torch.testing.assert_close(residual.entries, fade * rest + fresh.entries)


@pytest.mark.parametrize("bits", [1, 2])
def test_what_is_said_becomes_what_was_moved_in_the_end(bits: int) -> None:
    """Error feedback: after many rounds without a movement little is left to say."""
    found = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    residual = residual_after(1, value_bits=bits)
    whole = residual.entries.square().sum()
    residual.top_k = 1500
    for _ in range(40):
        sent = residual.extract().coefficients
        apply(LAYOUT, found, [Movement(1, 255, sent)], 1.0)
    assert residual.entries.square().sum() < 0.01 * whole
    for name, tensor in moved(0).items():
        assert tensor is not None
        assert (found[name] + tensor).square().mean() < 0.03 * tensor.square().mean()


@pytest.mark.parametrize("bits", [1, 2])
def test_an_extraction_that_was_not_sent_comes_back_bit_for_bit(bits: int) -> None:
    residual = residual_after(2, value_bits=bits)
    before = residual.entries.clone()
    extraction = residual.extract()
    assert not torch.equal(residual.entries, before)
    residual.put_back(extraction)
    assert torch.equal(residual.entries, before)


def test_a_cap_cuts_what_is_said_and_keeps_the_rest() -> None:
    residual = residual_after(1)
    before = residual.entries.clone().numpy().astype(np.float64)
    free = residual_after(1).extract().coefficients
    assert free.scales is not None
    cap = int(free.scales.min()) - 3
    sent = residual.extract(code_max=cap).coefficients
    assert sent.scales is not None
    assert set(sent.scales.tolist()) == {cap}
    np.testing.assert_allclose(residual.entries, before - said(sent), atol=1e-7)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("code_max", [-1, 255])
def test_nothing_is_said_of_a_chunk_without_a_movement_or_without_a_cap(
    code_max: int, bits: int
) -> None:
    residual = residual_after(1, value_bits=bits)
    if code_max > 0:
        residual.entries[2:5].zero_()
    before = residual.entries.clone()
    sent = residual.extract(code_max=code_max).coefficients
    assert sent.scales is not None
    silent = range(2, 5) if code_max > 0 else range(LAYOUT.chunks)
    for chunk in range(LAYOUT.chunks):
        assert (sent.counts[chunk] == 0) == (chunk in silent)
    assert (sent.scales[list(silent)] == 0).all()
    assert torch.equal(residual.entries[list(silent)], before[list(silent)])


def test_in_bfloat16_small_movements_add_up_as_they_do_in_float32() -> None:
    """Each is a fortieth of a step of what is there: to the nearest, none would count."""
    exact, light = residual_after(0), Residual(LAYOUT, 24, "cpu", rounding=Rounding("cpu", 1))
    small = {name: 0.02 * tensor for name, tensor in moved(0).items() if tensor is not None}
    for each in (exact, light):
        each.entries.fill_(1.0)
        for _ in range(60):
            each.accumulate(small)
    assert light.entries.dtype == torch.bfloat16
    expected, found = (each.entries.float() - 1 for each in (exact, light))
    assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=3e-4)
    followed = (found * expected).sum() / expected.square().sum()
    assert float(followed) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("bits", [1, 2])
def test_a_residual_in_bfloat16_says_what_one_in_float32_says_of_the_same(bits: int) -> None:
    exact = residual_after(0, value_bits=bits)
    light = residual_after(1, value_bits=bits, rounding=Rounding("cpu"))
    exact.entries.copy_(light.entries)
    found, expected = (each.extract().coefficients for each in (light, exact))
    for name in ("counts", "values", "scales"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    torch.testing.assert_close(light.entries.float(), exact.entries, rtol=2**-8, atol=1e-6)


def test_what_was_moved_is_computed_when_it_is_asked_for() -> None:
    class Counted(dict[str, Tensor | None]):
        asked = 0

        def __getitem__(self, name: str) -> Tensor | None:
            self.asked += 1
            return super().__getitem__(name)

    counted, residual = Counted(moved(0)), residual_after(0)
    residual.accumulate(counted)
    assert counted.asked == 2 * len(SHAPES), "once by all strips that each has a part in"
    assert torch.equal(residual.entries, residual_after(1).entries)


@pytest.mark.parametrize("bits", [1, 2])
def test_the_payload_of_an_extraction_decodes_to_it(bits: int) -> None:
    extraction, shape = (
        residual_after(1, value_bits=bits).extract(),
        replace(SHAPE, value_bits=bits),
    )
    header = Header(RunId("ab" * 16), 3, PeerId("01" * 16))
    found_header, found = decode(sealed(header, extraction.body(shape), shape), shape)
    assert found_header == header
    for name in ("counts", "indices", "values", "scales"):
        np.testing.assert_array_equal(getattr(found, name), getattr(extraction.coefficients, name))


# ---- two scales


def test_values_above_the_median_leave_with_a_scale_of_their_own() -> None:
    residual = residual_after(1, value_bits=2)
    before = residual.entries.clone().numpy().astype(np.float64)
    sent = residual.extract().coefficients
    np.testing.assert_allclose(residual.entries, before - said(sent), atol=1e-7)
    assert sent.scales is not None
    for chunk in range(LAYOUT.chunks - 1):  # the last one has few entries
        lower, larger = np.split(np.sort(np.abs(before[chunk]).ravel())[-24:], 2)
        found = scales_of(sent.scales[chunk])
        assert found == pytest.approx([lower.mean(), larger.mean()], rel=0.13)
        magnitudes = np.abs(sent.values[24 * chunk : 24 * (chunk + 1)])
        above = (larger > lower[-1]).sum()  # fewer than half where some are as large as the median
        assert (magnitudes == 2).sum() == above > 6
    rest, signs = residual.entries.square().sum(), residual_after(1)
    signs.extract()
    assert rest < signs.entries.square().sum(), "two scales say more than one"


def test_unused_slots_do_not_count_beside_the_median() -> None:
    """A chunk of a few entries sends the larger scale for at most half of these."""
    residual, shape = residual_after(0, value_bits=2), replace(SHAPE, value_bits=2)
    for count, chunk in zip((1, 2, 3, 5), range(4), strict=True):
        residual.entries[chunk].view(-1)[:count] = 0.5 ** torch.arange(count)
    extraction = residual.extract()
    extraction.body(shape)  # judges what may be said
    sent = extraction.coefficients
    assert sent.counts[:4].tolist() == [1, 2, 3, 5]
    larger = [int((np.abs(part) == 2).sum()) for part in np.split(sent.values, [1, 3, 6, 11])]
    assert larger == [0, 1, 1, 2, 0]


def test_a_chunk_whose_scales_come_out_equal_has_one() -> None:
    residual = residual_after(0, value_bits=2)
    residual.entries[0].view(-1)[:24] = torch.linspace(1.0, 1.01, 24)
    free = residual_after(1, value_bits=2).extract().coefficients
    assert free.scales is not None
    cap = int(free.scales[:-1].min()) - 3
    for sent in (
        residual.extract().coefficients,
        residual_after(1, value_bits=2).extract(code_max=cap).coefficients,
    ):
        assert sent.scales is not None
        assert not sent.scales[:, 1].any()
        assert sent.scales[0, 0] > 0
        assert (np.abs(sent.values) == 1).all()


@pytest.mark.parametrize("bits", [1, 2])
def test_neither_strips_nor_other_chunks_change_a_bit(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = residual_after(2, value_bits=bits)
    extraction = whole.extract()
    monkeypatch.setattr("node.exact.local_steps.residual.HOST_STRIP_CHUNKS", 3)
    found = residual_after(2, value_bits=bits)
    active = torch.arange(LAYOUT.chunks) != 4
    parted = found.extract(active)
    assert extraction.scales is not None
    assert parted.scales is not None
    assert torch.equal(parted.values[active], extraction.values[active])
    assert torch.equal(parted.scales[active], extraction.scales[active])
    assert torch.equal(found.entries[active], whole.entries[active])
    assert not parted.values[4].any()
    assert not parted.scales[4].any()
    assert torch.equal(found.entries[4], residual_after(2).entries[4])
