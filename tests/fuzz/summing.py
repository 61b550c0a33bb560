"""What those who add for all are sent, and what they say.

sums           the rounded sums of a range
author list    the authors behind a commit, which names whatever list it is
part list      the names of a payload's parts, whatever root they have
parts          a payload, cut and joined
wrong sum      an auditor's evidence against a summer
added part     any bytes, as the part of one of two authors
"""

from dataclasses import replace

import numpy as np

from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import (
    Commit,
    Entry,
    author_list_bytes,
    genesis_digest,
    sign_commit,
    with_author_list,
)
from protocol.codec.payload import PayloadShape, decode
from protocol.codec.sums import decode_sums, encode_sums, rounded
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, sha256
from protocol.sums.adding import Author, result_of
from protocol.sums.part_list import list_of, open_list
from protocol.sums.parts import cut, heard
from protocol.sums.signed import SumSigned, WrongSum, read_wrong_sum, wrong_sum_bytes
from tests.fuzz.targets import KEY, PEER, RUN, Target, payload_for, payloads
from tests.support.summed import sums_of

CHUNKS = 3
"""Chunks of the sums that are tried."""

SHAPE = PayloadShape(5, 3, 2, scaled=True)
PARTS = 3

OTHER = PeerId("ef" * 16)
WRONG_SUMS = tuple(
    wrong_sum_bytes(
        WrongSum(RUN, 3, SumSigned(2, sha256(b"a"), bytes(32), bytes(64), silent), sha256(b"b"))
    )
    for silent in ((), (0, 5, 4095))
)

AUTHORS = [Author(PEER, 8, 190), Author(OTHER, 24, 190)]


def judge_sums(blob: bytes) -> None:
    assert encode_sums(decode_sums(blob, CHUNKS)) == blob, "a second encoding"


def _with_sums() -> Commit:
    entries = tuple(Entry(each, sha256(each.encode()), 100, 4, 7) for each in (PEER, OTHER))
    results = tuple(RangeSum(each, sha256(b"sum"), 9, (each,)) for each in range(2))
    about = RUN, 3, 2, entries, 0x3C23D70A, 0x3F800000, genesis_digest(RUN)
    return Commit(*about, sums=sums_of(2, results, entries))


def judge_author_list(blob: bytes) -> None:
    """Even a coordinator that signs it can name authors in one way only."""
    commit = _with_sums()
    assert commit.sums is not None
    named = replace(commit, sums=replace(commit.sums, author_list=sha256(blob)))
    found = with_author_list(named, blob)
    assert found.sums is not None
    assert author_list_bytes(found.entries, found.sums.results) == blob, "a second encoding"


def judge_part_list(blob: bytes) -> None:
    """Even an author that signs it can name parts in one way only."""
    assert open_list(blob, PARTS, sha256(blob)).blob == blob, "a second encoding"


def judge_parts(blob: bytes) -> None:
    """What decodes is what its parts are joined to."""
    header, _ = decode(blob, SHAPE)
    assert heard(cut(blob, SHAPE, PARTS), SHAPE, header) == blob, "another payload"


def judge_wrong_sum(blob: bytes) -> None:
    assert wrong_sum_bytes(read_wrong_sum(blob)) == blob, "a second encoding"


def judge_added(blob: bytes) -> None:
    """Whatever an author sends, there is one result, and what is refused says why."""
    parts = {PEER: blob, OTHER: payload_for(SHAPE, 3, OTHER, 1)}
    one, other = (result_of(RUN, 3, order, parts, SHAPE, 4) for order in (AUTHORS, AUTHORS[::-1]))
    assert one.blob == other.blob, "two results"
    assert encode_sums(decode_sums(one.blob, SHAPE.chunks)) == one.blob, "a second encoding"
    if one.refused:
        assert set(one.refused) == {PEER}, "an honest author is refused"
        raise RemoteProtocolError(one.refused[PEER])


def sums_for(chunks: int) -> tuple[bytes, ...]:
    """Results of a range of chunks."""
    units = np.full(chunks, 40, np.uint8)
    found = []
    for seed, density in enumerate((0.0, 0.002, 0.01, 0.9)):
        random = np.random.default_rng(seed)
        sums = random.integers(-9, 10, (chunks, 4096)).astype(np.int32) ** 3
        sums *= random.random(sums.shape) < density
        found.append(encode_sums(rounded(sums, units, 4)))
    return tuple(found)


def targets() -> dict[str, Target]:
    """The readers by name."""
    whole = payloads(SHAPE)
    lists = tuple(list_of(cut(each, SHAPE, PARTS)).blob for each in whole)
    return {
        "sums": Target(judge_sums, sums_for(CHUNKS)),
        "author list": Target(judge_author_list, (sign_commit(_with_sums(), KEY).author_list,), 50),
        "part list": Target(judge_part_list, lists, 50),
        "parts": Target(judge_parts, whole, 50),
        "wrong sum": Target(judge_wrong_sum, WRONG_SUMS),
        "added part": Target(judge_added, whole, 20),
    }
