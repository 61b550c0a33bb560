"""Parts of a payload: each decodes alone, and all of them are the payload."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, RunId, sha256
from protocol.sums.parts import cut, heard, shape_of, within
from protocol.sums.ranges import Range, ranges_of
from tests.support.votes import signs, two_scales

HEADER = Header(RunId("ab" * 16), 7, PeerId("01" * 16))

GOLDEN = ["20d98ddbfd", "b3f9e35cd7", "dcb49ba9d2"]
"""First bytes of the digests of three parts."""


def payload(shape: PayloadShape, seed: int = 0, header: Header = HEADER) -> bytes:
    said = two_scales if shape.value_bits == 2 else signs
    return encode(header, said(shape.chunks, shape.top_k, seed), shape)


def fixed(chunks: int) -> bytes:
    """A payload that needs no chance."""
    counts = np.arange(chunks, dtype=np.uint16) % 4
    slots = np.concatenate([np.arange(count) for count in counts])
    values = np.where(np.arange(len(slots)) % 3, 1, -1).astype(np.int16)
    scales = (np.arange(chunks) + 100).astype(np.uint8) * (counts > 0)
    sent = Coefficients(counts, (slots * 900).astype(np.uint16), values, scales.astype(np.uint8))
    return encode(HEADER, sent, PayloadShape(chunks, 3, 1, scaled=True))


def test_parts_are_those_written_down() -> None:
    parts = cut(fixed(10), PayloadShape(10, 3, 1, scaled=True), 3)
    assert [sha256(part).hex()[:10] for part in parts] == GOLDEN


@settings(max_examples=100)
@given(
    chunks=st.integers(1, 30),
    top_k=st.integers(1, 200),
    value_bits=st.sampled_from([1, 2]),
    count=st.integers(1, 64),
    seed=st.integers(0, 1000),
)
def test_cutting_and_joining_are_each_others_way_back(
    chunks: int, top_k: int, value_bits: int, count: int, seed: int
) -> None:
    shape = PayloadShape(chunks, top_k, value_bits, scaled=True)
    whole, count = payload(shape, seed), min(count, chunks)
    parts = cut(whole, shape, count)
    assert heard(parts, shape, HEADER) == whole
    sent = decode(whole, shape)[1]
    for part, among in zip(parts, ranges_of(chunks, count), strict=True):
        header, alone = decode(part, shape_of(shape, among))
        assert header == HEADER
        np.testing.assert_array_equal(alone.indices, within(sent, among).indices)
        assert len(part) <= shape_of(shape, among).bytes_max


def test_payloads_without_scales_are_cut_too() -> None:
    shape, sent = PayloadShape(6, 40, 1), signs(6, 40)
    whole = encode(HEADER, Coefficients(sent.counts, sent.indices, sent.values), shape)
    assert heard(cut(whole, shape, 4), shape, HEADER) == whole


def test_what_does_not_decode_is_not_cut() -> None:
    shape = PayloadShape(6, 40, 1, scaled=True)
    with pytest.raises(RemoteProtocolError):
        cut(payload(shape)[:-1], shape, 3)


def test_a_range_beyond_the_chunks_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError, match="a range of 6 chunks"):
        within(signs(6, 4), Range(5, 7))


def test_of_parts_that_are_not_there_or_none_of_its_author_nothing_is_heard() -> None:
    shape, author = PayloadShape(6, 40, 2, scaled=True), HEADER
    whole, other = payload(shape), Header(HEADER.run_id, 8, HEADER.author)
    parts, foreign = cut(whole, shape, 3), cut(payload(shape, header=other), shape, 3)
    assert heard(parts, shape, author) == whole
    for wrong in (None, b"", parts[0][:-1], parts[0] + b"\0", cut(whole, shape, 2)[0], foreign[0]):
        header, found = decode(heard([wrong, *parts[1:]], shape, author), shape)
        assert header == author
        first, *rest = (within(found, among) for among in ranges_of(6, 3))
        assert not first.counts.any()
        for part, said in zip(parts[1:], rest, strict=True):
            np.testing.assert_array_equal(
                decode(part, shape_of(shape, Range(0, 2)))[1].values, said.values
            )
    assert decode(heard(foreign, shape, author), shape)[0] == other, "all of them another's"
    assert not decode(heard([None] * 3, shape, author), shape)[1].counts.any()
