"""Payloads that hold parameters: one encoding in each form, and nothing else decodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.parameters import decode_parameters, encode_parameters, payload_bytes_max
from protocol.codec.payload import Header
from protocol.codec.payload_header import read_header
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, RunId

HEADER = Header(RunId("ab" * 16), 2**62, PeerId("cd" * 16))
VALUES = np.linspace(-2, 2, 77)


@pytest.mark.parametrize("form", [np.float16, np.float32])
def test_what_is_decoded_is_what_was_encoded(form: type) -> None:
    values = VALUES.astype(form)
    payload = encode_parameters(HEADER, values)
    header, found = decode_parameters(payload, 77)
    assert header == HEADER == read_header(payload)
    assert found.dtype == values.dtype
    assert (found == values).all()
    assert encode_parameters(header, found) == payload
    assert len(payload) <= payload_bytes_max(77)


@pytest.mark.parametrize("numbers", [76, 78])
def test_another_number_of_parameters_is_an_error(numbers: int) -> None:
    payload = encode_parameters(HEADER, VALUES.astype(np.float16))
    with pytest.raises(RemoteProtocolError, match="expected"):
        decode_parameters(payload, numbers)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("form", [np.float16, np.float32])
def test_numbers_that_are_not_finite_are_an_error(wrong: float, form: type) -> None:
    values = VALUES.astype(form)
    values[5] = wrong
    with pytest.raises(RemoteProtocolError, match="finite"):
        decode_parameters(encode_parameters(HEADER, values), 77)


def test_float64_is_no_form() -> None:
    with pytest.raises(LocalProtocolError, match="float64"):
        encode_parameters(HEADER, VALUES)


@given(st.binary(max_size=80), st.integers(0, 300))
def test_damaged_bytes_are_an_error_and_nothing_else(noise: bytes, at: int) -> None:
    payload = encode_parameters(HEADER, VALUES.astype(np.float16))
    damaged = payload[:at] + noise + payload[at + len(noise) :]
    try:
        header, values = decode_parameters(damaged, 77)
    except RemoteProtocolError:
        return
    assert encode_parameters(header, values) == damaged
