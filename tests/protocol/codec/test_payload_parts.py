"""A payload read in parts is the payload that is read as one: the same coefficients, and the same
bytes refused.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.bits import pack_unary, unary_parts, unpack_unary
from protocol.codec.payload import Coefficients, PayloadReader, PayloadShape, decode, encode
from protocol.errors import RemoteProtocolError
from tests.protocol.codec.test_payload import (
    HEADER,
    assert_same,
    full_coefficients,
    random_coefficients,
    small_container,
)

bounded = settings(max_examples=150)


def in_parts(container: bytes, shape: PayloadShape, parts: int) -> Coefficients:
    """The coefficients, the last part read first."""
    reader = PayloadReader(container, shape, parts)
    for part in reversed(range(parts)):
        reader.read(part)
    assert reader.header == HEADER
    return reader.coefficients


def assert_read_alike(container: bytes, shape: PayloadShape, parts: int) -> bool:
    """Whether it is accepted: by both or by none."""
    try:
        expected = decode(container, shape)[1]
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            in_parts(container, shape, parts)
        return False
    assert_same(in_parts(container, shape, parts), expected)
    return True


@bounded
@given(
    chunks=st.integers(1, 40),
    top_k=st.integers(1, 300),
    parts=st.integers(1, 7),
    value_bits=st.sampled_from([1, 2, 4, 8]),
    empty=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_any_number_of_parts_reads_what_one_does(
    chunks: int, top_k: int, parts: int, value_bits: int, empty: float, seed: int
) -> None:
    shape = PayloadShape(chunks, top_k, value_bits)
    generator = np.random.default_rng(seed)
    counts = np.where(generator.random(chunks) < empty, generator.integers(0, top_k, chunks), top_k)
    counts[generator.random(chunks) < empty / 2] = 0
    sent = random_coefficients(shape, counts, seed)
    assert assert_read_alike(encode(HEADER, sent, shape), shape, parts)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_payload_without_a_coefficient_has_parts_too(parts: int) -> None:
    shape = PayloadShape(3, 4, 1)
    container = encode(HEADER, random_coefficients(shape, np.zeros(3, np.int64), 0), shape)
    assert in_parts(container, shape, parts).counts.tolist() == [0, 0, 0]


@bounded
@given(
    top_k=st.integers(1, 40),
    parts=st.integers(2, 5),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_a_mutated_payload_is_refused_in_parts_if_it_is_as_one(
    top_k: int, parts: int, seed: int, data: st.DataObject
) -> None:
    shape = PayloadShape(9, top_k, 1)
    container = encode(HEADER, full_coefficients(shape, seed), shape)
    start = data.draw(st.integers(50, len(container)))
    stop = data.draw(st.integers(start, min(len(container), start + 2)))
    assert_read_alike(
        container[:start] + data.draw(st.binary(max_size=3)) + container[stop:], shape, parts
    )


def test_every_flipped_bit_is_judged_alike() -> None:
    container, shape = small_container(), PayloadShape(chunks=2, top_k=2, value_bits=1)
    planes = len(container) - 14
    judged = {
        assert_read_alike(
            container[:place] + bytes([container[place] ^ 1 << bit]) + container[place + 1 :],
            shape,
            parts=2,
        )
        for place in range(planes, len(container))
        for bit in range(8)
    }
    assert judged == {True, False}


@bounded
@given(st.lists(st.integers(0, 60), max_size=80), st.lists(st.integers(0, 80), max_size=6))
def test_a_unary_plane_is_cut_before_any_of_its_quotients(
    quotients: list[int], cuts: list[int]
) -> None:
    plane = pack_unary(np.array(quotients, np.uint16))
    count = len(quotients)
    numbers = [0, *sorted(min(cut, count) for cut in cuts), count]
    parts = unary_parts(plane, numbers)
    found = [
        unpack_unary(part, stop - first, 60, skipped).tolist()
        for (part, skipped), first, stop in zip(parts, numbers, numbers[1:], strict=False)
    ]
    assert [quotient for each in found for quotient in each] == quotients
    assert [len(each) for each in found] == np.diff(numbers).tolist()
    with pytest.raises(RemoteProtocolError, match=f"expected {count + 1} ones"):
        unary_parts(plane, [0, count + 1])
