"""A pipe over a local socket whose far side only copies: libp2p's daemon, which does not tell an
end from a break.

    a write    length (4 bytes, up to PIPE_BYTES_MAX) and that many bytes
    a close    length 0, the goodbye; then silence until the other end's, `LINGER_S` at most

The daemon turns a peer's close, its death and a broken connection into the same end of file, and
drops the bytes on their way as soon as either direction ends. So an end of file without a goodbye
is a break, and the end that says goodbye lets the other end go first. Bytes go between the socket
and the caller's memory without a copy in between.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from node.transports.base import PIPE_BYTES_MAX
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.multiaddr import libp2p_id
from protocol.errors import LocalProtocolError, UnavailableError

LINGER_S = 1.0
"""Longest wait for the other end after a goodbye: a few round trips around the world."""

READ_BYTES_MAX = 256 * 1024
"""Bytes that one read asks of the socket, which seldom holds more."""

_HEADER_BYTES = 4
_GOODBYE = bytes(_HEADER_BYTES)


class SocketPipe:
    """A `node.transports.base.Pipe` over a connected socket, which belongs to the pipe from now on.

    `contact` is the connection that carries it. `on_close` is called when the pipe has let go of
    its socket; until then its maker must hold a reference, for nothing else may.
    """

    def __init__(
        self,
        connection: socket.socket,
        contact: Contact,
        on_close: Callable[["SocketPipe"], None],
    ) -> None:
        connection.setblocking(False)
        self.contact = contact
        self.is_admitted = False
        """Whether its other end has proven a key that may stay."""
        self.is_cut = False
        """Whether its place was needed."""
        self._socket = connection
        self._on_close = on_close
        self._header = b""
        self._left = 0  # bytes of the incoming write that have not arrived
        self._unwaited = 0  # bytes read since the event loop last had its turn
        self._writing = False
        self._ended = False  # the other end has said goodbye
        self._said_goodbye = False
        self._broken = ""
        self._closed = False
        self._gone = asyncio.Event()
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def remote(self) -> str:
        """The address of the other end, with its libp2p peer id."""
        return f"{self.contact.address}/p2p/{self.contact.peer}"

    @property
    def relayed(self) -> bool:
        """See `Pipe`."""
        return self.contact.relayed

    def proves(self, public_key: bytes) -> bool:
        """Whether the key is the one that libp2p has proven."""
        return libp2p_id(public_key) == self.contact.peer

    def admit(self) -> None:
        self.is_admitted = True

    def cut(self) -> None:
        """Break it: its place is needed."""
        self.is_cut = True
        self._break("others needed its place")

    async def read(self) -> bytes:
        """See `Pipe`."""
        self._check()
        if self._unwaited > PIPE_BYTES_MAX:  # a fast peer must not keep other tasks from running
            self._unwaited = 0
            await asyncio.sleep(0)
        return await self._next()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Pipe`."""
        self._check()
        if self._ended:
            raise UnavailableError(f"{self.remote} has closed the pipe")
        if len(data) > PIPE_BYTES_MAX or self._writing:
            raise LocalProtocolError(
                f"expected one write at a time of at most {PIPE_BYTES_MAX} bytes, got {len(data)}"
            )
        if not data:
            return  # a length of 0 would be a goodbye
        self._writing = True
        try:
            await self._send(
                [memoryview(len(data).to_bytes(_HEADER_BYTES, "big")), memoryview(data)]
            )
        except asyncio.CancelledError:
            self._break("a write was cancelled halfway")
            raise
        self._writing = False

    async def close(self) -> None:
        """Say goodbye, wait a moment for the other end's, and let go; see `Pipe`."""
        if self._closed:
            await self._gone.wait()
            return
        self._closed = True
        self._wake()
        try:
            if self._say_goodbye():
                async with asyncio.timeout(LINGER_S):
                    await self._discard()
        except (UnavailableError, TimeoutError):
            pass  # it broke, or the other end did not answer in time
        finally:
            self._socket.close()
            self._gone.set()
            self._on_close(self)

    async def _next(self, closing: bool = False) -> bytes:
        while not self._left:
            if self._ended:
                return b""
            self._header += await self._receive(_HEADER_BYTES - len(self._header), closing)
            if len(self._header) == _HEADER_BYTES:
                self._left, self._header = int.from_bytes(self._header, "big"), b""
                if self._left == 0:
                    self._ended = True
                    self._say_goodbye()  # the other end waits for it
        if self._left > PIPE_BYTES_MAX:
            raise self._break(
                f"expected writes of at most {PIPE_BYTES_MAX} bytes, got one of {self._left}"
            )
        data = await self._receive(min(self._left, READ_BYTES_MAX), closing)
        self._left -= len(data)
        self._unwaited += len(data)
        return data

    async def _discard(self) -> None:
        """Read until the other end's goodbye, but at most `PIPE_BYTES_MAX`: an end that goes on
        writing sees a break.
        """
        discarded = 0
        while discarded < PIPE_BYTES_MAX and (data := await self._next(closing=True)):
            discarded += len(data)

    async def _receive(self, size: int, closing: bool) -> bytes:
        """The bytes that the socket holds, at most `size`, once it holds any. Cancelling it takes
        none.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._check(closing)
            try:
                data = self._socket.recv(size)
            except BlockingIOError:
                await self._until_ready(loop.add_reader, loop.remove_reader)
                continue
            except OSError as error:
                raise self._break(error.strerror or str(error)) from None
            if not data:
                raise self._break(
                    "the other end, or a daemon on the way, died or lost its connection"
                )
            return data

    async def _send(self, pending: list[memoryview]) -> None:
        loop = asyncio.get_running_loop()
        while pending:
            self._check()
            try:
                sent = self._socket.sendmsg(pending)
            except BlockingIOError:
                await self._until_ready(loop.add_writer, loop.remove_writer)
                continue
            except OSError as error:
                raise self._break(error.strerror or str(error)) from None
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if sent:
                pending[0] = pending[0][sent:]

    async def _until_ready(
        self, add: Callable[..., None], remove: Callable[[socket.socket], bool]
    ) -> None:
        self._unwaited = 0
        ready = asyncio.get_running_loop().create_future()
        add(self._socket, _done, ready)
        self._waiting.add(ready)
        try:
            await ready
        finally:
            # Otherwise `_wake` has removed it, and another wait may have taken its place.
            if ready in self._waiting:
                self._waiting.discard(ready)
                remove(self._socket)

    def _say_goodbye(self) -> bool:
        """Send the goodbye unless it was sent; returns whether it has left. It does not behind half
        a write, nor over a broken or full pipe.
        """
        if self._broken or self._writing or self._said_goodbye:
            return self._said_goodbye
        with contextlib.suppress(OSError):
            self._said_goodbye = self._socket.send(_GOODBYE) == _HEADER_BYTES
        return self._said_goodbye

    def _wake(self) -> None:
        """Let a waiting read and a waiting write look again."""
        if self._waiting:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
        for ready in self._waiting:
            _done(ready)
        self._waiting.clear()

    def _check(self, closing: bool = False) -> None:
        if self._closed and not closing:
            raise UnavailableError(f"the pipe to {self.remote} was closed here")
        if self._broken:
            raise UnavailableError(f"the pipe to {self.remote} broke: {self._broken}")

    def _break(self, reason: str) -> UnavailableError:
        """Record the reason, tell the daemon, and wake a waiting read and write."""
        self._broken = self._broken or reason
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()
        return UnavailableError(f"the pipe to {self.remote} broke: {self._broken}")


def _done(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
