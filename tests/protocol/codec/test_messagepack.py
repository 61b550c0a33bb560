"""Promises of canonical MessagePack: golden bytes, limits before memory, one error for all else."""

import tracemalloc
from dataclasses import dataclass
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.commits import commit_bytes
from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.ids import sha256
from tests.protocol.codec.test_commits import commit, commits

bounded = settings(max_examples=300)


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    blob: bytes
    counts: tuple[int, ...]


def read(blob: bytes) -> Any:
    return unpacked(blob, text_bytes_max=32, items_max=8)


def test_the_bytes_of_a_struct_are_its_fields_in_declaration_order() -> None:
    found = packed(Sample("ab", b"\x00\x01", (1, 300)))
    expected = "83 a4 6e616d65 a2 6162 a4 626c6f62 c402 0001 a6 636f756e7473 92 01 cd012c"
    assert found == bytes.fromhex(expected)


def test_the_bytes_of_a_commit_are_those_of_every_version_before() -> None:
    """Msgspec's encoder, which wrote the first runs, made bytes of this SHA-256."""
    golden = "4a51cdb319c4ffb960119de74dda0d6e66cd05aa759008013d7eea7ed258cff9"
    assert sha256(commit_bytes(commit())).hex() == golden


@bounded
@given(commits)
def test_msgspec_writes_the_same_bytes_for_every_commit(original: Any) -> None:
    assert packed(original) == msgspec.msgpack.encode(original)


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("x" * 33, "max_str_len"),
        (b"x" * 33, "max_bin_len"),
        ([0] * 9, "max_array_len"),
        ({str(number): 0 for number in range(9)}, "max_map_len"),
        (msgpack.ExtType(1, b"x"), "max_ext_len"),
    ],
)
def test_a_length_above_its_limit_is_refused_by_name(value: Any, limit: str) -> None:
    with pytest.raises(RemoteProtocolError, match=limit):
        read(msgpack.packb(value))


@pytest.mark.parametrize("opening", ["dd ffffffff", "df ffffffff", "db ffffffff", "c6 ffffffff"])
def test_a_length_that_lies_takes_no_memory(opening: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            read(bytes.fromhex(opening))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x01\x01", b"\x91" * 5000, b"\x81\x90\x01"])
def test_bytes_that_are_not_one_value_are_refused(blob: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"expected MessagePack: \w"):
        read(blob)


@bounded
@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_one_error(blob: bytes) -> None:
    try:
        plain = read(blob)
        converted(plain, Sample)
    except RemoteProtocolError:
        pass


def test_a_field_of_the_wrong_type_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match=r"counts\[0\]"):
        converted({"name": "a", "blob": b"", "counts": ["1"]}, Sample)
