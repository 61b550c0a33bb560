"""A step of movements: the bits written down here on any device, and near what was moved."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.exact.local_steps.aggregate import MovementSum, apply
from protocol.codec.payload import Coefficients
from protocol.codec.scales import scales_of
from protocol.errors import LocalProtocolError
from protocol.limits import GAIN_MAX, GAIN_PARTS, VOTE_SUM_MAX
from protocol.sums.adding import exact_sums
from protocol.sums.movements import Counted, Movement, range_bits, scaled_weights
from protocol.sums.parts import within
from protocol.sums.ranges import ranges_of
from tests.node.exact import reference
from tests.node.exact.test_equal_bits import LAYOUT, contribution, digest_of, parameters, scrambled
from tests.protocol.sums.test_movements import bounds_of
from tests.support.votes import two_scales

DECAY = float(np.float32(0.9996))
GOLDEN = {
    1.0: "b3f1ccdbdd778ae29e4fe3ab38659498c1b008ec77d5bebe4f1ae44e5ff393cf",
    2.5: "99a3b92ea193af1a9fef9c354b76fd3d09f84270499ad399f9dc9f829c8e372d",
}
"""SHA-256 of the parameters after three steps, in float32, little-endian, by name; by gain."""


def movement(seed: int, samples: int, top_k: int, *, spread: int = 12, cap: int = 255) -> Movement:
    """Signs of scales that span `spread` quarters of a power of two around 2^-8; every fifth chunk
    has none.
    """
    sent = contribution(seed, 1, top_k, 1).coefficients
    codes = 4 * 48 - spread // 2 + scrambled(LAYOUT.chunks, seed + 400) % spread
    scales = codes.astype(np.uint8) * (sent.counts > 0).astype(np.uint8)
    return Movement(samples, cap, replace(sent, scales=scales))


STEPS = (
    [movement(1, 8, 32), movement(2, 8, 32), movement(3, 24, 192)],
    [movement(4, 70_001, 300), movement(5, 3, 4096), movement(6, 1, 1, cap=190)],
    [
        movement(7, 1, 192, spread=160),
        movement(8, 2, 4096, spread=160),
        movement(9, 2, 64, cap=-1),
        movement(10, 1, 64, spread=2),
    ],
)


def step_by_hand(
    found: dict[str, reference.Floats], movements: Sequence[Movement], gain: float
) -> dict[str, reference.Floats]:
    """A step in 64-bit whole numbers, chunk by chunk."""
    counted = [each for each in movements if each.code_max >= 0]
    weights = scaled_weights([each.samples for each in counted])
    total = max(1, sum(weights))
    bits, share = range_bits(total), np.float32(Fraction(gain if len(weights) > 1 else 1) / total)
    chunks = reference.to_chunks(found)
    for chunk in range(LAYOUT.chunks):
        parts = [
            (weight, *part_of(each, chunk))
            for each, weight in zip(counted, weights, strict=True)
            if each.coefficients.counts[chunk]
        ]
        bounds = bounds_of([(weight, code) for weight, code, *_ in parts])
        largest = max((code // 4 - 56 for code in bounds), default=0)
        sums = np.zeros(4096, np.int64)
        for (weight, _, places, signs), code in zip(parts, bounds, strict=True):
            exponent, mantissa = code // 4 - 56, 4 + code % 4
            if exponent >= largest - bits:
                sums[places] += (weight * mantissa << bits - largest + exponent) * signs
        entries, first = reference.halved(sums.reshape(64, 64))
        halfway, second = reference.halved(reference.T.T @ entries)
        whole = (halfway @ reference.T).astype(np.float32)
        moved = whole * np.ldexp(share, first + second + largest - bits - 21)
        chunks[chunk] = chunks[chunk] * np.float32(DECAY) - moved.astype(np.float32)
    tensors = reference.from_chunks(chunks, {name: each.shape for name, each in found.items()})
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def by_hand(steps: Sequence[Sequence[Movement]], gain: float) -> dict[str, reference.Floats]:
    """The parameters after steps."""
    found = {name: tensor.numpy() for name, tensor in parameters().items()}
    for movements in steps:
        found = step_by_hand(found, movements, gain)
    return found


def part_of(movement: Movement, chunk: int) -> tuple[int, np.ndarray, np.ndarray]:
    """The code of a chunk's scale below the author's cap, places and signs."""
    sent = movement.coefficients
    assert sent.scales is not None
    start = int(sent.counts[:chunk].sum(dtype=np.int64))
    here = slice(start, start + int(sent.counts[chunk]))
    code = min(int(sent.scales[chunk]), movement.code_max)
    return code, sent.indices[here], sent.values[here].astype(np.int64)


def after(
    steps: Sequence[Sequence[Movement]], gain: float, **how: int | bool
) -> dict[str, torch.Tensor]:
    found = parameters()
    for movements in steps:
        apply(LAYOUT, found, movements, DECAY, gain=gain, **how)  # type: ignore[arg-type]
    return found


def digest(found: dict[str, torch.Tensor]) -> str:
    return digest_of({name: tensor.numpy() for name, tensor in found.items()})


@pytest.mark.parametrize("gain", GOLDEN)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("strip_chunks", [1, 7, 1000])
def test_three_steps_end_at_the_digest_written_down(
    gain: float, flat: bool, strip_chunks: int
) -> None:
    assert digest(after(STEPS, gain, flat=flat, strip_chunks=strip_chunks)) == GOLDEN[gain]


@pytest.mark.parametrize("gain", GOLDEN)
def test_neither_threads_nor_the_order_of_authors_changes_a_bit(gain: float) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert digest(after([step[::-1] for step in STEPS], gain)) == GOLDEN[gain]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("gain", GOLDEN)
def test_the_reference_ends_at_the_same_digest(gain: float) -> None:
    assert digest_of(by_hand(STEPS, gain)) == GOLDEN[gain]


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, VOTE_SUM_MAX)), max_size=7),
    st.integers(GAIN_PARTS, GAIN_MAX * GAIN_PARTS),
    st.integers(1, 9),
)
def test_any_authors_and_any_gain_step_alike_both_ways_and_by_hand(
    said: list[tuple[int, int]], parts: int, strip_chunks: int
) -> None:
    step = [movement(seed, samples, 8, spread=60) for seed, samples in said]
    gain = parts / GAIN_PARTS
    expected = digest_of(by_hand([step], gain))
    assert digest(after([step], gain, flat=False)) == expected
    assert digest(after([step[::-1]], gain, flat=True, strip_chunks=strip_chunks)) == expected


def test_a_step_is_the_weighted_mean_of_what_was_moved() -> None:
    movements = [
        movement(seed, samples, top_k, spread=2)
        for seed, samples, top_k in ((1, 8, 32), (2, 8, 32), (3, 24, 192))
    ]
    before, after_step = parameters(), parameters()
    apply(LAYOUT, after_step, movements, 1.0)
    sums = np.zeros((LAYOUT.chunks, 4096))
    for each in movements:
        sent = each.coefficients
        rows = np.repeat(np.arange(LAYOUT.chunks), sent.counts)
        assert sent.scales is not None
        sizes = np.repeat(scales_of(sent.scales), sent.counts).astype(np.float64)
        sums[rows, sent.indices] += each.samples / 40 * sizes * sent.values
    moved = reference.D.T @ sums.reshape(-1, 64, 64) @ reference.D
    found = LAYOUT.gather({name: before[name] - after_step[name] for name in before}).numpy()
    inside = LAYOUT.gather({name: torch.ones_like(before[name]) for name in before}).numpy()
    peaks = np.abs(sums).max(axis=1)[:, None, None]
    assert (np.abs(found - moved * inside) <= peaks * 0.005 + 2e-7).all()
    assert np.abs(moved).max() > 0.001, "it moved at all"


def alone(codes: int, *, samples: int = 8, cap: int = 255, sign: int = 1) -> Movement:
    """One author that says the constant of every chunk, and nothing else."""
    ones = np.ones(LAYOUT.chunks, np.uint16)
    signs = np.full(LAYOUT.chunks, sign, np.int16)
    scales = np.full(LAYOUT.chunks, codes, np.uint8)
    return Movement(samples, cap, Coefficients(ones, ones * 0, signs, scales))


def moved_by(*movements: Movement, gain: float = 1.0) -> float:
    """What a step takes from every entry of a parameter that starts at zero."""
    found = {name: torch.zeros(shape) for name, shape in LAYOUT.shapes.items()}
    apply(LAYOUT, found, movements, 1.0, gain=gain)
    values = torch.cat([tensor.reshape(-1) for tensor in found.values()])
    assert values.unique().numel() == 1
    return -float(values[0])


def test_an_author_moves_by_its_scale_and_no_more_than_its_cap() -> None:
    one = 56 * 4  # the code of 1.0: the constant coefficient is 64 times an entry
    assert moved_by(alone(one)) == pytest.approx(1 / 64, rel=0.02)
    assert moved_by(alone(255, cap=one)) == moved_by(alone(one))
    assert moved_by(alone(one, cap=-1)) == 0.0
    assert moved_by(alone(one), alone(one, sign=-1)) == 0.0
    honest = [alone(one) for _ in range(3)]
    assert moved_by(*honest, alone(255, cap=one, sign=-1)) == pytest.approx(0.5 / 64, rel=0.02)


def test_an_author_counts_for_little_more_than_the_median_of_its_chunk() -> None:
    one, honest = 56 * 4, [alone(56 * 4) for _ in range(6)]
    boasting = [alone(255, sign=-1), alone(255, sign=-1)]
    assert moved_by(*honest, *boasting) == pytest.approx((6 - 2 * 1.5) / 8 / 64, rel=0.02)
    assert moved_by(*boasting, *honest) == moved_by(*honest, *boasting)
    larger = [alone(code, sign=-1) for code in (one + 2, one + 3)]  # 1.5 and 1.75
    assert moved_by(*honest, larger[0]) == pytest.approx((6 - 1.5) / 7 / 64, rel=0.02)
    assert moved_by(*honest, larger[1]) == moved_by(*honest, larger[0])


def test_an_author_of_more_samples_may_have_moved_as_much_further() -> None:
    one = 56 * 4
    slow = [alone(one) for _ in range(4)]
    fast = moved_by(*slow, alone(255, samples=24))  # 3 times the samples: 4.5, and 4 is a scale
    assert fast == pytest.approx((4 * 8 * 1 + 24 * 4) / 56 / 64, rel=0.15)
    most_weight = moved_by(*slow, alone(one + 8, samples=40))
    assert most_weight == pytest.approx((4 * 8 * 1 + 40 * 4) / 72 / 64, rel=0.02)


def test_the_gain_is_a_factor_on_the_mean_of_several_and_touches_no_sum() -> None:
    one = 56 * 4
    several = [alone(one), alone(one), alone(one, sign=-1)]
    assert moved_by(*several, gain=2.5) == pytest.approx(2.5 * moved_by(*several), rel=1e-6)
    assert moved_by(several[0], gain=2.5) == moved_by(several[0])
    muted = alone(one, cap=-1)
    assert moved_by(several[0], muted, gain=2.5) == moved_by(several[0]), "who may not move"
    sums = []
    for gain in (1.0, GAIN_MAX):
        strip = torch.empty(LAYOUT.chunks, 64, 64)
        MovementSum(LAYOUT, several, gain).sum_strip(0, strip)
        sums.append(strip)
    assert torch.equal(*sums)


@pytest.mark.parametrize("gain", [0.0, 0.5, -2.5, 65.0, 1.03, 1 + 2.0**-50, math.nan, math.inf])
def test_a_gain_that_is_not_in_sixteenths_or_beyond_its_bounds_is_our_own_fault(
    gain: float,
) -> None:
    with pytest.raises(LocalProtocolError, match="expected a gain of 1 to 64 in parts of 1/16"):
        moved_by(alone(56 * 4), gain=gain)


def test_authors_with_nothing_in_a_chunk_are_not_its_median() -> None:
    """Rows of tokens that only one author met are moved as it says."""
    one, silent = 56 * 4, np.zeros(LAYOUT.chunks, np.uint16)
    empty = Coefficients(silent, silent[:0], np.zeros(0, np.int16), silent.astype(np.uint8))
    others = [Movement(8, 255, empty) for _ in range(3)]
    assert moved_by(alone(one), *others) == pytest.approx(1 / 4 / 64, rel=0.02)


def test_authors_weigh_by_their_samples_and_those_without_a_cap_do_not_count() -> None:
    one = 56 * 4
    three_to_one = moved_by(alone(one, samples=300), alone(one, samples=100, sign=-1))
    assert three_to_one == pytest.approx(0.5 / 64, rel=0.02)
    assert moved_by(alone(one), alone(one, cap=-1, samples=1000)) == moved_by(alone(one))


def test_scales_too_far_below_the_largest_say_nothing() -> None:
    large, near, far = (alone(56 * 4 - 4 * distance) for distance in (0, 12, 13))
    strip = torch.empty(LAYOUT.chunks, 64, 64)
    counted = []
    for other in (near, far):
        MovementSum(LAYOUT, [large, other]).sum_strip(0, strip)
        counted.append(strip.sum().item() / LAYOUT.chunks)
    assert counted == [8 * 4 * 2**12 + 8 * 4, 8 * 4 * 2**12]
    assert moved_by(large, far) == moved_by(large) / 2


def test_a_commit_without_movements_only_decays() -> None:
    found, before = parameters(), parameters()
    before["bias"][0] = found["bias"][0] = -0.0
    apply(LAYOUT, found, [], DECAY)
    for name, tensor in found.items():
        assert torch.equal((before[name] * DECAY).view(torch.int32), tensor.view(torch.int32))


def test_movements_that_do_not_fit_are_our_own_fault() -> None:
    good = alone(200)
    sent = good.coefficients
    for wrong, reason in (
        (replace(sent, scales=None), "with scales, got none"),
        (replace(sent, counts=sent.counts[1:]), "counts and scales"),
        (replace(sent, values=sent.values * 2), "expected signs"),
        (replace(sent, indices=sent.indices + np.uint16(4096)), "places below 4096"),
    ):
        with pytest.raises(LocalProtocolError, match=reason):
            apply(LAYOUT, parameters(), [replace(good, coefficients=wrong)], 1.0)
    with pytest.raises(LocalProtocolError, match="at least 1 sample"):
        apply(LAYOUT, parameters(), [replace(good, samples=0)], 1.0)
    with pytest.raises(LocalProtocolError, match="float32"):
        apply(LAYOUT, parameters(), [good], 0.1)


def of_two_scales(seed: int, samples: int, cap: int = 255) -> Movement:
    return Movement(samples, cap, two_scales(LAYOUT.chunks, 96, seed))


@pytest.mark.parametrize(
    "movements",
    [*STEPS, [], [of_two_scales(1, 8), of_two_scales(2, 600, cap=170), of_two_scales(3, 1)]],
)
def test_a_range_is_added_without_torch_to_what_a_replica_sums(
    movements: Sequence[Movement],
) -> None:
    strip = torch.empty(LAYOUT.chunks, 64, 64)
    units = MovementSum(LAYOUT, movements).sum_strip(0, strip)
    counted = Counted(movements, LAYOUT.chunks)
    for among in ranges_of(LAYOUT.chunks, 5):
        parts = [replace(each, coefficients=within(each.coefficients, among)) for each in movements]
        alone = Counted(parts, among.chunks)
        sums, exponents = exact_sums(alone, range(len(alone.authors)), 0, among.chunks)
        expected = strip[among.slice].transpose(1, 2).reshape(-1, 4096).numpy()
        assert (sums == expected).all()
        share = np.float32(1 / counted.weight_sum)
        powers = exponents.astype(int) - 56 - counted.range_bits - 21
        assert (np.ldexp(share, powers) == units[among.slice].reshape(-1).numpy()).all()
