"""Bounds on the requests and parts of one link."""

import pytest

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, Part
from node.links.protocol_events import Accepted, Refused
from node.links.requests import (
    FETCHES_MAX,
    LATE_BYTES_MAX,
    OFFERS_OPEN_MAX,
    OwnRequests,
    PeerRequests,
    Received,
    is_well_cut,
)
from node.links.window import WINDOW_BYTES_MAX
from protocol.errors import LocalProtocolError, RemoteProtocolError, UnavailableError
from protocol.wire_pb2 import Ack


def part(request: int, count: int, offset: int = 0, total: int = 1 << 40) -> Part:
    return Part(request, offset, total, bytes(count))


# ---- own requests


def test_offers_and_fetches_are_numbered_together_from_one() -> None:
    own = OwnRequests()
    assert [own.open_offer("it"), own.open_fetch(0, "it"), own.open_offer("it")] == [1, 2, 3]


def test_open_requests_are_bounded_by_kind_and_the_peer_is_named() -> None:
    own = OwnRequests()
    for _ in range(OFFERS_OPEN_MAX):
        own.open_offer("peer ab")
    with pytest.raises(UnavailableError, match=f"peer ab is busy with {OFFERS_OPEN_MAX} requests"):
        own.open_offer("peer ab")
    for _ in range(FETCHES_MAX):
        own.open_fetch(0, "peer ab")
    with pytest.raises(UnavailableError, match=f"peer ab is busy with {FETCHES_MAX} requests"):
        own.open_fetch(0, "peer ab")


def test_an_answer_closes_its_request_once() -> None:
    own = OwnRequests()
    offer, fetch = own.open_offer("it"), own.open_fetch(0, "it")
    assert own.close_answered(Accepted(offer))
    assert own.close_answered(Refused(fetch, 1, ""))
    assert not own.is_fetch(fetch)
    assert not own.close_answered(Refused(fetch, 1, "")), "late: it was closed"


def test_the_answer_to_a_cancelled_fetch_is_late_and_to_none_an_error() -> None:
    own = OwnRequests()
    fetch = own.open_fetch(0, "it")
    with pytest.raises(RemoteProtocolError, match="got Accepted to 1"):
        own.close_answered(Accepted(fetch))
    assert own.close_fetch(fetch)
    assert not own.close_fetch(fetch)
    assert not own.close_answered(Refused(fetch, 1, ""))
    for request in (0, 2):
        with pytest.raises(RemoteProtocolError, match=f"got Refused to {request}"):
            own.close_answered(Refused(request, 1, ""))


def test_a_part_is_expected_by_an_open_fetch_only_and_must_be_well_cut() -> None:
    own = OwnRequests()
    fetch = own.open_fetch(PART_BYTES_MIN + 1, "it")
    assert own.expects(part(fetch, PART_BYTES_MIN))
    assert own.expects(part(fetch, 1, PART_BYTES_MIN))
    with pytest.raises(RemoteProtocolError, match="or the last, got 1 at 0"):
        own.expects(part(fetch, 1))
    assert not own.expects(part(fetch + 1, 1))


# ---- the peer's requests


def test_a_number_of_the_peer_never_comes_twice() -> None:
    theirs = PeerRequests()
    theirs.open_offer(5)
    theirs.close(5)
    for request in (5, 4, 0):
        with pytest.raises(RemoteProtocolError, match=f"numbered above 5, got {request}"):
            theirs.open_fetch(request, 0)
    theirs.open_fetch(6, 0)


def test_open_requests_of_the_peer_are_bounded_by_kind() -> None:
    theirs = PeerRequests()
    for number in range(FETCHES_MAX):
        theirs.open_fetch(number + 1, 0)
    with pytest.raises(RemoteProtocolError, match=f"at most {FETCHES_MAX} open requests"):
        theirs.open_fetch(100, 0)
    for number in range(OFFERS_OPEN_MAX):
        theirs.open_offer(200 + number)
    with pytest.raises(RemoteProtocolError, match=f"at most {OFFERS_OPEN_MAX} open requests"):
        theirs.open_offer(300)
    assert (theirs.open_fetches, theirs.open_offers) == (FETCHES_MAX, OFFERS_OPEN_MAX)


@pytest.mark.parametrize(("end", "total"), [(0, 10), (10, 1_000), (2_000, 10)])
def test_the_last_part_closes_a_fetch(end: int, total: int) -> None:
    theirs = PeerRequests()
    theirs.open_fetch(1, end)
    theirs.serve(part(1, 10, 0, total))
    assert not theirs.is_fetch(1)


def test_a_badly_cut_part_of_our_own_is_a_mistake_and_leaves_the_fetch_open() -> None:
    theirs = PeerRequests()
    theirs.open_fetch(1, 0)
    with pytest.raises(LocalProtocolError, match="expected a part of"):
        theirs.serve(part(1, 1))
    assert theirs.is_fetch(1)


# ---- received parts


def test_taken_bytes_are_acknowledged_once_and_together() -> None:
    received = Received()
    assert received.acknowledge() is None
    received.arrive(part(1, 100), is_late=False)
    received.arrive(part(1, 50), is_late=False)
    received.take(100, 7)
    received.take(20, 9)
    assert received.waiting_bytes == 30
    assert received.acknowledge() == Ack(part_bytes=120, taken_ms=9)
    assert received.acknowledge() is None
    with pytest.raises(LocalProtocolError, match="at most 30 bytes taken, as many as arrived"):
        received.take(31, 9)


def test_untaken_bytes_are_bounded() -> None:
    received = Received()
    for _ in range(WINDOW_BYTES_MAX // PART_BYTES_MAX + 1):
        received.arrive(part(1, PART_BYTES_MAX), is_late=False)
    with pytest.raises(RemoteProtocolError, match=f"at most {WINDOW_BYTES_MAX} unacknowledged"):
        received.arrive(part(1, 1), is_late=False)


def test_late_bytes_are_allowed_after_a_cancellation_only_and_bounded() -> None:
    received = Received()
    with pytest.raises(RemoteProtocolError, match="got some of request 7"):
        received.arrive(part(7, 1), is_late=True)
    received.allow_late()
    for _ in range(LATE_BYTES_MAX // PART_BYTES_MAX):
        received.arrive(part(7, PART_BYTES_MAX), is_late=True)
        received.take(PART_BYTES_MAX, 0)
    with pytest.raises(RemoteProtocolError, match="got some of request 7"):
        received.arrive(part(7, 1), is_late=True)


@pytest.mark.parametrize(
    ("offset", "count", "total", "end", "fine"),
    [
        (0, 10, 10, 0, True),
        (0, 10, 11, 0, False),
        (0, 10, 11, 10, True),
        (0, PART_BYTES_MIN, PART_BYTES_MIN + 1, 0, True),
        (0, 11, 10, 0, False),
        (5, 6, 100, 10, False),
        (10, 1, 10, 0, False),
    ],
)
def test_a_part_is_large_or_the_last_of_its_range(
    offset: int, count: int, total: int, end: int, fine: bool
) -> None:
    assert is_well_cut(part(1, count, offset, total), end) == fine
