"""A frame is taken whole or not at all, however the stream is cut, damaged or made up."""

import hashlib
import sys
import tracemalloc
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.links import frames
from node.links.frames import (
    CONTROL_BYTES_MAX,
    HEADER_BYTES,
    JOINED_BYTES_MAX,
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    PART_FRAME_OVERHEAD,
    FrameReader,
    Message,
    Part,
    encode,
    grouped,
    part_data,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire_pb2 import Ack, Beat, Cancel, Goodbye, LinkFetch, LinkMessage

PART = Part(7, 4096, 70_000, bytes(range(256)) * 16)

controls = st.one_of(
    st.just(LinkMessage()),
    st.builds(lambda n: LinkMessage(ack=Ack(part_bytes=n)), st.integers(0, 2**64 - 1)),
    st.builds(
        lambda n, b: LinkMessage(beat=Beat(sent_ms=n, reply=b)),
        st.integers(0, 2**64 - 1),
        st.booleans(),
    ),
    st.builds(lambda n: LinkMessage(cancel=Cancel(request=n)), st.integers(0, 2**32 - 1)),
    st.builds(
        lambda t: LinkMessage(goodbye=Goodbye(reason=t)),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    st.builds(lambda d: LinkMessage(fetch=LinkFetch(request=1, digest=d)), st.binary(max_size=64)),
)
parts = st.builds(
    Part,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=1, max_size=300),
)


def read(*pieces: bytes) -> list[Message]:
    reader = FrameReader()
    return [message for piece in pieces for message in reader.feed(piece)]


def header(kind: int, length: int) -> bytes:
    return b"LS" + bytes([kind, 0]) + length.to_bytes(4, "big") + bytes(8)


@settings(max_examples=200)
@given(st.lists(controls | parts, max_size=6), st.data())
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    messages: list[Message], data: Any
) -> None:
    stream = b"".join(map(encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert read(*pieces) == messages


@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 65_535, PART_BYTES_MAX - 1, PART_BYTES_MAX])
@pytest.mark.parametrize("piece", [1021, 65_536, 1024 * 1024])
def test_a_part_of_any_size_comes_whole_from_pieces_of_any_size(size: int, piece: int) -> None:
    part = Part(1, 0, size, bytes(range(251)) * (size // 251) + bytes(size % 251))
    stream = encode(part)
    assert len(stream) == size + PART_FRAME_OVERHEAD
    assert read(*(stream[at : at + piece] for at in range(0, len(stream), piece))) == [part]


@pytest.mark.parametrize(
    "message", [PART, LinkMessage(ack=Ack(part_bytes=2**40)), LinkMessage()], ids=str.__class__
)
def test_every_flipped_bit_is_refused(message: Message) -> None:
    frame = encode(message)
    after = bytes(
        CONTROL_BYTES_MAX + PART_BYTES_MAX
    )  # a longer length waits for what follows, then fails as well
    for bit in range(8 * min(len(frame), 64)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            read(bytes(damaged), after)


def digest(covered: bytes) -> bytes:
    """The digest in a frame's header, computed here anew."""
    return hashlib.sha256(covered).digest()[:8]


def kept_bytes(reader: FrameReader) -> int:
    return len(reader._buffer)


@settings(max_examples=100)
@given(st.integers(0, 8 * (len(PART.data) + PART_FRAME_OVERHEAD) - 1))
def test_a_flipped_bit_anywhere_in_a_part_gives_nothing(bit: int) -> None:
    damaged = bytearray(encode(PART))
    damaged[bit // 8] ^= 1 << bit % 8
    reader = FrameReader()
    try:
        assert list(reader.feed(bytes(damaged))) == []
    except RemoteProtocolError:
        return
    assert kept_bytes(reader) == len(damaged)  # a longer length: it waits


def test_a_truncated_stream_gives_nothing_until_its_rest_comes() -> None:
    frame = encode(PART)
    for end in [*range(60), len(frame) - 1]:
        reader = FrameReader()
        assert list(reader.feed(frame[:end])) == []
        assert kept_bytes(reader) == end
    assert list(reader.feed(frame[-1:])) == [PART]
    assert kept_bytes(reader) == 0


def test_a_frame_missing_from_the_middle_is_found() -> None:
    first, second = encode(PART), encode(LinkMessage(ack=Ack(part_bytes=5)))
    with pytest.raises(RemoteProtocolError):
        read(first[:-100] + second + bytes(200))


@pytest.mark.parametrize(
    ("kind", "length_max", "words"),
    [
        (1, CONTROL_BYTES_MAX, "131072 bytes, got 131073"),
        (2, PART_BYTES_MAX + 20, "524308 bytes, got 524309"),
    ],
)
def test_a_length_above_its_cap_is_refused_at_the_header(
    kind: int, length_max: int, words: str
) -> None:
    reader = FrameReader()
    assert list(reader.feed(header(kind, length_max))) == []
    for length in (length_max + 1, 2**32 - 1):
        reader = FrameReader()
        assert list(reader.feed(header(kind, length)[: HEADER_BYTES - 1])) == []
        with pytest.raises(
            RemoteProtocolError, match=words if length == length_max + 1 else "4294967295"
        ):
            list(reader.feed(b"\0"))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "begins with b'LS'"),
        (b"LS\x01\x01" + bytes(12), "begins with b'LS'"),
        (header(0, 1), "kind 1 or 2, got 0"),
        (header(3, 1), "kind 1 or 2, got 3"),
        (header(255, 1), "kind 1 or 2, got 255"),
    ],
)
def test_a_bad_header_is_quoted_in_the_error(head: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        read(head)


def test_a_part_without_data_is_refused_on_both_sides() -> None:
    with pytest.raises(LocalProtocolError, match=r"got 20"):
        encode(Part(1, 0, 0, b""))
    for length in (0, 19, 20):
        head = header(2, length)[:8]
        with pytest.raises(RemoteProtocolError, match="expected a part with data"):
            read(head + digest(head + bytes(length)) + bytes(length))


def test_a_control_frame_that_is_no_message_is_refused() -> None:
    head = header(1, 3)[:8]
    with pytest.raises(RemoteProtocolError, match="got bytes that do not decode"):
        read(head + digest(head + b"\xff\xff\xff") + b"\xff\xff\xff")


def test_a_message_above_its_cap_never_leaves() -> None:
    with pytest.raises(LocalProtocolError, match="524308 bytes, got 524309"):
        encode(Part(1, 0, PART_BYTES_MAX + 1, bytes(PART_BYTES_MAX + 1)))
    with pytest.raises(LocalProtocolError, match="131072 bytes"):
        encode(LinkMessage(goodbye=Goodbye(reason="x" * CONTROL_BYTES_MAX)))


def test_after_damage_nothing_is_read_again() -> None:
    damaged = bytearray(encode(PART))
    damaged[-1] ^= 1
    reader, kept = (
        FrameReader(),
        list[Exception](),
    )  # the errors are kept: they must not hold the buffer
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match="damaged") as caught:
            list(reader.feed(bytes(damaged) + encode(PART)))
        kept.append(caught.value)


def test_whole_messages_before_the_damage_come_first() -> None:
    messages = FrameReader().feed(encode(PART) + encode(LinkMessage()) + bytes(HEADER_BYTES))
    assert [next(messages), next(messages)] == [PART, LinkMessage()]
    with pytest.raises(RemoteProtocolError):
        next(messages)


@settings(max_examples=300)
@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"LS\x01\x00", b"LS\x02\x00", b"\0\0\0\x01"]),
        max_size=12,
    )
)
def test_any_bytes_raise_only_a_remote_error_and_at_most_a_frame_is_kept(
    pieces: list[bytes],
) -> None:
    reader = FrameReader()
    try:
        for piece in pieces:
            assert all(isinstance(message, LinkMessage | Part) for message in reader.feed(piece))
            assert kept_bytes(reader) <= PART_FRAME_OVERHEAD + PART_BYTES_MAX
    except RemoteProtocolError:
        pass


def test_a_part_in_pieces_of_one_byte_is_hashed_once_and_costs_the_same_for_each_byte() -> None:
    stream = encode(Part(1, 0, PART_BYTES_MAX, bytes(PART_BYTES_MAX)))
    calls, hashed = 0, 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls, hashed
        calls += event in ("call", "c_call")
        hashed += event == "call" and frame.f_code is frames._digest.__code__

    reader, messages = FrameReader(), list[Message]()
    sys.setprofile(count)
    try:
        for at in range(len(stream)):
            messages += reader.feed(stream[at : at + 1])
    finally:
        sys.setprofile(None)
    assert len(messages) == 1
    assert hashed == 1
    assert calls < 12 * len(stream)


def test_a_part_is_held_twice_at_most_and_tiny_frames_never_together() -> None:
    large, tiny = (
        encode(Part(1, 0, PART_BYTES_MAX, bytes(PART_BYTES_MAX))),
        encode(LinkMessage()) * 20_000,
    )
    for stream, bytes_max in ((large, 2.5 * len(large)), (tiny, 2 * len(tiny))):
        reader = FrameReader()
        tracemalloc.start()
        try:
            count = sum(1 for _ in reader.feed(stream))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert count in (1, 20_000)
        assert peak < bytes_max


def test_many_frames_at_once_move_their_bytes_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each frame that is taken leaves the rest of a megabyte where it is: a copy of the rest each
    time would be n².
    """
    reader, moved, size = FrameReader(), 0, 0
    for _ in reader.feed(encode(LinkMessage()) * 60_000):
        moved += sys.getsizeof(reader._buffer) != size
        size = sys.getsizeof(reader._buffer)
    assert moved < 64  # into a smaller place each time it was half empty


# ---- groups and counts


def test_small_frames_are_written_together_and_a_large_one_alone() -> None:
    small, large = encode(LinkMessage()), encode(Part(1, 0, PART_BYTES_MAX, bytes(PART_BYTES_MAX)))
    many = JOINED_BYTES_MAX // len(small)
    groups = list(grouped([small] * (many + 1) + [large, small]))
    assert [len(group) for group in groups] == [many, 1, 1, 1]
    assert b"".join(b"".join(group) for group in groups) == small * (many + 1) + large + small
    assert list(grouped([])) == []


def test_two_parts_are_never_written_together() -> None:
    """The first would be acknowledged with the second, and seem to have queued for its time."""
    parts = [encode(Part(1, 0, PART_BYTES_MAX, bytes(PART_BYTES_MIN)))] * 3
    assert [len(group) for group in grouped(parts)] == [1, 1, 1]


def test_only_the_data_of_parts_is_not_control() -> None:
    part, control = encode(Part(7, 0, 5, b"hello")), encode(LinkMessage())
    assert part_data(part) == (7, 5)
    assert part_data(control) == (0, 0)
    reader = FrameReader()
    assert len(list(reader.feed(part + control + part[:-1]))) == 2
    assert reader.control_bytes == PART_FRAME_OVERHEAD + len(control)
