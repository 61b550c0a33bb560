"""Promises of a pipe over a local socket, with the far side played by the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from node.transports.base import PIPE_BYTES_MAX
from node.transports.libp2p import pipe as pipe_module
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.multiaddr import libp2p_id
from node.transports.libp2p.pipe import SocketPipe
from protocol.errors import LocalProtocolError, UnavailableError

GOODBYE = bytes(4)
KEY = bytes(range(32))
CONTACT = Contact(libp2p_id(KEY), "/ip4/192.0.2.7/tcp/1/p2p/relay/p2p-circuit")


@asynccontextmanager
async def pipe_and_socket() -> AsyncIterator[tuple[SocketPipe, socket.socket]]:
    """(a pipe, the socket at its far side)."""
    near, far = socket.socketpair()
    far.setblocking(False)
    closed: list[SocketPipe] = []
    pipe = SocketPipe(near, CONTACT, closed.append)
    try:
        with far:
            yield pipe, far
            far.close()
            await pipe.close()
    finally:
        near.close()
    assert closed == [pipe]


def announced(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def fill_until_broken(far: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while True:
            await loop.sock_sendall(far, announced(bytes(100_000)))


async def test_a_write_is_announced_with_its_length() -> None:
    async with pipe_and_socket() as (pipe, far):
        await pipe.write(b"hello")
        assert far.recv(100) == announced(b"hello")


async def test_a_pipe_knows_the_other_end_by_its_connection() -> None:
    async with pipe_and_socket() as (pipe, _):
        assert pipe.remote == f"{CONTACT.address}/p2p/{CONTACT.peer}"
        assert pipe.relayed
        assert pipe.proves(KEY)
        assert not pipe.proves(bytes(32))


@pytest.mark.parametrize("cut", range(1, 9))
async def test_a_write_that_comes_in_pieces_is_read(cut: int) -> None:
    data = announced(b"hello")
    async with pipe_and_socket() as (pipe, far):
        far.send(data[:cut])
        reading = asyncio.create_task(pipe.read())
        await asyncio.sleep(0)
        far.send(data[cut:])
        received = await reading
        while len(received) < 5:
            received += await pipe.read()
        assert received == b"hello"


@pytest.mark.parametrize("cut", [0, 1, 4, 6], ids=["nothing", "a header", "no data", "data"])
async def test_an_end_without_a_goodbye_is_a_break(cut: int) -> None:
    async with pipe_and_socket() as (pipe, far):
        far.send(announced(b"hello")[:cut])
        far.close()
        if cut > 4:
            assert await pipe.read() == b"hello"[: cut - 4]
        with pytest.raises(UnavailableError, match="died or lost its connection"):
            await pipe.read()
        with pytest.raises(UnavailableError, match="broke"):
            await pipe.write(b"x")


async def test_a_goodbye_is_the_end_is_answered_and_stays() -> None:
    async with pipe_and_socket() as (pipe, far):
        far.send(announced(b"last") + GOODBYE)
        assert await pipe.read() == b"last"
        assert await pipe.read() == b""
        assert await pipe.read() == b""
        assert far.recv(100) == GOODBYE
        with pytest.raises(UnavailableError, match="closed the pipe"):
            await pipe.write(b"x")


async def test_a_close_waits_for_the_other_end_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pipe_and_socket() as (pipe, far):
        closing = asyncio.create_task(pipe.close())
        while not closing.done():
            try:
                assert far.recv(100) == GOODBYE
                break
            except BlockingIOError:
                await asyncio.sleep(0)
        assert not closing.done()
        far.send(GOODBYE)
        await closing
    monkeypatch.setattr(pipe_module, "LINGER_S", 0.01)
    async with pipe_and_socket() as (pipe, far):
        await pipe.close()


async def test_a_close_does_not_wait_for_one_that_goes_on_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipe_module, "LINGER_S", 1000.0)
    async with pipe_and_socket() as (pipe, far):
        closing = asyncio.create_task(pipe.close())
        await fill_until_broken(far)
        await closing


async def test_a_write_that_is_announced_too_large_breaks_the_pipe() -> None:
    async with pipe_and_socket() as (pipe, far):
        far.send((PIPE_BYTES_MAX + 1).to_bytes(4, "big"))
        with pytest.raises(
            UnavailableError,
            match=f"at most {PIPE_BYTES_MAX} bytes, got one of {PIPE_BYTES_MAX + 1}",
        ):
            await pipe.read()
        assert far.recv(100) == b""


async def test_a_write_that_is_too_large_or_two_at_once_are_our_own_mistake() -> None:
    async with pipe_and_socket() as (pipe, _):
        with pytest.raises(LocalProtocolError):
            await pipe.write(bytes(PIPE_BYTES_MAX + 1))
        waiting = asyncio.create_task(pipe.write(bytes(PIPE_BYTES_MAX)))
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError):
            await pipe.write(b"x")
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_write_that_is_cancelled_halfway_breaks_the_pipe_for_both() -> None:
    async with pipe_and_socket() as (pipe, far):
        writing = asyncio.create_task(pipe.write(bytes(PIPE_BYTES_MAX)))
        reading = asyncio.create_task(pipe.read())
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        with pytest.raises(UnavailableError, match="cancelled halfway"):
            await reading
        with pytest.raises(UnavailableError, match="cancelled halfway"):
            await pipe.write(b"x")
        while far.recv(1 << 20):
            pass


async def test_a_reader_that_always_finds_bytes_lets_others_run() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with pipe_and_socket() as (pipe, far):
        running = asyncio.create_task(others())
        await asyncio.sleep(0)
        before = turns
        for _ in range(64):
            far.send(announced(bytes(65536)))
            assert len(await pipe.read()) == 65536
        assert turns > before
        running.cancel()
