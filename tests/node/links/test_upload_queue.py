"""Promises of the upload order: which upload begins next, and how many run at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.links.upload_queue import (
    AGED_MS,
    AHEAD_MS,
    RATE_ASSUMED,
    SOON_MS,
    UPLOADS_MAX,
    Upload,
    Uploads,
)
from protocol.ids import Digest, PeerId, sha256

A, B, C = (PeerId(f"{number:032x}") for number in range(3))
OWN, RARE, COMMON = (sha256(bytes([number])) for number in range(3))
LARGE = 10_000_000


def rank(peer: PeerId, digest: Digest) -> tuple[int, ...]:
    return ([OWN, RARE, COMMON].index(digest),)


def uploads_of(*asked: Upload, size: int = LARGE) -> Uploads:
    uploads = Uploads(rank)
    for upload in asked:
        uploads.asked(upload, size, 0)
    return uploads


def test_the_most_urgent_is_served_first_and_alone_on_an_uplink_of_which_nothing_is_known() -> None:
    uploads = uploads_of(Upload(A, COMMON), Upload(B, OWN), Upload(C, RARE))
    assert uploads.start(0) == [Upload(B, OWN)]
    assert uploads.start(0) == []
    uploads.ended(Upload(B, OWN))
    assert uploads.start(0) == [Upload(C, RARE)]


def test_two_peers_do_not_share_an_uplink_that_may_be_thin_even_for_a_small_payload() -> None:
    uploads = uploads_of(Upload(A, OWN), Upload(B, OWN), size=40_000)
    assert uploads.start(0) == [Upload(A, OWN)]
    uploads.sent(Upload(A, OWN), 2_000, 400)  # 0.04 Mbit/s
    assert uploads.start(400) == []


def test_equally_urgent_requests_are_served_in_the_order_of_their_coming() -> None:
    uploads = uploads_of(Upload(C, OWN), Upload(A, OWN), Upload(B, OWN))
    served = []
    while started := uploads.start(0):
        served += started
        uploads.ended(started[0])
    assert [upload.peer for upload in served] == [C, A, B]


def test_a_peer_that_is_being_served_comes_after_those_that_are_not() -> None:
    small = RATE_ASSUMED * AHEAD_MS // 1000 // 2 + 1  # two of them fill the time ahead
    uploads = uploads_of(Upload(A, OWN), Upload(A, RARE), Upload(B, COMMON), size=small)
    assert uploads.start(0) == [Upload(A, OWN), Upload(B, COMMON)]


def test_small_payloads_are_served_together_within_the_time_ahead() -> None:
    size = RATE_ASSUMED * AHEAD_MS // 1000 // 4
    asked = [Upload(PeerId(f"{number:032x}"), OWN) for number in range(10)]
    assert len(uploads_of(*asked, size=size).start(0)) == 4


def test_a_waiting_upload_begins_soon_when_the_others_want_little_of_the_uplink() -> None:
    soon = RATE_ASSUMED * SOON_MS // 1000
    uploads = uploads_of(Upload(A, OWN), size=soon)
    uploads.start(0)
    uploads.asked(Upload(B, OWN), LARGE, 0)
    assert not uploads.soon(Upload(B, OWN))
    uploads.sent(Upload(A, OWN), 1, 3_600_000)
    assert uploads.soon(Upload(B, OWN))
    assert not uploads.soon(Upload(A, OWN)), "it does not wait"
    assert not uploads.soon(Upload(C, OWN)), "it does not want anything"


def test_the_next_begins_before_the_last_bytes_of_the_one_before_are_acknowledged() -> None:
    uploads = uploads_of(Upload(A, OWN), Upload(B, OWN))
    uploads.start(0)
    uploads.sent(Upload(A, OWN), LARGE - RATE_ASSUMED * AHEAD_MS // 1000 + 1, 3_600_000)
    assert uploads.start(3_600_000) == [Upload(B, OWN)]


def test_a_fat_uplink_serves_many_at_once() -> None:
    asked = [Upload(PeerId(f"{number:032x}"), OWN) for number in range(20)]
    uploads = uploads_of(*asked)
    (first,) = uploads.start(0)
    uploads.sent(first, 2_000_000, 100)  # 20 MB/s
    assert len(uploads.start(100)) == 19


def test_a_peer_with_a_thin_downlink_does_not_hold_up_the_others() -> None:
    uploads = uploads_of(Upload(A, OWN), Upload(B, OWN))
    assert uploads.start(0) == [Upload(A, OWN)]
    assert uploads.start(60_000) == [Upload(B, OWN)]  # in a minute A has not taken a piece


def test_an_uplink_that_became_thinner_opens_fewer() -> None:
    uploads = uploads_of(*(Upload(PeerId(f"{number:032x}"), OWN) for number in range(200)))
    (first,) = uploads.start(0)
    uploads.sent(first, 2_000_000, 100)
    now_ms, serving = 100, [first, *uploads.start(100)]
    before = len(serving)
    for _ in range(200):  # 100 kB/s from now on
        now_ms += 400
        uploads.sent(serving[0], 10_000, now_ms)
        for upload in serving[1:4]:
            uploads.sent(upload, 10_000, now_ms)
        serving += uploads.start(now_ms)
    for upload in serving:
        uploads.ended(upload)
    assert len(uploads.start(now_ms)) < before // 4


def test_a_request_that_waited_long_goes_before_urgent_ones() -> None:
    uploads = uploads_of(Upload(A, COMMON))
    uploads.asked(Upload(B, OWN), LARGE, 1)
    assert uploads.start(AGED_MS) == [Upload(A, COMMON)]


def test_an_ended_request_is_not_served_and_its_late_acknowledgements_change_nothing() -> None:
    uploads = uploads_of(Upload(A, OWN))
    uploads.ended(Upload(A, OWN))
    uploads.sent(Upload(A, OWN), 1000, 10)
    assert uploads.start(10) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(["asked", "sent", "ended", "tick"])),
        max_size=200,
    )
)
def test_any_history_serves_each_request_once_and_never_idles_while_one_waits(
    history: list[tuple[int, str]],
) -> None:
    uploads, waiting, serving = Uploads(lambda peer, digest: ()), set[Upload](), set[Upload]()
    for now_ms, (number, what) in enumerate(history):
        upload = Upload(PeerId(f"{number:032x}"), OWN)
        if what == "asked" and upload not in waiting | serving:
            uploads.asked(upload, LARGE, now_ms)
            waiting.add(upload)
        elif what == "sent":
            uploads.sent(upload, 1000, now_ms)
        elif what == "ended":
            uploads.ended(upload)
            waiting.discard(upload)
            serving.discard(upload)
        for started in uploads.start(now_ms):
            waiting.remove(started)
            serving.add(started)
        assert serving or not waiting
        assert len(serving) <= UPLOADS_MAX


@pytest.mark.parametrize("again_ms", [0, 50])
def test_a_second_request_for_the_same_takes_the_place_of_the_first(again_ms: int) -> None:
    uploads = uploads_of(Upload(A, OWN))
    uploads.start(0)
    uploads.asked(Upload(A, OWN), LARGE, again_ms)
    uploads.sent(Upload(A, OWN), 1000, again_ms)
    assert uploads.start(again_ms) == [Upload(A, OWN)]
