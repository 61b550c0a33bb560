"""The audit of work compares signs: it tells the author's gradient from others."""

import math

import numpy as np
import torch
from torch import Tensor

from node.demo.chunks import ChunkLayout
from node.demo.engine import DemoSettings, Engine
from node.demo.sign_audit import (
    Agreement,
    gradient_coefficients,
    shared_places,
    sign_agreement,
)
from protocol.codec.payload import Coefficients

SHAPES = {"matrix": (256, 128), "small": (9,)}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
SETTINGS = DemoSettings(top_k=64)


def gradients(seed: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def payload(*seeds: int) -> Coefficients:
    """The payload of an author whose gradients were these, one after the other."""
    engine = Engine(LAYOUT, SETTINGS, "cpu")
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
    assert found == Agreement(0, 0)
    assert math.isnan(found.share)
    assert math.isnan(found.sigma)
    assert shared_places(empty, payload(1)) == 0.0
