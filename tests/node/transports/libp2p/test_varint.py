"""Unsigned varints and sized bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.transports.libp2p.varint import read_sized, read_varint, sized, varint
from protocol.errors import RemoteProtocolError


@given(st.integers(0, 2**64 - 1), st.binary(max_size=20))
def test_a_varint_survives_and_says_where_it_ends(value: int, behind: bytes) -> None:
    assert read_varint(varint(value) + behind, 0) == (value, len(varint(value)))


def test_varints_are_those_of_the_specification() -> None:
    assert [varint(value).hex() for value in (0, 127, 128, 300)] == ["00", "7f", "8001", "ac02"]


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11])
def test_a_varint_without_an_end_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a varint at byte 0"):
        read_varint(data, 0)


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_sized_bytes_survive_and_say_where_they_end(data: bytes, behind: bytes) -> None:
    assert read_sized(sized(data) + behind, 0) == (data, len(sized(data)))


def test_sized_bytes_that_are_cut_short_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="expected 4 bytes at byte 1, got 3"):
        read_sized(sized(b"four")[:-1], 0)
