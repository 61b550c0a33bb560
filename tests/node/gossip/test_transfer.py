"""Promises of a transfer: parts fit or are refused, and sources mix until they do not fit."""

import pytest

from node.gossip.transfer import Transfer
from node.links.frames import Part
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

A, B = (PeerId(letter * 32) for letter in "ab")
BLOB = bytes(range(100))


def part(offset: int, count: int, total: int = 100) -> Part:
    return Part(0, offset, total, BLOB[offset : offset + count])


def started(count: int = 40) -> Transfer:
    transfer = Transfer(7, 1000)
    transfer.append(part(0, count), A, None)
    return transfer


def test_parts_in_order_make_the_whole_and_the_last_says_so() -> None:
    transfer = Transfer(7, 1000)
    assert not transfer.complete
    assert [transfer.append(part(at, 25), A, 100) for at in range(0, 100, 25)] == [
        False,
        False,
        False,
        True,
    ]
    assert transfer.complete
    assert bytes(transfer.buffer) == BLOB
    assert transfer.discarded == 0


def test_another_source_goes_on_where_the_first_one_stopped() -> None:
    transfer = started(40)
    assert transfer.begin(B) == 40
    assert transfer.append(part(40, 60), B, None)
    assert transfer.sources == {A, B}


@pytest.mark.parametrize(
    ("size_max", "size", "total"), [(99, None, 100), (1000, 99, 100), (1000, None, 0)]
)
def test_a_whole_of_another_size_is_refused_before_its_bytes_are_kept(
    size_max: int, size: int | None, total: int
) -> None:
    transfer = Transfer(7, size_max)
    with pytest.raises(RemoteProtocolError, match="expected a payload of"):
        transfer.append(Part(0, 0, total, BLOB[:10]), A, size)
    assert (len(transfer.buffer), transfer.discarded, transfer.sources) == (0, 10, set())


def test_a_source_that_states_another_total_than_the_one_before_is_refused() -> None:
    transfer = started()
    with pytest.raises(RemoteProtocolError, match="100 bytes as before, got one of 101"):
        transfer.append(part(40, 10, total=101), B, None)


@pytest.mark.parametrize(("offset", "count"), [(41, 10), (39, 10), (0, 40), (40, 0), (40, 61)])
def test_a_part_that_is_not_the_next_one_is_refused(offset: int, count: int) -> None:
    transfer, data = started(), bytes(count)
    with pytest.raises(RemoteProtocolError, match=r"expected a part of 1\.\.60 bytes at 40"):
        transfer.append(Part(0, offset, 100, data), A, None)
    assert (len(transfer.buffer), transfer.discarded) == (40, count)


def test_a_part_that_fills_the_rest_exactly_is_the_last() -> None:
    assert started().append(part(40, 60), A, None)


def test_a_restart_counts_the_bytes_that_it_throws_away() -> None:
    transfer = started()
    transfer.restart(alone=False)
    assert (len(transfer.buffer), transfer.total, transfer.sources) == (0, None, set())
    assert transfer.discarded == 40
    assert transfer.append(part(0, 100), B, None)


def test_after_a_mixture_that_did_not_fit_bytes_of_two_sources_are_not_mixed() -> None:
    transfer = started()
    transfer.restart(alone=True)
    assert transfer.begin(A) == 0
    transfer.append(part(0, 30), A, None)
    assert transfer.begin(A) == 30, "the same source goes on"
    assert transfer.begin(B) == 0, "another one begins anew"
    assert transfer.discarded == 40 + 30
