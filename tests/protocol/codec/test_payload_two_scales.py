"""The payload container whose values have one of two scales: it comes back, and is canonical."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.payload import (
    ROUND_MAX,
    Coefficients,
    PayloadReader,
    PayloadShape,
    decode,
    encode,
    larger_counts,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError, SettingsError
from protocol.ids import sha256
from tests.protocol.codec.test_payload import HEADER, assert_same, coefficients_of, is_accepted
from tests.support.votes import two_scales

SMALL = PayloadShape(chunks=3, top_k=2, value_bits=2, scaled=True)

GOLDEN = {
    (1, 1): "429905d38a",
    (33, 7): "dea85ef2a8",
    (384, 40): "66f5f3c7e9",
}
"""First bytes of the SHA-256 of a container of (top_k, chunks) with every third chunk short."""


def small() -> Coefficients:
    """A chunk of both scales, an empty one, and one of the lower scale alone."""
    sent = coefficients_of([[3, 1000], [], [4095]], [2, -1, -1])
    return replace(sent, scales=np.array([[200, 203], [0, 0], [0, 0]], np.uint8))


def test_the_layout_of_a_small_container() -> None:
    parts = (
        "4c535053 2b00",  # LSPS, 43 bytes of header
        "98 01 c410" + "ab" * 16 + "07 c410" + "01" * 16 + "03 02 02 02",
        "06 02",  # the second and the third chunk are short and have none and one
        "c8 00",  # scales of the first and the third
        "cb 00",  # larger ones: the third has none
        "05050604040606060606",  # remainders
        "23",  # quotients
        "01 06",  # magnitudes and signs
    )
    assert encode(HEADER, small(), SMALL) == bytes.fromhex("".join(parts))


@pytest.mark.parametrize(("top_k", "chunks"), GOLDEN)
def test_a_container_is_the_bytes_written_down(top_k: int, chunks: int) -> None:
    counts = np.where(np.arange(chunks) % 3 == 0, top_k // 2, top_k)
    slots = np.concatenate([np.arange(count) for count in counts])
    larger = (slots % 3 == 1) & (np.arange(len(slots)) % 5 > 0)
    sent = Coefficients(
        counts.astype(np.uint16),
        (slots * 10 + np.arange(len(slots)) % 10).astype(np.uint16),
        np.where(larger, -2, 1).astype(np.int16),
    )
    there = np.stack([counts, larger_counts(sent.counts, sent.values)], axis=1) > 0
    scales = there * (np.arange(chunks)[:, None] * 37 % 200 + np.array([0, 3]))
    sent = replace(sent, scales=scales.astype(np.uint8))
    container = encode(HEADER, sent, PayloadShape(chunks, top_k, 2, scaled=True))
    assert sha256(container).hex()[:10] == GOLDEN[top_k, chunks]


@settings(max_examples=150)
@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32), st.integers(1, 5))
def test_both_scales_come_back_in_any_number_of_parts(
    top_k: int, chunks: int, seed: int, parts: int
) -> None:
    shape, sent = PayloadShape(chunks, top_k, 2, scaled=True), two_scales(chunks, top_k, seed)
    container = encode(HEADER, sent, shape)
    assert len(container) <= shape.bytes_max
    reader = PayloadReader(container, shape, parts)
    for part in reversed(range(parts)):
        reader.read(part)
    for found in (decode(container, shape)[1], reader.coefficients):
        assert_same(found, sent)
        assert found.scales is not None
        np.testing.assert_array_equal(found.scales, sent.scales)


@settings(max_examples=300)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32), st.data())
def test_a_mutated_container_is_refused_or_is_another_payload(
    top_k: int, chunks: int, seed: int, data: st.DataObject
) -> None:
    shape = PayloadShape(chunks, top_k, 2, scaled=True)
    container = encode(HEADER, two_scales(chunks, top_k, seed), shape)
    start = data.draw(st.integers(0, len(container)))
    stop = data.draw(st.integers(start, min(len(container), start + 2)))
    is_accepted(container[:start] + data.draw(st.binary(max_size=3)) + container[stop:], shape)


def test_every_single_mutation_is_refused_or_is_another_payload() -> None:
    container = encode(HEADER, small(), SMALL)
    flips = [
        container[:place] + bytes([container[place] ^ 1 << bit]) + container[place + 1 :]
        for place in range(len(container))
        for bit in range(8)
    ]
    assert {is_accepted(mutation, SMALL) for mutation in flips} == {True, False}


def test_the_largest_payload_fits_bytes_max_and_comes_near() -> None:
    shape = PayloadShape(40, 384, 2, scaled=True)
    places = list(range(4096 - 384, 4096))
    sent = coefficients_of([places] * 40, [1, -2] * 192 * 40)
    sent = replace(sent, scales=np.tile(np.array([250, 255], np.uint8), (40, 1)))
    size = len(encode(replace(HEADER, round=ROUND_MAX), sent, shape))
    assert shape.bytes_max - 64 <= size <= shape.bytes_max


MORE = "at most half of the values of a chunk"
OTHER = "a larger scale above the other"


@pytest.mark.parametrize(
    ("values", "scales", "reason"),
    [
        ([2, -2, -1], [[200, 203], [0, 0], [0, 0]], MORE),
        ([2, -1, 2], [[200, 203], [0, 0], [0, 1]], MORE),
        ([2, -1, -1], [[203, 203], [0, 0], [0, 0]], OTHER),
        ([2, -1, -1], [[203, 200], [0, 0], [0, 0]], OTHER),
        ([2, -1, -1], [[203, 0], [0, 0], [0, 0]], OTHER),
        ([1, -1, -1], [[200, 203], [0, 0], [0, 0]], OTHER),
        ([1, -1, -1], [[203, 200], [0, 0], [0, 0]], OTHER),
    ],
)
def test_a_second_way_to_say_the_same_is_refused_by_both_ends(
    monkeypatch: pytest.MonkeyPatch, values: list[int], scales: list[list[int]], reason: str
) -> None:
    wrong = replace(small(), values=np.array(values, np.int16), scales=np.array(scales, np.uint8))
    with pytest.raises(LocalProtocolError, match=reason):
        encode(HEADER, wrong, SMALL)
    with monkeypatch.context() as careless:
        careless.setattr("protocol.codec.payload._flaw_of_larger", lambda *_: "")
        container = encode(HEADER, wrong, SMALL)
    with pytest.raises(RemoteProtocolError, match=reason):
        decode(container, SMALL)


def test_scales_of_another_form_are_our_own_fault() -> None:
    one, sent = replace(SMALL, value_bits=1), small()
    assert sent.scales is not None
    for scales, shape in (
        (sent.scales[:, 0], SMALL),
        (sent.scales[:2], SMALL),
        (sent.scales + np.uint8(1), SMALL),
        (sent.scales, one),
    ):
        wrong = replace(sent, scales=scales, values=np.sign(sent.values))
        with pytest.raises(LocalProtocolError, match="uint8 scales of 3 chunks, 0 for empty ones"):
            encode(HEADER, wrong, shape)


def test_values_with_scales_have_at_most_two_bits() -> None:
    for value_bits in (4, 8):
        with pytest.raises(SettingsError, match=r"value_bits of \(1, 2\) with scales, got"):
            PayloadShape(1, 8, value_bits, scaled=True)
    assert [PayloadShape(1, 8, 2, scaled).scale_count for scaled in (False, True)] == [0, 2]


@given(st.lists(st.lists(st.sampled_from([1, -1, 2, -2]), max_size=5), min_size=1, max_size=6))
def test_larger_values_are_counted_by_chunk(chunks: list[list[int]]) -> None:
    counts = np.array([len(chunk) for chunk in chunks], np.uint16)
    values = np.array([value for chunk in chunks for value in chunk], np.int16)
    expected = [sum(abs(value) == 2 for value in chunk) for chunk in chunks]
    assert larger_counts(counts, values).tolist() == expected
