"""Another host for strangers: they reach a coordinator on loopback through a forwarder that comes
from a loopback address of its own, because the coordinator counts what it is asked by host.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

READ_BYTES = 64 * 1024


@contextlib.asynccontextmanager
async def forwarded(address: str, host: str) -> AsyncIterator[str]:
    """An address that leads to `address` from `host`, to the end of the block."""
    to_host, _, to_port = address.rpartition(":")
    tasks = set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(to_host, int(to_port), local_addr=(host, 0))
            ways = [
                asyncio.create_task(pump(reader, there[1])),
                asyncio.create_task(pump(there[0], writer)),
            ]
            tasks.update(ways)
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                there[1].close()
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
