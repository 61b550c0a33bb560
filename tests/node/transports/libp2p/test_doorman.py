"""Promises of the doorman. In place of the daemon there is a process that accepts, and no more."""

import ctypes
import errno
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from node.transports.libp2p import doorman as doorman_module
from node.transports.libp2p.doorman import Doorman, Endpoint

DAEMON = """
import socket, threading
listening, held = socket.create_server(("127.0.0.1", 0), backlog=1024), []
print(listening.getsockname()[1], flush=True)
while True:
    held.append(listening.accept()[0])
    print(len(held), flush=True)
    threading.Thread(target=held[-1].recv, args=(1,)).start()
"""
LARGE_BYTES = 1_000_000_000
STRANGER, NEWCOMER = "127.64.0.9", "127.64.1.9"
NETWORK_PLACES = 192
"""Connections of one address: its bound in `border.crowd`, over the weight of a place."""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open") or not Path("/proc/self/fd").is_dir(), reason="needs Linux 5.6"
)


class Besieged:
    """The process, and connections to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self.process.kill)
        self.port = int(self._said())

    def connect(self, source: str) -> socket.socket:
        """A connection that the process has taken."""
        made = self._stack.enter_context(socket.socket())
        made.bind((source, 0))
        made.connect(("127.0.0.1", self.port))
        self._said()
        return made

    def _said(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


@pytest.fixture
def besieged() -> Iterator[Besieged]:
    with ExitStack() as stack:
        yield Besieged(stack)


def guarding(besieged: Besieged, large_bytes: int = LARGE_BYTES) -> Doorman:
    return Doorman(besieged.process.pid, besieged.port, tuple, large_bytes)


def open_of(connections: list[socket.socket]) -> list[socket.socket]:
    """Those that were not ended."""
    ended, _, _ = select.select(connections, [], [], 0)
    return [each for each in connections if each not in ended]


def endpoint(connection: socket.socket) -> Endpoint:
    host, port = connection.getsockname()
    return host, port


def test_a_crowd_of_one_address_makes_room_from_its_oldest_and_costs_nobody_else(
    besieged: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorman_module, "CROWDED", 200)
    proven = besieged.connect(STRANGER)
    strangers = [besieged.connect(STRANGER) for _ in range(NETWORK_PLACES + 8)]
    newcomer = besieged.connect(NEWCOMER)
    doorman = guarding(besieged)
    assert doorman.look([endpoint(proven)], 0) == ""
    assert open_of([proven, newcomer]) == [proven, newcomer]
    assert open_of(strangers) == strangers[8:]


def test_who_is_not_crowded_is_left_in_peace(besieged: Besieged) -> None:
    strangers = [besieged.connect(STRANGER) for _ in range(NETWORK_PLACES + 8)]
    assert guarding(besieged).look([], 0) == ""
    assert open_of(strangers) == strangers


def test_where_memory_is_full_strangers_that_sent_most_go_until_there_is_room(
    besieged: Besieged,
) -> None:
    proven, light, heavy, heavier = (besieged.connect(STRANGER) for _ in range(4))
    for count, each in ((40_000, proven), (8000, light), (10_000, heavy), (20_000, heavier)):
        each.sendall(bytes(count))
    doorman = guarding(besieged, large_bytes=0)
    for left in ([proven, light, heavy], [proven, light], [proven, light]):
        assert doorman.look([endpoint(proven)], 0) == ""
        assert open_of([proven, light, heavy, heavier]) == left


def test_a_daemon_that_fills_the_memory_is_replaced(
    besieged: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorman_module, "REPLACED_BYTES", 1000)
    trouble = guarding(besieged).look([], 0)
    assert trouble.startswith("expected at most 1000 bytes of memory, got ")


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_a_sandbox_that_forbids_it_is_told_once_and_the_bound_of_memory_stays(
    code: int,
    besieged: Besieged,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As Docker's default filter of system calls, and as one that does not know the call."""
    monkeypatch.setattr(doorman_module, "CROWDED", 1)
    strangers = [besieged.connect(STRANGER) for _ in range(NETWORK_PLACES + 8)]
    doorman = guarding(besieged)
    with sandbox(code) as sandboxed:
        looks = [sandboxed.submit(doorman.look, [], 0).result() for _ in range(3)]
        monkeypatch.setattr(doorman_module, "REPLACED_BYTES", 1000)
        looks.append(sandboxed.submit(doorman.look, [], 0).result())
    assert looks[:3] == ["", "", ""]
    assert looks[3].startswith("expected at most 1000 bytes of memory, got ")
    assert open_of(strangers) == strangers
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("strangers crowd the libp2p daemon, and this system lets nobody end")
    assert "--cap-add SYS_PTRACE" in told


@contextmanager
def sandbox(code: int) -> Iterator[ThreadPoolExecutor]:
    """A thread in which pidfd_getfd fails with a code, by a filter of system calls of its own."""
    load_number, jump_if_equal, give = 0x20, 0x15, 0x06
    fails, passes = 0x50000 | code, 0x7FFF0000
    program = b"".join(
        struct.pack("HBBI", *each)
        for each in (
            (load_number, 0, 0, 0),
            (jump_if_equal, 0, 1, doorman_module._GET_DESCRIPTOR),
            (give, 0, 0, fails),
            (give, 0, 0, passes),
        )
    )
    held = ctypes.create_string_buffer(program)
    described = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(held)))
    control = ctypes.CDLL(None, use_errno=True).prctl

    def enter() -> int:
        no_new_privileges, set_filter, filtered = 38, 22, 2
        return int(
            control(no_new_privileges, 1, 0, 0, 0) or control(set_filter, filtered, described)
        )

    with ThreadPoolExecutor(1) as thread:
        if thread.submit(enter).result():
            pytest.skip("this system lets no thread filter its own system calls")
        yield thread
