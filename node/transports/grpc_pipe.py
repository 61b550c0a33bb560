"""A gRPC call as a pipe: how both ends of lockstep.v1.Peer/Pipe treat its messages.
`grpc_transport` makes the calls.

    bytes, bytes, ...              <->    a piece of the stream each, at most `PIPE_BYTES_MAX`
    "" (a message without bytes)   <->    this end closed, and had sent everything before

A call that ends without the empty message is a broken pipe; gRPC alone does not tell the accepting
end which of the two it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import grpc

from border.visitors import Visitors
from node.transports.base import PIPE_BYTES_MAX
from protocol.border.text import clean
from protocol.errors import LocalProtocolError, UnavailableError
from protocol.limits import TEXT_BYTES_MAX

CLOSE_S = 0.5
"""Time that the other end gets to agree that a pipe is closed; then the pipe is cut."""


class GrpcPipe:
    """A `node.transports.base.Pipe`: the common part of both ends of a call."""

    relayed = False

    def __init__(self, call: Any, remote: str, vouching: bytes | None = None) -> None:
        """`call`: the object that grpc.aio gives to either end. `vouching`: the key of the other
        end's certificate.
        """
        self.remote = remote
        self._vouching = vouching
        self._call = call
        self._gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[Any] | None = None
        self._writing: asyncio.Task[Any] | None = None
        self._ended = self._closing = False

    def proves(self, public_key: bytes) -> bool | None:
        """Whether the key vouches for the other end's certificate; None where it showed none: it
        dialled, or there is no TLS.
        """
        return None if self._vouching is None else self._vouching == public_key

    def admit(self) -> None:
        """This end dialled: nothing is counted."""

    async def read(self) -> bytes:
        """The next message; see `Pipe`. A cancelled read leaves its message to the next one."""
        self._check_open()
        if self._ended:
            return b""
        self._reading = self._reading or _started(self._receive())
        await self._done_or_gone(self._reading)
        reading, self._reading = self._reading, None
        message: bytes | None = self._result(reading)
        if message is None:
            raise self._broken("the connection was lost, or the other end died")
        self._ended = not message
        return message

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self._check_open()
        if len(data) > PIPE_BYTES_MAX:
            raise LocalProtocolError(
                f"expected at most {PIPE_BYTES_MAX} bytes to write, got {len(data)}"
            )
        if not data:
            return  # an empty message is the goodbye
        self._writing = _started(self._call.write(bytes(data)))
        try:
            await self._done_or_gone(self._writing)
        except asyncio.CancelledError:
            self.cut("a write was cancelled")
            raise
        writing, self._writing = self._writing, None
        self._result(writing)

    async def close(self) -> None:
        """Say goodbye and let go; see `Pipe`."""
        if self._closing:
            return
        self._closing, polite = True, not (self._gone.done() or self._writing)
        self.cut("it was closed here")
        try:
            if polite:
                await asyncio.wait({_started(self._say_goodbye())}, timeout=CLOSE_S)
        finally:
            await self._let_go()

    def cut(self, why: str) -> None:
        """End reads and writes, present and future, with `UnavailableError`."""
        if not self._gone.done():
            self._gone.set_result(why)

    async def _receive(self) -> bytes | None:
        """The next message, None at the end of the call."""
        raise NotImplementedError

    async def _say_goodbye(self) -> None:
        await self._call.write(b"")

    async def _let_go(self) -> None:
        raise NotImplementedError

    async def _done_or_gone(self, task: "asyncio.Task[Any]") -> None:
        # In a task of its own: grpc.aio ends the call when one of its reads is cancelled, and also
        # raises CancelledError for ends that nobody here asked for.
        await asyncio.wait({task, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        self._check_open()

    def _result(self, task: "asyncio.Task[Any]") -> Any:
        if task.cancelled():
            raise self._broken("the call was cancelled")
        if error := task.exception():
            raise self._broken(_reason(error))
        return task.result()

    def _broken(self, why: str) -> UnavailableError:
        self.cut(why)
        return UnavailableError(f"the pipe to {self.remote} broke: {why}")

    def _check_open(self) -> None:
        if self._gone.done():
            raise UnavailableError(f"the pipe to {self.remote} is no more: {self._gone.result()}")


class DialledPipe(GrpcPipe):
    """The end that makes the call."""

    def __init__(
        self,
        call: Any,
        address: str,
        hang_up: Callable[[], Awaitable[None]],
        vouching: bytes | None = None,
    ) -> None:
        super().__init__(call, address, vouching)
        self._hang_up = hang_up
        # Unlike `call.read`, the iterator still gives the arrived messages when a write has failed.
        self._messages = aiter(call)

    async def _receive(self) -> bytes | None:
        return await anext(self._messages, None)

    async def _say_goodbye(self) -> None:
        await super()._say_goodbye()
        await self._call.done_writing()
        # Up to the other end's goodbye: a call cancelled sooner loses messages on their way.
        await self._drain()

    async def _let_go(self) -> None:
        self._call.cancel()
        await asyncio.wait({_started(self._drain())}, timeout=CLOSE_S)
        await self._hang_up()

    async def _drain(self) -> None:
        """Read on until the call ends: gRPC keeps the call, and a task, while a message is
        unread.
        """
        if self._reading:
            await asyncio.wait({self._reading})
        async for _ in self._messages:
            pass


class AcceptedPipe(GrpcPipe):
    """The end that is called. gRPC forgets the call when its handler returns, once the pipe is
    released.
    """

    def __init__(self, context: Any, visitors: Visitors) -> None:
        self._peer, self._visitors = context.peer(), visitors
        # "ipv4:192.0.2.7:50701"
        super().__init__(context, unquote(visitors.remote(self._peer)).partition(":")[2])
        self.host = self.remote.rpartition(":")[0]
        self.released = asyncio.Event()

    def admit(self) -> None:
        self._visitors.prove(self._peer)

    async def _receive(self) -> bytes | None:
        message = await self._call.read()
        return None if message is grpc.aio.EOF else message

    async def _let_go(self) -> None:
        self.released.set()


def _started(operation: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """A task whose failure may go unseen: a pipe that is gone already has its reason."""
    task = asyncio.create_task(operation)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return in_words(error.code(), error.details())
    return f"{type(error).__name__}: {error}"[:TEXT_BYTES_MAX]


def in_words(code: Any, details: str | None) -> str:
    """The status of a call, for people."""
    return f"{code.name.lower().replace('_', ' ')}: {clean(details or 'no details')}"
