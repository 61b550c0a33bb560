from dataclasses import replace

import pytest

from node.exact.optimizer.agreement import (
    UNCHECKED,
    Blame,
    Fault,
    Head,
    Verdict,
    difference,
    encode_lines,
    fault_of,
    judge,
)
from protocol.errors import RemoteProtocolError

HEAD = Head(b"p" * 16, UNCHECKED, 640, fault=False, overflow=False, work=True)


def test_a_head_comes_back_from_its_bytes_which_have_one_length() -> None:
    heads = [HEAD, Head(b"q" * 16, b"r" * 16, 2**40, fault=True, overflow=True, work=False)]
    blobs = [head.encode() for head in heads]
    assert [Head.decode(blob) for blob in blobs] == heads
    assert {len(blob) for blob in blobs} == {64}


def test_a_head_of_another_release_is_told() -> None:
    with pytest.raises(RemoteProtocolError, match="one release of Lockstep on all"):
        Head.decode(b"LSDeMo01" + HEAD.encode()[8:])


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (HEAD, Verdict.STEP),
        (replace(HEAD, work=False, room_bytes=0), Verdict.STEP),
        (replace(HEAD, overflow=True), Verdict.SKIP),
        (replace(HEAD, parameters=b"x" * 16, overflow=True), Verdict.PARAMETERS),
        (replace(HEAD, plan=b"x" * 16, parameters=b"x" * 16), Verdict.PLAN),
        (replace(HEAD, plan=UNCHECKED, fault=True), Verdict.FAULT),
    ],
)
def test_one_rank_decides_for_all(other: Head, verdict: Verdict) -> None:
    for heads in ([HEAD, other, HEAD], [other, HEAD, HEAD]):
        assert judge(heads) is verdict


def test_the_first_rank_with_a_fault_is_told_and_the_others_are_named() -> None:
    nan, negative = Fault(Blame.GRADIENT, "got NaN"), Fault(Blame.SETTINGS, "got -1")
    reports = [b"", nan.encode(), b"", negative.encode()]
    told = fault_of(reports, [0, 2, 4, 6])
    assert told == Fault(Blame.GRADIENT, "rank 2: got NaN; rank 6 cannot step either")
    assert fault_of([nan.encode()], [0]) == nan


def test_the_ranks_that_differ_from_most_are_named() -> None:
    usual, odd = {"lr": "0.1", "top_k": "8"}, {"lr": "0.1", "top_k": "9"}
    reports = [encode_lines(lines) for lines in (odd, usual, odd, usual, usual)]
    told = difference(reports, [*range(5)], {"top_k": "the k of all"})
    assert told == "the k of all is 9 on ranks [0, 2] where rank 1 has 8"


def test_what_a_rank_lacks_is_a_difference() -> None:
    reports = [encode_lines(lines) for lines in ({"lr": "1"}, {"lr": "1", "group 1": "2"})]
    assert difference(reports, [0, 1], {}) == "group 1 is 2 on rank 1 where rank 0 has missing"
