"""Whose the bytes on the line are: with a kernel that says what a test wants, and with the real
one.
"""

import asyncio
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from lockstep.service import overhead as module
from lockstep.service.overhead import InsideConnections, OverheadMeter, ProcessTree, UpDown
from lockstep.service.tcp_counters import Connection
from protocol.errors import UnavailableError
from tests.lockstep.wan.lab.fixture import eventually
from tests.support.waiting import until

OURS, THEIRS = 11, 22
"""Inodes."""

ADMIN = 8_080


def connection(
    cookie: int, up: int, down: int, inode: int = OURS, *, port: int = 1, loopback: bool = False
) -> Connection:
    return Connection(cookie, inode, port, loopback, up, down, (b"%d" % cookie, b"far"))


def between(cookie: int, here: bytes, there: bytes, inode: int = OURS) -> Connection:
    return Connection(cookie, inode, 1, True, 1_000, 1_000, (here, there))


class FakeKernel:
    def __init__(self) -> None:
        self.now: list[Connection] = []
        self.ended: list[Connection] = []
        self.failure: Exception | None = None
        self.closed = False

    def read_open(self) -> list[Connection]:
        if self.failure:
            raise self.failure
        return self.now

    def take_destroyed(self) -> list[Connection]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


class FakeClock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meter_of(kernel: FakeKernel, clock: FakeClock | None = None) -> OverheadMeter:
    return OverheadMeter(lambda: kernel, lambda: {OURS}, clock or FakeClock())


def test_what_ranks_of_a_node_exchange_leaves_nobodys_line(kernel: FakeKernel) -> None:
    with meter_of(kernel) as meter:
        outwards = between(3, b"a3", b"b9")
        kernel.now = [between(1, b"a1", b"a2"), between(2, b"a2", b"a1"), outwards]
        kernel.now += [between(4, b"b9", b"a3", THEIRS), connection(5, 10, 20)]
        assert meter.measure() == UpDown(1_010, 1_020)
        kernel.now = [between(1, b"a1", b"a2"), outwards]
        assert meter.measure() == UpDown(1_010, 1_020), "the other end of one has gone"


def test_ranks_that_another_program_has_started_are_the_node_too(kernel: FakeKernel) -> None:
    inside = InsideConnections(29_500, lambda: {OURS, THEIRS})
    with OverheadMeter(lambda: kernel, lambda: {OURS}, inside=inside) as meter:
        kernel.now = [between(1, b"a1", b"a2"), between(2, b"a2", b"a1", THEIRS)]
        kernel.now += [between(3, b"a3", b"b9"), between(4, b"b9", b"a3", 33)]
        kernel.now += [between(5, b"a5", b"c9", THEIRS)]
        assert meter.measure() == UpDown(1_000, 1_000), "with a coordinator on this machine"


def test_machines_that_have_ranks_of_the_node_are_no_others(kernel: FakeKernel) -> None:
    """The store may be torchrun's, and the ranks exchange over ports that torch chooses."""
    inside = InsideConnections(29_500)
    with OverheadMeter(lambda: kernel, lambda: {OURS}, inside=inside) as meter:
        store = Connection(1, THEIRS, 29_500, False, 70, 70, (b"lan1ms", b"lan2xy"))
        beside = Connection(2, THEIRS, 29_500, True, 70, 70, (b"lan1ms", b"lan1zz"))
        gradients = between(3, b"lan1aa", b"lan2bb")
        peer, coordinator = between(4, b"lan1cc", b"lan3bb"), between(5, b"lan1dd", b"lan1ee")
        kernel.now = [store, beside, gradients, peer, coordinator]
        assert meter.measure() == UpDown(2_000, 2_000), "the peer and the coordinator"
        kernel.now = [gradients, peer, coordinator]
        assert meter.measure() == UpDown(2_000, 2_000), "torchrun has lost its store"


def test_overhead_is_the_traffic_of_our_connections_that_has_no_owner(kernel: FakeKernel) -> None:
    with meter_of(kernel) as meter:
        kernel.now = [
            connection(1, 1_000, 500),
            connection(2, 100, 50),
            connection(3, 9_999, 9_999, THEIRS),
        ]
        assert meter.measure_overhead(900, 400) == (200, 150)
        kernel.now = [connection(1, 2_000, 500)]
        assert meter.measure() == UpDown(2_100, 550), "a connection that is gone is not forgotten"


def test_overhead_is_never_negative(kernel: FakeKernel) -> None:
    with meter_of(kernel) as meter:
        kernel.now = [connection(1, 1_000, 500)]
        assert meter.measure_overhead(5_000, 400) == (0, 100), "written, and in a buffer yet"


def test_a_connection_stays_ours_until_its_last_byte(kernel: FakeKernel) -> None:
    """Closed by its process the kernel goes on sending; and then says what it sent."""
    with meter_of(kernel) as meter:
        kernel.now = [connection(1, 1_000, 0)]
        meter.look()
        kernel.now = [connection(1, 2_000, 0, inode=0)]
        assert meter.measure() == UpDown(2_000, 0)
        kernel.now, kernel.ended = (
            [],
            [connection(1, 3_000, 66, inode=0), connection(7, 5, 5, inode=0)],
        )
        assert meter.measure() == UpDown(3_000, 66)
        kernel.ended = [connection(1, 3_000, 66, inode=0)]
        assert meter.measure() == UpDown(3_000, 66), "once"


def test_a_connection_that_was_reset_keeps_the_bytes_that_were_seen(kernel: FakeKernel) -> None:
    """The kernel's last word of it is zeros."""
    with meter_of(kernel) as meter:
        kernel.now = [connection(1, 1_000, 700)]
        meter.look()
        kernel.now, kernel.ended = [], [connection(1, 0, 0, inode=0)]
        assert meter.measure() == UpDown(1_000, 700)
        assert not meter.connections


def test_last_figures_may_come_late_after_any_number_of_looks(kernel: FakeKernel) -> None:
    with meter_of(kernel) as meter:
        kernel.now = [connection(1, 1_000, 0)]
        meter.look()
        kernel.now = []
        for _ in range(5):
            assert meter.measure() == UpDown(1_000, 0)
        kernel.ended = [connection(1, 1_500, 0, inode=0)]
        assert meter.measure() == UpDown(1_500, 0)
        assert not meter.connections


def test_without_last_figures_the_seen_ones_count_and_nothing_is_kept(kernel: FakeKernel) -> None:
    clock = FakeClock()
    with meter_of(kernel, clock) as meter:
        kernel.now = [connection(1, 1_000, 0)]
        meter.look()
        kernel.now = []
        for _ in range(3):
            assert meter.measure() == UpDown(1_000, 0)
            clock.now_s += module.LAST_FIGURES_S
        assert not meter.connections


class CostlyKernel(FakeKernel):
    """Counts looks, each of which takes the processor time that a test says."""

    def __init__(self, cost_s: Callable[[int], float]) -> None:
        super().__init__()
        self.looks, self.used_s = 0, 0.0
        self._cost_s = cost_s

    def read_open(self) -> list[Connection]:
        self.used_s += self._cost_s(self.looks)
        self.looks += 1
        return [connection(1, 100 * self.looks, 0)]

    def meter(self, clock: FakeClock) -> OverheadMeter:
        return OverheadMeter(lambda: self, lambda: {OURS}, clock, lambda: self.used_s)


def test_costly_looks_take_a_small_part_of_the_time_however_often_it_is_asked() -> None:
    clock, kernel = FakeClock(), CostlyKernel(lambda _: 0.125)
    with kernel.meter(clock) as meter:
        for _ in range(1000):
            assert meter.measure() == UpDown(100 * kernel.looks, 0)
            clock.now_s += 0.125
    assert kernel.looks == 1 + math.ceil(999 / module.REST)


def test_one_costly_look_among_cheap_ones_is_not_followed_by_a_rest() -> None:
    """Python collected garbage in it."""
    clock, kernel = FakeClock(), CostlyKernel(lambda look: 0.25 if look % 2 else 0.001)
    with kernel.meter(clock) as meter:
        for number in range(1, 10):
            assert meter.measure() == UpDown(100 * number, 0)
            clock.now_s += 0.125


def test_readers_of_the_admin_page_on_this_machine_do_not_count(kernel: FakeKernel) -> None:
    with meter_of(kernel) as meter:
        meter.admin_port = ADMIN
        kernel.now = [
            connection(1, 100, 10, port=ADMIN, loopback=True),
            connection(2, 200, 20, port=ADMIN),  # from elsewhere: that is on the line
            connection(3, 400, 40, port=1, loopback=True),  # a peer on this machine
        ]
        assert meter.measure() == UpDown(600, 60)


def test_readers_of_the_public_page_do_not_count_wherever_they_are(kernel: FakeKernel) -> None:
    with meter_of(kernel) as meter:
        meter.page_port = 8080
        kernel.now = [connection(1, 100, 10, port=8080), connection(2, 200, 20, port=1)]
        assert meter.measure() == UpDown(200, 20)


@pytest.mark.parametrize("failure", [UnavailableError("no"), PermissionError("no")])
def test_a_kernel_that_stops_answering_leaves_no_figures(
    kernel: FakeKernel, failure: Exception
) -> None:
    with meter_of(kernel) as meter:
        assert meter.measure_overhead(0, 0) == (0, 0)
        kernel.failure = failure
        assert meter.measure_overhead(0, 0) is None
        assert meter.reason == "no"
        assert kernel.closed
        kernel.failure = None
        assert meter.measure_overhead(0, 0) is None, "it is not asked again"


def test_a_kernel_that_never_answered_leaves_the_reason() -> None:
    def refused() -> FakeKernel:
        raise UnavailableError("another system")

    with OverheadMeter(refused, set) as meter:
        assert meter.measure() is None
        assert meter.reason == "another system"


async def test_watching_looks_at_the_kernel_repeatedly_until_cancelled(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0)
    with meter_of(kernel) as meter:
        kernel.now = [connection(1, 1_000, 0)]
        watching = asyncio.create_task(meter.watch())
        await until(lambda: meter.connections)
        kernel.now, kernel.ended = [], [connection(1, 1_500, 0, inode=0)]
        await until(lambda: not meter.connections)
        watching.cancel()
        assert meter.measure() == UpDown(1_500, 0)
    assert kernel.closed


# ---- the real kernel


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells only on Linux")

CHILD = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(10):
    peer.sendall(bytes(10_000))
    peer.recv(1)
sys.stdin.read()
"""


@needs_linux
def test_the_bytes_of_a_descendant_are_ours_also_when_it_is_gone() -> None:
    tree = ProcessTree()

    def of_descendants() -> set[int]:
        """The other end is ours, too, and would make it a connection within the node."""
        return tree.sockets() - module._sockets(os.getpid())

    meter = OverheadMeter(own_sockets=of_descendants)
    with socket.create_server(("127.0.0.1", 0)) as server, meter:
        before = meter.measure()
        assert before is not None
        command = [sys.executable, "-c", CHILD, str(server.getsockname()[1])]
        shell = f'{subprocess.list2cmdline([sys.executable, "-c", "pass"])}; exec "$@"'
        with subprocess.Popen(["sh", "-c", shell, "sh", *command], stdin=subprocess.PIPE) as child:
            peer, _ = server.accept()
            with peer:
                for _ in range(10):  # little is ever on the way, so nothing has to be sent again
                    left = 10_000
                    while left:
                        left -= len(peer.recv(left))
                    peer.sendall(b".")

                def counted() -> bool:
                    now = meter.measure()
                    return now is not None and now.up - before.up > 100_000

                assert eventually(counted), meter.reason
                child.communicate()
        after = meter.measure()
        assert after is not None
        assert 100_000 < after.up - before.up + after.down - before.down < 120_000


@needs_linux
def test_a_process_tree_is_this_process_and_its_descendants() -> None:
    family = ProcessTree()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert os.fstat(server.fileno()).st_ino in family.sockets()
    assert family.learn(os.getpid())
    assert not family.learn(os.getppid())
