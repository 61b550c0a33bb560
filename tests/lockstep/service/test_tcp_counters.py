"""What the kernel says of connections: real ones on loopback, whose every byte the test knows, and
made-up messages.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockstep.service.tcp_counters import Connection, TcpCounters, parsed
from protocol.errors import UnavailableError
from tests.lockstep.wan.lab.fixture import eventually

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="sock_diag is Linux's")

HEADERS = 14 + 20 + 20 + 12
CONTENT = 300_000


@contextmanager
def kernel() -> Iterator[TcpCounters]:
    opened = TcpCounters()
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def connected(address: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        one = socket.create_connection(server.getsockname()[:2])
        two, _ = server.accept()
    with one, two:
        yield one, two


def found(kernel: TcpCounters, end: socket.socket) -> Connection:
    (one,) = [each for each in kernel.read_open() if each.inode == os.fstat(end.fileno()).st_ino]
    return one


def read(end: socket.socket, count: int) -> None:
    while count:
        count -= len(end.recv(count))


@needs_linux
def test_both_ends_of_a_connection_count_the_same_frames() -> None:
    with kernel() as asked, connected() as (one, two):
        one.sendall(bytes(CONTENT))
        read(two, CONTENT)
        assert eventually(lambda: found(asked, one).up_bytes == found(asked, two).down_bytes)
        sender, receiver = found(asked, one), found(asked, two)
        frames = (sender.up_bytes - CONTENT) / HEADERS
        assert frames == int(frames) >= 3, "loopback has large segments, and a handshake of two"
        assert sender.down_bytes == receiver.up_bytes + HEADERS, (
            "the answer to the call had no connection yet"
        )
        assert sender.down_bytes % HEADERS == 0, "acknowledgements only"
        assert sender.loopback
        assert sender.local_port == one.getsockname()[1]


@needs_linux
def test_content_that_the_process_has_not_read_does_not_count_yet() -> None:
    with kernel() as asked, connected() as (one, two):
        one.sendall(bytes(50_000))
        assert eventually(lambda: len(two.recv(50_000, socket.MSG_PEEK)) == 50_000)
        before = found(asked, two).down_bytes
        read(two, 50_000)
        assert found(asked, two).down_bytes == before + 50_000


@needs_linux
def test_a_destroyed_connection_is_reported_once_with_its_last_bytes() -> None:
    with kernel() as asked, connected() as (one, two):
        cookies = {found(asked, one).cookie, found(asked, two).cookie}
        one.sendall(bytes(CONTENT))
        read(two, CONTENT)
        two.close()
        one.close()
        destroyed = list[Connection]()

        def all_told() -> bool:
            destroyed.extend(each for each in asked.take_destroyed() if each.cookie in cookies)
            return len(destroyed) == 2

        assert eventually(all_told)
        assert {each.cookie for each in destroyed} == cookies
        assert {each.inode for each in destroyed} == {0}
        assert max(each.up_bytes for each in destroyed) > CONTENT
        assert max(each.down_bytes for each in destroyed) > CONTENT
        assert not cookies & {each.cookie for each in asked.read_open()}


@needs_linux
def test_a_connection_that_its_process_resets_ends_with_zeros() -> None:
    with kernel() as asked, connected() as (one, two):
        one.sendall(bytes(CONTENT))
        read(two, CONTENT)
        reset = found(asked, one)
        assert reset.up_bytes > CONTENT
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        told = list[Connection]()

        def is_told() -> bool:
            told.extend(each for each in asked.take_destroyed() if each.cookie == reset.cookie)
            return bool(told)

        assert eventually(is_told)
        assert (told[0].up_bytes, told[0].down_bytes) == (0, 0)


@needs_linux
@pytest.mark.parametrize("address", ["::1"])
def test_over_ipv6_headers_are_larger(address: str) -> None:
    try:
        with kernel() as asked, connected(address) as (one, two):
            assert eventually(lambda: found(asked, two).down_bytes == 2 * (HEADERS + 20))
            assert found(asked, one).loopback
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip("no IPv6 here")
        raise


def test_without_netlink_the_counters_are_unavailable_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(socket, "AF_NETLINK")
    with pytest.raises(UnavailableError, match="does not list TCP connections"):
        TcpCounters()


# ---- made-up messages


def message(kind: int, body: bytes) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + padded


def connection(
    *, local: bytes, family: int = socket.AF_INET6, info_bytes: int = 280, options: int = 1
) -> bytes:
    info = bytearray(280)
    info[5] = options
    struct.pack_into("=Q2I", info, 128, 5_000, 30, 20)  # received; segments out and in
    struct.pack_into("=Q", info, 200, 40_000)  # sent
    head = (
        struct.pack("=4B", family, 1, 0, 0)
        + struct.pack("!2H", 80, 4_000)
        + local.ljust(16, b"\0")
        + bytes(16)
    )
    numbers = struct.pack(
        "=I2I5I", 0, 7, 1, 0, 1_000, 9, 0, 4_321
    )  # cookie 1 << 32 | 7, 1000 unread, inode
    odd = struct.pack("=HH", 5, 8) + b"x" + bytes(3)
    return message(
        20, head + numbers + odd + struct.pack("=HH", 4 + info_bytes, 2) + bytes(info[:info_bytes])
    )


MAPPED = bytes(10) + b"\xff\xff\x0b\0\0\x01"
PUBLIC = bytes.fromhex("20010db8") + bytes(12)


@pytest.mark.parametrize(
    ("local", "family", "options", "header", "address"),
    [
        (b"\x0b\0\0\x01", socket.AF_INET, 1, 66, b"\x0b\0\0\x01"),
        (b"\x0b\0\0\x01", socket.AF_INET, 0, 54, b"\x0b\0\0\x01"),
        (MAPPED, socket.AF_INET6, 1, 66, b"\x0b\0\0\x01"),
        (PUBLIC, socket.AF_INET6, 1, 86, PUBLIC),
    ],
    ids=["IPv4", "no timestamps", "IPv4 on an IPv6 socket", "IPv6"],
)
def test_a_segment_costs_the_headers_of_its_kind(
    local: bytes, family: int, options: int, header: int, address: bytes
) -> None:
    ((kind, one),) = parsed(connection(local=local, family=family, options=options))
    assert kind == 20
    assert one == Connection(
        cookie=1 << 32 | 7,
        inode=4_321,
        local_port=80,
        loopback=False,
        up_bytes=40_000 + 30 * header,
        down_bytes=5_000 - 1_000 + 20 * header,
        ends=(address + b"\0P", one.far_host + b"\x0f\xa0"),
    )
    assert one.far_host == bytes(4 if family == socket.AF_INET else 16)


@needs_linux
def test_the_ends_of_a_connection_are_each_others_whatever_their_sockets_are_made_for() -> None:
    with kernel() as asked, socket.socket(socket.AF_INET6) as server:
        try:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.bind(("::", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        server.listen()
        with socket.create_connection(("127.0.0.1", server.getsockname()[1])) as one:
            two, _ = server.accept()
            with two:
                assert found(asked, one).ends == found(asked, two).ends[::-1]
                assert found(asked, two).far_host == b"\x7f\0\0\1"


def test_one_datagram_holds_many_messages_and_the_last_may_be_torn() -> None:
    whole = connection(local=MAPPED)
    assert [kind for kind, _ in parsed(whole + whole + message(3, bytes(4)) + whole[:10])] == [
        20,
        20,
        3,
    ]


def test_a_kernel_without_the_counter_of_sent_bytes_gives_no_connections() -> None:
    assert list(parsed(connection(local=MAPPED, info_bytes=192))) == [(20, None)]


def test_a_refusal_of_the_kernel_is_an_error_with_its_reason() -> None:
    with pytest.raises(OSError, match="not permitted"):
        list(parsed(message(2, struct.pack("=i", -errno.EPERM))))


def test_the_first_failure_to_read_the_kernel_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sys.platform != "linux":
        pytest.skip("sock_diag is Linux's")
    with kernel() as asked:
        refusal = message(2, struct.pack("=i", -errno.EACCES))
        asked._asking.close()
        monkeypatch.setattr(asked, "_asking", FakeSocket([refusal]))
        with pytest.raises(UnavailableError, match="Permission denied"):
            asked.read_open()


class FakeSocket:
    def __init__(self, answers: list[bytes | OSError]) -> None:
        self.answers = answers

    def send(self, _: bytes) -> None:
        pass

    def recv(self, _: int) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def close(self) -> None:
        pass


@needs_linux
def test_an_overflow_of_the_kernel_s_messages_loses_some_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kernel() as asked:
        news = [
            connection(local=MAPPED),
            OSError(errno.ENOBUFS, "no room"),
            connection(local=PUBLIC),
            BlockingIOError(),
        ]
        asked._hearing.close()
        monkeypatch.setattr(asked, "_hearing", FakeSocket(news))
        assert len(asked.take_destroyed()) == 2
