"""Promises of the check of parts: a part decodes for the ranges of its length alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.gossip.payload_check import ForeignPartError, PayloadCheck, Verdict
from node.sums.part_check import part_header_of
from protocol.codec.payload import Header, decode
from protocol.codec.payload_header import read_header
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, RunId
from protocol.sums.asked import places
from tests.node.gossip.crowd import RANGES, ROUND, SHAPE, parts_of
from tests.node.links.net import RUN, peer_of

HEADER_OF = part_header_of(SHAPE)
PARTS = parts_of(0)
OWN, OTHER = peer_of(0), peer_of(1)


def check_of(run: RunId = RUN) -> PayloadCheck:
    return PayloadCheck(run, lambda round, blob: decode(blob, SHAPE)[0], HEADER_OF)


def test_a_part_decodes_for_its_range_and_has_the_payloads_header() -> None:
    for number, part in enumerate(PARTS):
        assert HEADER_OF(part, number, RANGES) == Header(RUN, ROUND, OWN)


@pytest.mark.parametrize("where", [(-1, 4), (4, 4), (0, 0), (0, 11), (63, 64), (64, 65)])
def test_a_range_that_there_is_not_is_refused(where: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a range of at most 10"):
        HEADER_OF(PARTS[0], *where)


def test_a_part_passes_for_those_ranges_of_its_list_for_which_it_decodes() -> None:
    verdict = check_of().check_part(ROUND, PARTS[0], count=RANGES, claims={OWN: 0b1111})
    assert verdict == Verdict(OWN, 0b0101)  # two chunks, three, two, three
    both = {OWN: 0b0001, OTHER: 0b0010}
    assert check_of().check_part(ROUND, PARTS[0], count=RANGES, claims=both) == Verdict(OWN, 1)


def test_a_part_of_another_length_or_round_or_run_counts_for_nothing() -> None:
    for round, run, claims in (
        (ROUND, RUN, {OWN: 0b1010}),
        (ROUND, RUN, {OWN: 0}),
        (ROUND + 1, RUN, {OWN: 0b0001}),
        (ROUND, RunId("cd" * 16), {OWN: 0b0001}),
    ):
        with pytest.raises(RemoteProtocolError, match="expected") as refused:
            check_of(run).check_part(round, PARTS[0], count=RANGES, claims=claims)
        assert not isinstance(refused.value, ForeignPartError)


def test_a_part_of_an_author_that_does_not_list_it_is_foreign() -> None:
    claims: dict[PeerId, int] = {OTHER: 0b0001}
    with pytest.raises(ForeignPartError, match=f"expected a part of {OTHER}, got one of {OWN}"):
        check_of().check_part(ROUND, PARTS[0], count=RANGES, claims=claims)


def test_a_relay_reads_the_header_alone() -> None:
    relay = PayloadCheck(RUN, lambda round, blob: read_header(blob))
    verdict = relay.check_part(ROUND, PARTS[0], count=RANGES, claims={OWN: 0b1111})
    assert verdict == Verdict(OWN, 0b1111)
    with pytest.raises(ForeignPartError):
        relay.check_part(ROUND, PARTS[0], count=RANGES, claims={OTHER: 0b1111})


@given(st.binary(max_size=300) | st.integers(0, 8 * 60).map(lambda bit: _flipped(PARTS[1], bit)))
def test_any_bytes_pass_or_are_refused(blob: bytes) -> None:
    try:
        verdict = check_of().check_part(ROUND, blob, count=RANGES, claims={OWN: 0b1111})
    except RemoteProtocolError:
        return
    assert all(HEADER_OF(blob, place, RANGES) for place in places(verdict.ranges, RANGES))


def _flipped(blob: bytes, bit: int) -> bytes:
    changed = bytearray(blob)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
