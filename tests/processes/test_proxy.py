"""The wire that other tests hurt does what they think it does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from node.links.frames import FrameReader, Part, encode
from protocol.errors import RemoteProtocolError
from tests.processes.proxy import Proxy
from tests.support.waiting import until


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """In front of a server that sends back what it hears."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[:2])
    yield proxy
    await asyncio.to_thread(proxy.close)
    server.close()
    await server.wait_closed()


async def echoed(proxy: Proxy, data: bytes) -> bytes:
    """What comes back from the other end; short when the connection ends first, or is reset before
    it is told of.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    except ConnectionError:
        return b""
    try:
        writer.write(data)
        return await reader.readexactly(len(data))
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_bytes_pass_as_they_are(proxy: Proxy) -> None:
    assert await echoed(proxy, b"hello") == b"hello"


async def test_one_bit_of_one_part_is_flipped_and_the_frames_digest_finds_it(proxy: Proxy) -> None:
    frame = encode(Part(1, 0, 4, b"data"))
    proxy.corrupt()
    spoiled = await echoed(proxy, frame)
    assert proxy.flipped == 1
    assert sum((a ^ b).bit_count() for a, b in zip(spoiled, frame, strict=True)) == 1
    with pytest.raises(RemoteProtocolError, match="a damaged one"):
        list(FrameReader().feed(spoiled))
    await until(lambda: proxy.dropped == 1)
    assert await echoed(proxy, frame) == frame


async def test_a_frame_that_is_no_part_is_not_flipped(proxy: Proxy) -> None:
    proxy.corrupt()
    assert await echoed(proxy, b"LS and nothing that is a part of a payload") == (
        b"LS and nothing that is a part of a payload"
    )
    assert proxy.flipped == 0


async def test_a_cut_wire_carries_nothing_until_it_is_mended(proxy: Proxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    await asyncio.to_thread(proxy.cut)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert await echoed(proxy, b"hello") == b""
    proxy.mend()
    assert await echoed(proxy, b"hello") == b"hello"
