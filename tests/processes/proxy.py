"""A wire that can be cut and can flip bits: a TCP proxy in front of one address, in its own thread.

dialler --> proxy --> target    cut:      every connection is reset, new ones too, until mended
        <--       <--           corrupt:  one bit of the next payload part that passes is flipped
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

from node.links.frames import MAGIC, PART_FRAME_OVERHEAD, Kind

READ_BYTES = 64 * 1024

_PART_FRAME = MAGIC + bytes((Kind.PART, 0))
_RESET = struct.pack(
    "ii", 1, 0
)  # SO_LINGER with no time: closing sends a reset, as a vanished network would


class Proxy:
    """Listens on a free port of 127.0.0.1 and connects to `target`, which may be named later;
    closed by `close`.
    """

    def __init__(self, target: tuple[str, int] | None = None) -> None:
        self.target = target
        self.flipped = 0
        """Bits flipped so far."""
        self.dropped = 0
        """Connections on which a bit was flipped and that have ended since: by one of the ends,
        unless cut."""
        self._cut = False
        self._to_flip = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._spoiled: set[asyncio.StreamWriter] = set()  # those that carried a flipped bit
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        """Where to dial."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset what is open and refuse what comes."""
        self._call(self._sever())

    def mend(self) -> None:
        """Carry again; whoever wants a connection dials."""
        self._cut = False

    def corrupt(self) -> None:
        """Flip one bit in the data of the next payload part, whichever way it goes."""
        self._to_flip = 1

    def close(self) -> None:
        """End every connection and the thread."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- in the thread

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _sever(self) -> None:
        self._cut = True
        for writer in list(self._writers):
            _reset(writer)

    async def _end(self) -> None:
        self._server.close()
        await self._sever()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            if self._cut or self.target is None:
                return
            onward_reader, onward = await asyncio.open_connection(*self.target)
            writers.append(onward)
            self._writers.update(writers)
            pumps = [
                asyncio.ensure_future(self._pump(*pair))
                for pair in ((reader, onward), (onward_reader, writer))
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # nobody listens there at present
        finally:
            self.dropped += not self._spoiled.isdisjoint(writers)
            for end in writers:
                self._spoiled.discard(end)
                self._writers.discard(end)
                if self._cut:
                    _reset(end)
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                passed = self._passed(data)
                if passed is not data:
                    self._spoiled.add(writer)
                writer.write(passed)
                await writer.drain()

    def _passed(self, data: bytes) -> bytes:
        part_at = data.find(_PART_FRAME)
        spoiled_at = part_at + PART_FRAME_OVERHEAD  # the first byte of the part's data
        if not self._to_flip or part_at < 0 or spoiled_at >= len(data):
            return data
        self._to_flip, self.flipped = 0, self.flipped + 1
        return data[:spoiled_at] + bytes((data[spoiled_at] ^ 1,)) + data[spoiled_at + 1 :]


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close without a goodbye; nothing that waits to be sent is."""
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
