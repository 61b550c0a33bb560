"""The list of a payload's parts: one digest names all, and the list proves each."""

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.messagepack import packed
from protocol.errors import RemoteProtocolError
from protocol.ids import sha256
from protocol.limits import PAYLOAD_BYTES_LIMIT
from protocol.sums.part_list import (
    LIST_BYTES_MAX,
    MAGIC,
    PartList,
    PartName,
    list_of,
    open_list,
)
from protocol.sums.ranges import RANGES_MAX

PARTS = [b"one", b"another", b"one"]
GOLDEN = "7def87e835"
"""First bytes of the root of PARTS."""


def test_the_bytes_and_the_root_are_those_written_down() -> None:
    names = b"".join(b"\x92\xc4\x20" + sha256(part) + bytes([len(part)]) for part in PARTS)
    assert list_of(PARTS).blob == b"LSPL\x91\x93" + names
    assert list_of(PARTS).root.hex()[:10] == GOLDEN


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=RANGES_MAX))
def test_a_list_comes_back_and_has_one_part_for_each_range(parts: list[bytes]) -> None:
    told = list_of(parts)
    opened = open_list(told.blob, len(parts), told.root)
    assert opened == told
    assert opened.names == tuple(PartName(sha256(part), len(part)) for part in parts)
    for number, part in enumerate(parts):  # what is told to another summer has another root
        assert list_of([*parts[:number], part + b"\0", *parts[number + 1 :]]).root != told.root


def test_the_longest_list_fits_its_bound() -> None:
    longest = PartList((PartName(bytes(32), PAYLOAD_BYTES_LIMIT),) * RANGES_MAX)
    assert len(longest.blob) <= LIST_BYTES_MAX < len(longest.blob) + 8
    assert open_list(longest.blob, RANGES_MAX, longest.root) == longest


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "a list of parts of at most"),
        (MAGIC + bytes(LIST_BYTES_MAX), "a list of parts of at most"),
        (b"LSPS" + list_of(PARTS).blob[4:], "begin with b'LSPS'"),
        (list_of(PARTS[:2]).blob, "list of 3 parts, got one of 2"),
        (list_of(PARTS).blob + b"\0", "MessagePack"),
        (MAGIC + packed([[]]), "length"),
        (MAGIC + packed([[[bytes(31), 3]] * 3]), "length"),
        (MAGIC + packed([[[bytes(32), 0]] * 3]), "int"),
        (MAGIC + packed([[[bytes(32), 2**31 + 1]] * 3]), "int"),
        (MAGIC + packed([[[bytes(32), 3, 4]] * 3]), "length"),
        (MAGIC + b"\x91\xdc\0\x03" + packed([[bytes(32), 3]] * 3)[1:], "the shortest list"),
    ],
)
def test_other_bytes_are_refused_whatever_they_are_named(blob: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        open_list(blob, 3, sha256(blob))


def test_a_list_that_the_root_does_not_name_is_refused_before_it_is_read() -> None:
    told = list_of(PARTS)
    other = replace(told, names=told.names[::-1] + told.names[:1])
    with pytest.raises(RemoteProtocolError, match=f"list of parts {GOLDEN}"):
        open_list(other.blob, 4, told.root)
    assert msgpack.unpackb(told.blob[4:])[0][1][1] == len(PARTS[1])
