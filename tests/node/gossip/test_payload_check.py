"""A node says that it holds a payload only when every replica could apply it."""

import numpy as np
import pytest

from node.gossip.payload_check import PayloadCheck
from protocol.codec.payload import Blob, Coefficients, Header, PayloadShape, decode, encode
from protocol.codec.payload_header import read_header
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId, sha256

RUN, OTHER_RUN, AUTHOR = RunId("ab" * 16), RunId("cd" * 16), PeerId("01" * 16)
SHAPE = PayloadShape(chunks=2, top_k=2, value_bits=1)
LATER = PayloadShape(chunks=2, top_k=3, value_bits=1)
ROUND = 7


def payload(run: RunId = RUN, round: int = ROUND, shape: PayloadShape = SHAPE) -> bytes:
    counts = np.full(shape.chunks, shape.top_k, np.uint16)
    indices = np.tile(np.arange(shape.top_k, dtype=np.uint16), shape.chunks)
    values = np.ones(len(indices), np.int16)
    return encode(Header(run, round, AUTHOR), Coefficients(counts, indices, values), shape)


def header_of(round: int, blob: Blob) -> Header:
    return decode(blob, SHAPE if round <= ROUND else LATER)[0]


def test_a_payload_of_the_round_passes_and_its_author_is_known() -> None:
    check = PayloadCheck(RUN, header_of)
    blob = payload()
    assert check.author_of(sha256(blob)) is None
    assert check.check(ROUND, blob) == AUTHOR
    check.passed(sha256(blob), AUTHOR)
    assert check.author_of(sha256(blob)) == AUTHOR
    assert check.check(8, payload(round=8, shape=LATER)) == AUTHOR


@pytest.mark.parametrize(
    "blob",
    [
        payload(run=OTHER_RUN),
        payload(round=8),
        payload(shape=LATER),
        payload()[:-1],
        payload() + b"\0",
        b"LSP1\x02\x00\x91\x02",
        bytes(400),
    ],
)
def test_bytes_that_count_for_nothing_do_not_pass(blob: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected"):
        PayloadCheck(RUN, header_of).check(ROUND, blob)


def test_a_relay_which_has_no_model_reads_the_header_alone() -> None:
    relay = PayloadCheck(RUN, lambda round, payload: read_header(payload))
    assert relay.check(ROUND, payload(shape=LATER)[:-1]) == AUTHOR
    for blob in (payload(run=OTHER_RUN), payload(round=8), bytes(400)):
        with pytest.raises(RemoteProtocolError, match="expected"):
            relay.check(ROUND, blob)
