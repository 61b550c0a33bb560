"""The payload container with a scale for each chunk: it comes back, and has one encoding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.payload import ROUND_MAX, Coefficients, PayloadShape, decode, encode
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import sha256
from tests.protocol.codec.test_payload import (
    HEADER,
    assert_same,
    coefficients_of,
    is_accepted,
    random_coefficients,
)

SMALL = PayloadShape(chunks=3, top_k=2, value_bits=1, scaled=True)

GOLDEN = {
    (1, 1): "b6d46bbb87",
    (32, 7): "af60322bb5",
    (192, 40): "1a29cc0b94",
}
"""First bytes of the SHA-256 of a container of (top_k, chunks) with every third chunk short."""


def with_scales(sent: Coefficients, codes: list[int] | np.ndarray) -> Coefficients:
    scales = np.array(codes, np.uint8) * (sent.counts > 0)
    return replace(sent, scales=scales.astype(np.uint8))


def small() -> Coefficients:
    """Two coefficients of scale 200, none, and one of scale 0."""
    return with_scales(coefficients_of([[3, 1000], [], [4095]], [1, -1, -1]), [200, 9, 0])


def test_the_layout_of_a_small_container() -> None:
    parts = (
        "4c535053 2b00",  # LSPS, 43 bytes of header
        "98 01 c410" + "ab" * 16 + "07 c410" + "01" * 16 + "03 02 01 02",
        "06 02",  # the second and the third chunk are short and have none and one
        "c8 00",  # scales of the first and the third
        "05050604040606060606",  # remainders
        "23",  # quotients
        "06",  # signs
    )
    assert encode(HEADER, small(), SMALL) == bytes.fromhex("".join(parts))


@settings(max_examples=150)
@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32), st.floats(0, 1))
def test_scales_come_back_with_their_chunks(
    top_k: int, chunks: int, seed: int, full: float
) -> None:
    shape = PayloadShape(chunks, top_k, 1, scaled=True)
    generator = np.random.default_rng(seed)
    counts = np.where(generator.random(chunks) < full, top_k, generator.integers(0, top_k, chunks))
    sent = with_scales(random_coefficients(shape, counts, seed), generator.integers(0, 256, chunks))
    container = encode(HEADER, sent, shape)
    assert len(container) <= shape.bytes_max
    received = decode(container, shape)[1]
    assert_same(received, sent)
    assert received.scales is not None
    np.testing.assert_array_equal(received.scales, sent.scales)


@pytest.mark.parametrize(("top_k", "chunks"), GOLDEN)
def test_a_container_is_the_bytes_written_down(top_k: int, chunks: int) -> None:
    shape = PayloadShape(chunks, top_k, 1, scaled=True)
    counts = np.where(np.arange(chunks) % 3 == 0, top_k // 2, top_k)
    steps = np.arange(int(counts.sum()))
    slots = np.concatenate([np.arange(count) for count in counts])
    sent = Coefficients(
        counts.astype(np.uint16),
        (slots * 21 + steps % 21).astype(np.uint16),
        (1 - 2 * (steps // 3 % 2)).astype(np.int16),
    )
    container = encode(HEADER, with_scales(sent, np.arange(chunks) * 37 % 256), shape)
    assert sha256(container).hex()[:10] == GOLDEN[top_k, chunks]


def test_the_largest_payload_fits_bytes_max_and_comes_near() -> None:
    shape = PayloadShape(40, 192, 1, scaled=True)
    header = replace(HEADER, round=ROUND_MAX)
    sent = coefficients_of([list(range(4096 - 192, 4096))] * 40, [1] * 40 * 192)
    size = len(encode(header, with_scales(sent, [255] * 40), shape))
    assert shape.bytes_max - 64 <= size <= shape.bytes_max


def test_every_single_mutation_is_refused_or_is_another_payload() -> None:
    container = encode(HEADER, small(), SMALL)
    flips = [
        container[:place] + bytes([container[place] ^ 1 << bit]) + container[place + 1 :]
        for place in range(len(container))
        for bit in range(8)
    ]
    assert {is_accepted(mutation, SMALL) for mutation in flips} == {True, False}
    assert not any(is_accepted(container[:end], SMALL) for end in range(len(container)))
    for place in range(len(container)):
        is_accepted(container[:place] + container[place + 1 :], SMALL)
        is_accepted(container[:place] + b"\0" + container[place:], SMALL)


@settings(max_examples=300)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32), st.data())
def test_a_mutated_container_is_refused_or_is_another_payload(
    top_k: int, chunks: int, seed: int, data: st.DataObject
) -> None:
    shape = PayloadShape(chunks, top_k, 1, scaled=True)
    generator = np.random.default_rng(seed)
    sent = random_coefficients(shape, generator.integers(0, top_k + 1, chunks), seed)
    container = encode(HEADER, with_scales(sent, generator.integers(0, 256, chunks)), shape)
    start = data.draw(st.integers(0, len(container)))
    stop = data.draw(st.integers(start, min(len(container), start + 2)))
    is_accepted(container[:start] + data.draw(st.binary(max_size=3)) + container[stop:], shape)


def test_neither_form_is_taken_for_the_other() -> None:
    plain = replace(SMALL, scaled=False)
    with pytest.raises(RemoteProtocolError, match="starts with b'LSP1', got b'LSPS'"):
        decode(encode(HEADER, small(), SMALL), plain)
    with pytest.raises(RemoteProtocolError, match="starts with b'LSPS', got b'LSP1'"):
        decode(encode(HEADER, replace(small(), scales=None), plain), SMALL)


@pytest.mark.parametrize(
    ("codes", "scaled", "reason"),
    [
        (None, True, "a scale for each chunk, got none"),
        ([1, 0, 1], False, "no scales, got uint8"),
        ([1, 2, 1], True, "0 for empty ones"),
        ([1, 0], True, "scales of 3 chunks"),
    ],
)
def test_scales_that_do_not_fit_the_chunks_are_our_own_fault(
    codes: list[int] | None, scaled: bool, reason: str
) -> None:
    scales = None if codes is None else np.array(codes, np.uint8)
    with pytest.raises(LocalProtocolError, match=reason):
        encode(HEADER, replace(small(), scales=scales), replace(SMALL, scaled=scaled))


def test_a_container_that_lacks_scales_says_so() -> None:
    whole = encode(HEADER, small(), SMALL)
    with pytest.raises(RemoteProtocolError, match="2 bytes of scales, got 1"):
        decode(whole[:-13], SMALL)
