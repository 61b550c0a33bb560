"""What a test needs to build a laboratory, and to ask whether two of its computers hear each
other.
"""

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.wan.lab.laboratory import Laboratory, unable
from lockstep.wan.lab.probe import udp_socket

REASON = unable() or (
    "" if Path("/dev/net/tun").exists() else "no /dev/net/tun, and this kernel may have no netem"
)

needs_ground = pytest.mark.skipif(bool(REASON), reason=REASON)
"""Marks a test that builds network namespaces."""

PATIENCE_S = 30.0
"""Longer than anything takes on a machine that others use too."""

SILENCE_S = 0.5
"""How long nothing must arrive where nothing should: many times the delay of any link here."""


@contextlib.contextmanager
def endpoint(lab: Laboratory, name: str) -> Iterator[socket.socket]:
    """A UDP socket on a computer, at any of its addresses."""
    with lab.inside(name):
        opened = udp_socket("0.0.0.0")
    with opened:
        yield opened


def arrives(
    sender: socket.socket, receiver: socket.socket, target: tuple[str, int], within_s: float
) -> bool:
    """Whether one of a few packets to `target` arrives at `receiver`: any link here may lose one.
    What is late from before does not count.
    """
    token = secrets.token_bytes(8)
    for _ in range(5):
        sender.sendto(token, target)
    return heard(receiver, within_s, token) is not None


def heard(receiver: socket.socket, within_s: float, token: bytes = b"") -> tuple[str, int] | None:
    """From where a packet came that begins with `token`, if one did."""
    deadline_s = time.monotonic() + within_s
    while select.select([receiver], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        packet, source = receiver.recvfrom(2048)
        if packet.startswith(token):
            return str(source[0]), int(source[1])
    return None


def eventually(condition: Callable[[], object]) -> bool:
    """Whether a condition comes to hold."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True
