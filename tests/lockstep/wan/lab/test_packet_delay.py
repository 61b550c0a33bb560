"""Frames that wait: in order, for their time, and not without bound."""

import socket
from collections.abc import Iterator, Sequence

import pytest

from lockstep.wan.lab import packet_delay
from lockstep.wan.lab.home_link import LinkDirection, PacketFate
from lockstep.wan.lab.packet_delay import DelayLane


@pytest.fixture
def tap() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket pair that, like a tap, gives one frame to each read; the far end puts frames in."""
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)
    with far, near:
        yield far, near


def lane(
    near: socket.socket, way: LinkDirection, draws: Sequence[float] = ()
) -> tuple[DelayLane, list[bytes]]:
    sent: list[bytes] = []
    drawn = iter(draws)
    return DelayLane(near.fileno(), sent.append, PacketFate(way, lambda: next(drawn))), sent


def test_a_frame_waits_for_the_delay_and_no_longer(
    tap: tuple[socket.socket, socket.socket],
) -> None:
    far, near = tap
    held, sent = lane(near, LinkDirection(delay_s=0.5))
    far.send(b"frame")
    held.take(10.0)
    assert held.due_s == 10.5
    held.release(10.49)
    assert sent == []
    held.release(10.5)
    assert sent == [b"frame"]
    assert held.due_s is None


def test_frames_keep_their_order_and_their_bytes(tap: tuple[socket.socket, socket.socket]) -> None:
    far, near = tap
    held, sent = lane(near, LinkDirection(delay_s=0.5))
    frames = [bytes([number]) * 1500 for number in range(20)]
    for number, frame in enumerate(frames):
        far.send(frame)
        held.take(number / 100)
    held.release(100.0)
    assert sent == frames


def test_a_lost_frame_is_the_one_that_was_drawn(tap: tuple[socket.socket, socket.socket]) -> None:
    far, near = tap
    held, sent = lane(near, LinkDirection(loss=0.1), (0.5, 0.05, 0.5))
    for name in (b"a", b"b", b"c"):
        far.send(name)
    held.take(0.0)
    held.release(0.0)
    assert sent == [b"a", b"c"]


def test_the_number_of_held_frames_is_bounded(
    tap: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_delay, "HELD_FRAMES_MAX", 3)
    far, near = tap
    held, sent = lane(near, LinkDirection(delay_s=1.0))
    for number in range(5):
        far.send(bytes([number]))
    held.take(0.0)
    held.release(1.0)
    assert sent == [b"\0", b"\1", b"\2"]


def test_an_interface_that_is_down_loses_the_frame_and_not_the_relay(
    tap: tuple[socket.socket, socket.socket],
) -> None:
    far, near = tap

    def refuse(_: bytes) -> None:
        raise OSError("Network is down")

    held = DelayLane(near.fileno(), refuse, PacketFate(LinkDirection(), lambda: 0.0))
    far.send(b"frame")
    held.take(0.0)
    held.release(0.0)
    assert held.due_s is None
