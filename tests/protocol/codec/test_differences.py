"""Differences in one byte: close to what they stand for, bounded, and one encoding of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.differences import (
    BLOCK,
    DIFFERENCE_MAX,
    Differences,
    difference_bytes,
    from_bytes,
    rounded,
    to_bytes,
)
from protocol.codec.parameters import decode_parameters, encode_parameters, payload_bytes_max
from protocol.codec.payload import Header
from protocol.codec.payload_header import read_header
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId

HEADER = Header(RunId("ab" * 16), 7, PeerId("cd" * 16))
NUMBERS = 3 * BLOCK + 77
VALUES = (np.random.default_rng(5).normal(size=NUMBERS) / 100).astype(np.float32)
BASE = 2**64 - 3


def test_a_difference_is_off_by_half_a_level_at_most() -> None:
    found = rounded(BASE, VALUES)
    steps = np.repeat(found.scales, BLOCK)[:NUMBERS]
    assert (np.abs(found.values(0, NUMBERS) - VALUES) <= 0.5001 * steps).all()
    assert found.base == BASE


@pytest.mark.parametrize(("first", "last"), [(0, 1), (255, 257), (300, 301), (10, NUMBERS)])
def test_any_range_of_them_can_be_had(first: int, last: int) -> None:
    found = rounded(BASE, VALUES)
    assert (found.values(first, last) == found.values(0, NUMBERS)[first:last]).all()


def test_what_is_decoded_is_what_was_encoded_for_a_quarter_of_float32() -> None:
    sent = rounded(BASE, VALUES)
    payload = encode_parameters(HEADER, sent)
    header, found = decode_parameters(payload, NUMBERS)
    assert header == HEADER == read_header(payload)
    assert isinstance(found, Differences)
    assert found.equals(sent)
    assert encode_parameters(header, found) == payload
    assert len(to_bytes(sent)) == difference_bytes(NUMBERS) < 1.04 * NUMBERS
    assert len(payload) <= payload_bytes_max(NUMBERS)


def test_nothing_and_values_beyond_the_bounds_have_an_encoding_too() -> None:
    for values in (np.zeros(5), np.full(5, 1e-44), np.array([np.inf, -np.inf, np.nan, 1e9, 0.0])):
        with np.errstate(invalid="ignore"):
            sent = rounded(0, values.astype(np.float32))
        found = from_bytes(memoryview(to_bytes(sent)), 5)
        assert np.abs(found.values(0, 5)).max() < 1.001 * DIFFERENCE_MAX


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, -0.0, 600.0])
def test_a_scale_beyond_the_bounds_is_an_error(scale: float) -> None:
    sent = rounded(BASE, VALUES)
    scales = sent.scales.copy()
    scales[1] = scale
    blob = to_bytes(Differences(BASE, scales, sent.levels))
    with pytest.raises(RemoteProtocolError, match="scales"):
        from_bytes(memoryview(blob), NUMBERS)


def test_a_level_that_rounding_never_makes_is_an_error() -> None:
    sent = rounded(BASE, VALUES)
    levels = sent.levels.copy()
    levels[9] = -128
    blob = to_bytes(Differences(BASE, sent.scales, levels))
    with pytest.raises(RemoteProtocolError, match="-128"):
        from_bytes(memoryview(blob), NUMBERS)


@given(st.binary(max_size=80), st.integers(0, 1300))
def test_damaged_bytes_are_an_error_and_nothing_else(noise: bytes, at: int) -> None:
    payload = encode_parameters(HEADER, rounded(BASE, VALUES))
    damaged = payload[:at] + noise + payload[at + len(noise) :]
    try:
        header, values = decode_parameters(damaged, NUMBERS)
    except RemoteProtocolError:
        return
    assert encode_parameters(header, values) == damaged
