"""The audit of work compares signs: it tells the author's gradient from others."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.sign_audit import (
    NOTHING,
    acting_weights,
    gradient_coefficients,
    shared_places,
    sign_agreement,
)
from protocol.codec.payload import Coefficients
from protocol.codec.scales import scales_of
from protocol.sums.movements import ABOVE_MEDIAN, Movement

SHAPES = {"matrix": (256, 128), "small": (9,)}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
SETTINGS = DemoSettings(top_k=64)


def gradients(seed: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def payload(*seeds: int) -> Coefficients:
    """The payload of an author whose gradients were these, one after the other."""
    engine = Momentum(LAYOUT, SETTINGS, "cpu")
    for seed in seeds:
        engine.accumulate(gradients(seed))
    return engine.extract().coefficients


def flipped(sent: Coefficients) -> Coefficients:
    return Coefficients(sent.counts, sent.indices, -sent.values)


def test_an_author_agrees_with_its_own_gradient_and_its_opposite_never_does() -> None:
    own = gradient_coefficients(LAYOUT, gradients(1))
    found = sign_agreement(payload(1), own)
    assert found.share == 1.0
    assert found.compared == int(payload(1).counts.sum())
    assert sign_agreement(flipped(payload(1)), own).share == 0.0


def test_another_gradient_agrees_in_half_of_the_places() -> None:
    other = gradient_coefficients(LAYOUT, gradients(2))
    found = sign_agreement(payload(1), other)
    assert abs(found.share - 0.5) < 5 * found.sigma


def test_a_momentum_agrees_with_the_gradient_that_is_a_part_of_it() -> None:
    newest = gradient_coefficients(LAYOUT, gradients(4))
    assert 0.6 < sign_agreement(payload(1, 2, 3, 4), newest).share < 0.9


def test_a_copy_shares_all_places_and_two_authors_few() -> None:
    assert shared_places(payload(1), payload(1)) == 1.0
    assert shared_places(payload(1), flipped(payload(1))) == 1.0
    assert shared_places(payload(1), payload(2)) < 0.1


def test_where_nothing_was_sent_nothing_is_said() -> None:
    empty = Coefficients(
        np.zeros(LAYOUT.chunks, np.uint16), np.zeros(0, np.uint16), np.zeros(0, np.int16)
    )
    found = sign_agreement(empty, gradient_coefficients(LAYOUT, gradients(1)))
    assert found is NOTHING
    assert math.isnan(found.share)
    assert math.isnan(found.sigma)
    assert shared_places(empty, payload(1)) == 0.0


def test_a_sign_weighs_the_square_of_its_scale_as_the_step_counts_it() -> None:
    rows = [(100, 40), (100, 40), (200, 40)]
    movements = [moved(*codes, most=160) for codes in rows]
    weights = acting_weights(movements, 2)
    assert np.array_equal(weights[0], weights[1])
    bound = scales_of(np.array([100], np.uint8))[0] * ABOVE_MEDIAN
    assert weights[2][0] <= bound**2
    assert weights[2][0] > weights[0][0]
    assert weights[2][1] == weights[0][1]
    silent = acting_weights([moved(100, 40, most=-1), *movements[:2]], 2)
    assert [list(each) for each in silent[1:]] == [list(each) for each in weights[:2]]


def test_a_value_weighs_by_which_of_two_scales_it_has() -> None:
    own = gradient_coefficients(LAYOUT, gradients(1))
    one = payload(1)
    larger = np.arange(len(one.values)) % 3 == 0
    turned = np.where(larger, -2, 1)
    sent = replace(one, values=(one.values * turned).astype(np.int16))
    scales = np.tile(np.array([[100, 104]], np.uint8), (len(sent.counts), 1))
    bare = replace(sent, values=sent.values[:0], indices=sent.indices[:0], scales=scales)
    (weights,) = acting_weights([Movement(8, 160, bare)], len(sent.counts))
    assert weights.shape == (len(sent.counts), 2)
    assert (weights[:, 1] == 4 * weights[:, 0]).all()
    part = larger.mean()
    found = sign_agreement(sent, own, weights)
    assert found.share == pytest.approx((1 - part) / (1 - part + 4 * part))


def test_what_is_said_where_little_is_moved_hides_no_turned_sign() -> None:
    own = gradient_coefficients(LAYOUT, gradients(1))
    sent = payload(1)
    half = len(sent.counts) // 2
    turned = np.repeat(np.where(np.arange(len(sent.counts)) < half, -1, 1), sent.counts)
    shadow = replace(sent, values=(sent.values * turned).astype(np.int16))
    weights = np.where(np.arange(len(sent.counts)) < half, 16.0, 1.0)
    large, small = (int(sent.counts[part].sum()) for part in (slice(half), slice(half, None)))
    found = sign_agreement(shadow, own, weights)
    assert found.share == pytest.approx(small / (16 * large + small))
    assert found.compared == round((16 * large + small) ** 2 / (16**2 * large + small))
    assert sign_agreement(shadow, own).share == pytest.approx(small / (large + small))


def moved(*codes: int, most: int) -> Movement:
    """A movement of a place in each chunk, with these scales."""
    ones = np.ones(len(codes), np.uint16)
    signs, scales = ones.astype(np.int16), np.array(codes, np.uint8)
    return Movement(8, most, Coefficients(ones, np.zeros_like(ones), signs, scales))
