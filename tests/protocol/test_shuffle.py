"""The data order: a bijection by arithmetic, and a ledger in which no position is out twice."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.errors import LocalProtocolError
from protocol.shuffle import (
    POSITIONS_MAX,
    SAMPLES_MAX,
    DataOrder,
    Permutation,
    Share,
    samples_of,
)

bounded = settings(max_examples=100)
WORD = 2**64 - 1


def image_by_plain_integers(permutation: Permutation, index: int) -> int:
    """The same permutation in Python's own integers, from its description."""
    half = max(1, ((permutation.size - 1).bit_length() + 1) // 2)
    name = permutation.seed.to_bytes(8, "little") + permutation.epoch.to_bytes(8, "little")
    digest = hashlib.blake2b(name, digest_size=48, person=b"lockstep-shuffle").digest()
    while True:
        left, right = index >> half, index % 2**half
        for start in range(0, 48, 8):
            word = (right + int.from_bytes(digest[start : start + 8], "little")) & WORD
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
            word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
            left, right = right, left ^ (word ^ word >> 31) % 2**half
        index = left << half | right
        if index < permutation.size:
            return index


def chi_square(counts: np.ndarray) -> float:
    """Distance of counts from equal counts; its mean is len(counts) - 1, its variance twice
    that.
    """
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@bounded
@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_every_sample_comes_exactly_once(size: int, seed: int, epoch: int) -> None:
    images = Permutation(size, seed, epoch).take(np.arange(size, dtype=np.int64))
    np.testing.assert_array_equal(np.sort(images), np.arange(size))


@pytest.mark.parametrize("size", range(1, 66))
def test_every_small_size_is_a_bijection_in_every_epoch(size: int) -> None:
    for epoch in range(20):
        images = Permutation(size, 7, epoch).take(np.arange(size, dtype=np.int64))
        assert sorted(images.tolist()) == list(range(size))


@bounded
@given(st.integers(5000, SAMPLES_MAX), st.integers(0, 2**64 - 1), st.data())
def test_images_in_a_large_set_are_distinct_and_inside(
    size: int, seed: int, data: st.DataObject
) -> None:
    indices = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=50))
    images = Permutation(size, seed, 0).take(np.array(sorted(indices), np.int64))
    assert len(set(images.tolist())) == len(indices)
    assert images.min() >= 0
    assert images.max() < size


@bounded
@given(st.integers(1, SAMPLES_MAX), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1), st.data())
def test_numpy_and_plain_integers_agree(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    permutation = Permutation(size, seed, epoch)
    index = data.draw(st.integers(0, size - 1))
    assert permutation.at(index) == image_by_plain_integers(permutation, index)


def test_the_order_is_fixed_for_all_time() -> None:
    assert samples_of(0, 12, 10, 1).tolist() == [1, 3, 8, 2, 6, 5, 9, 7, 4, 0, 2, 5]
    assert [samples_of(position, 1, 10**12, 2**64 - 1).item() for position in (0, 1, 10**12)] == [
        245950266582,
        824279938767,
        830877822188,
    ]


def test_seeds_and_epochs_give_different_orders() -> None:
    indices = np.arange(100, dtype=np.int64)
    orders = {
        tuple(Permutation(100, seed, epoch).take(indices))
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


@pytest.mark.parametrize(("size", "cells"), [(3, 3), (5, 5), (50, 50), (64, 32), (1000, 50)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_index_goes_everywhere_equally_often_over_the_seeds(
    size: int, cells: int, place: int
) -> None:
    images = np.array([Permutation(size, seed, 3).at(place) for seed in range(3000)])
    counts = np.bincount(images * cells // size, minlength=cells)
    assert chi_square(counts) < (cells - 1) + 5 * (2 * (cells - 1)) ** 0.5


@pytest.mark.parametrize("size", [65_536, 70_000, 200_001])
def test_places_and_neighbours_look_independent_within_one_order(size: int) -> None:
    tens = Permutation(size, 5, 0).take(np.arange(size, dtype=np.int64)) * 10 // size
    places = np.arange(size) * 10 // size
    for other in (places, np.roll(tens, 1), np.roll(tens, 2)):
        assert chi_square(np.bincount(tens * 10 + other, minlength=100)) < 99 + 5 * 198**0.5


def test_no_indices_have_no_images() -> None:
    assert Permutation(5, 0, 0).take(np.empty(0, np.int64)).size == 0


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_outside_the_set_says_its_bounds(index: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"from 0 to 9, got {index}"):
        Permutation(10, 0, 0).at(index)
    with pytest.raises(LocalProtocolError, match=f"from 0 to 9, got {index}"):
        Permutation(10, 0, 0).take(np.array([3, index, 4], np.int64))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ((0, 0, 0), "a size"),
        ((1, -1, 0), "a seed"),
        ((1, 2**64, 0), "a seed"),
        ((1, 0, -1), "an epoch"),
    ],
)
def test_a_permutation_of_nothing_or_of_a_bad_seed_is_refused(
    fields: tuple[int, int, int], name: str
) -> None:
    with pytest.raises(LocalProtocolError, match=f"expected {name} from"):
        Permutation(*fields)


@bounded
@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_a_stretch_of_the_order_is_its_positions_one_by_one(
    first: int, count: int, samples: int, seed: int
) -> None:
    expected = [
        Permutation(samples, seed, position // samples).at(position % samples)
        for position in range(first, first + count)
    ]
    assert samples_of(first, count, samples, seed).tolist() == expected


def test_the_last_position_of_the_order_has_a_sample() -> None:
    assert 0 <= samples_of(POSITIONS_MAX - 1, 1, 7, 0).item() < 7
    with pytest.raises(LocalProtocolError, match="a count from 0 to 0, got 1"):
        samples_of(POSITIONS_MAX, 1, 7, 0)


def test_a_share_splits_into_what_was_used_and_what_returns() -> None:
    assert Share(10, 5).split(2) == (Share(10, 2), Share(12, 3))
    assert Share(10, 5).split(5) == (Share(10, 5), Share(15, 0))
    assert Share(10, 5).split(0) == (Share(10, 0), Share(10, 5))
    with pytest.raises(LocalProtocolError, match="used positions from 0 to 5, got 6"):
        Share(10, 5).split(6)


@pytest.mark.parametrize("fields", [(-1, 1), (0, -1), (POSITIONS_MAX, 1), (2, POSITIONS_MAX - 1)])
def test_a_share_outside_the_data_order_is_refused(fields: tuple[int, int]) -> None:
    with pytest.raises(LocalProtocolError, match="position"):
        Share(*fields)


def test_returned_positions_are_leased_again_first_and_lowest_first() -> None:
    order = DataOrder()
    assert order.lease(30) == (Share(0, 30),)
    order.give_back(Share(20, 4))
    order.give_back(Share(5, 3))
    assert order.lease(2) == (Share(5, 2),)
    assert order.lease(10) == (Share(7, 1), Share(20, 4), Share(30, 5))
    assert order == DataOrder(35, [])


def test_returned_positions_that_touch_become_one_share() -> None:
    order = DataOrder(10, [Share(0, 2), Share(5, 2)])
    order.give_back(Share(2, 3))
    assert order.returned == [Share(0, 7)]


def test_an_empty_lease_and_an_empty_return_change_nothing() -> None:
    order = DataOrder(10, [Share(2, 2)])
    assert order.lease(0) == ()
    order.give_back(Share(3, 0))
    order.give_back(Share(400, 0))
    assert order == DataOrder(10, [Share(2, 2)])


@pytest.mark.parametrize(
    "share",
    [
        Share(9, 2),
        Share(50, 1),
        Share(2, 2),
        Share(1, 2),
        Share(3, 3),
        Share(0, 9),
        Share(3, 1),
        Share(6, 2),
    ],
)
def test_positions_that_are_not_out_cannot_come_back_and_nothing_changes(share: Share) -> None:
    order = DataOrder(10, [Share(2, 2), Share(7, 1)])
    with pytest.raises(LocalProtocolError, match="expected positions"):
        order.give_back(share)
    assert order == DataOrder(10, [Share(2, 2), Share(7, 1)])


def test_the_data_order_ends_at_63_bits() -> None:
    order = DataOrder(POSITIONS_MAX - 1)
    with pytest.raises(LocalProtocolError, match="positions from 0 to 1, got 2"):
        order.lease(2)
    assert order.lease(1) == (Share(POSITIONS_MAX - 1, 1),)


class Ledger(RuleBasedStateMachine):
    """A data order against a plain set of the positions that are out."""

    def __init__(self) -> None:
        super().__init__()
        self.order = DataOrder()
        self.out: set[int] = set()
        self.shares: list[Share] = []

    @rule(count=st.integers(0, 12))
    def lease(self, count: int) -> None:
        available = sorted(set(range(self.order.next_position + count)) - self.out)
        shares = self.order.lease(count)
        positions = [p for share in shares for p in range(share.first, share.end)]
        assert positions == available[:count]
        self.out.update(positions)
        self.shares.extend(shares)

    @rule(data=st.data())
    def give_back_the_unused(self, data: st.DataObject) -> None:
        if self.shares:
            share = self.shares.pop(data.draw(st.integers(0, len(self.shares) - 1)))
            _, unused = share.split(data.draw(st.integers(0, share.count)))
            self.order.give_back(unused)
            self.out.difference_update(range(unused.first, unused.end))

    @rule(first=st.integers(0, 80), count=st.integers(1, 8))
    def give_back_anything(self, first: int, count: int) -> None:
        positions = set(range(first, first + count))
        try:
            self.order.give_back(Share(first, count))
        except LocalProtocolError:
            assert not positions <= self.out
        else:
            assert positions <= self.out
            self.out -= positions
            self.shares = [share for share in self.shares if self._is_out(share)]

    def _is_out(self, share: Share) -> bool:
        return set(range(share.first, share.end)) <= self.out

    @invariant()
    def every_position_is_out_or_available_and_never_both(self) -> None:
        returned = [p for share in self.order.returned for p in range(share.first, share.end)]
        assert sorted([*returned, *self.out]) == list(range(self.order.next_position))

    @invariant()
    def returned_shares_are_sorted_and_apart(self) -> None:
        shares = self.order.returned
        assert all(share.count for share in shares)
        assert all(low.end < high.first for low, high in pairwise(shares))


Ledger.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLedger = Ledger.TestCase
