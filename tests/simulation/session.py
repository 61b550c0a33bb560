"""The coordinator's service over the simulated network: calls as gRPC makes them, and as they
break.

The client's end is the stub and the calls that `node.control.client` uses; the server's end runs
the coordinator's real servicer in the coordinator's process. Messages cross as bytes.

A call ends in one of these ways, and each end learns of it later than the other, or never:
    the servicer returns     the client reads EOF after the last message
    the client cancels       the servicer is cancelled
    one process is killed    its machine tells the other end, or is silent: then the client has only
                             its own deadline, and the server its keepalive
    the connection breaks    both ends learn of it, each in its own time
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from protocol import wire_pb2 as wire
from tests.simulation.network import Network, Stream
from tests.simulation.world import PROCESS, Process

COORDINATOR = "coordinator"
CONNECT_MS = 300
KEEPALIVE_MS = 8_000
"""Time after which a server drops a client whose machine is silent."""

SILENT_DEATH = 0.3
"""Part of the deaths that the other end is not told."""

_UNARY = {"GetRun": wire.Run, "GetCommits": wire.Commits}


def unavailable(
    details: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
) -> grpc.aio.AioRpcError:
    """The error of a failed call."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Switchboard:
    """Routes calls to the servicer of the coordinator's present life, if it listens."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.servicer: Any = None
        self.calls: list[Call | _Unary] = []

    def listens(self) -> bool:
        """Whether a servicer answers."""
        return self.servicer is not None and self.network.runs(COORDINATOR)

    def forget(self, call: "Call | _Unary") -> None:
        """Drop a call that has ended."""
        if call in self.calls:
            self.calls.remove(call)

    def died(self, party: str) -> None:
        """A process is gone; processes that were connected to it may be told."""
        if party == COORDINATOR:
            self.servicer = None
        for call in [call for call in self.calls if party in (call.node, COORDINATOR)]:
            self.forget(call)
            call.lost_end(party)


class Visitor:
    """The part of a gRPC context that the service needs; every node has the same host."""

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"


VISITOR = Visitor()


class Stub:
    """The service as one node's process reaches it."""

    def __init__(self, switchboard: Switchboard, node: str) -> None:
        self._switchboard, self._network, self._node = switchboard, switchboard.network, node

    def Session(
        self, requests: AsyncIterator[wire.NodeMessage], wait_for_ready: bool = False
    ) -> "Call":
        """Open a session."""
        return Call(self._switchboard, self._node, requests)

    async def GetRun(self, request: Any, timeout: float, wait_for_ready: bool = False) -> Any:
        """One unary call."""
        return await self._unary("GetRun", request, timeout)

    async def GetCommits(self, request: Any, timeout: float) -> Any:
        """One unary call."""
        return await self._unary("GetCommits", request, timeout)

    async def _unary(self, name: str, request: Any, timeout: float) -> Any:
        network, switchboard, world = self._network, self._switchboard, self._network.world
        reply: asyncio.Future[Any] = world.create_future()

        def settle(blob: bytes | None) -> None:
            if not reply.done():
                if blob is None:
                    reply.set_exception(unavailable("the coordinator does not answer"))
                else:
                    reply.set_result(_UNARY[name].FromString(blob))

        async def serve(blob: bytes) -> None:
            answer = await getattr(switchboard.servicer, name)(
                type(request).FromString(blob), VISITOR
            )
            down.send(answer.SerializeToString())

        call = _Unary(self._node, lambda: world.call_later(CONNECT_MS / 1000, settle, None))
        if switchboard.listens():
            switchboard.calls.append(call)
            up = Stream(
                network, self._node, COORDINATOR, lambda blob: world.create_task(serve(blob))
            )
            down = Stream(network, COORDINATOR, self._node, settle)
            up.send(request.SerializeToString())
        else:
            call.refuse()
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise unavailable("no answer in time", grpc.StatusCode.DEADLINE_EXCEEDED) from None
        finally:
            switchboard.forget(call)


@dataclass(eq=False)
class _Unary:
    """A unary call on its way; `refuse` fails it for its caller."""

    node: str
    refuse: Callable[[], Any]

    def lost_end(self, party: str) -> None:
        """The process at one end was killed."""
        if party == COORDINATOR:
            self.refuse()


class Call:
    """One session: `read` and `cancel` are the client's, the rest is between."""

    def __init__(
        self, switchboard: Switchboard, node: str, requests: AsyncIterator[wire.NodeMessage]
    ) -> None:
        self.node = node
        self._switchboard, self._network = switchboard, switchboard.network
        self._world = self._network.world
        self._requests = requests
        self._incoming: asyncio.Queue[wire.NodeMessage | None] = asyncio.Queue()
        self._replies: asyncio.Queue[wire.CoordinatorMessage | BaseException | None] = (
            asyncio.Queue()
        )
        self._up: Stream | None = None
        self._down: Stream | None = None
        self._servant: asyncio.Task[None] | None = None
        self._server: Process | None = None
        self._pump = self._world.create_task(self._run())

    # ---- the client's end

    async def read(self) -> Any:
        """The next message; `grpc.aio.EOF` at the end; `AioRpcError` when the call broke."""
        reply = await self._replies.get()
        if reply is None:
            return grpc.aio.EOF
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def cancel(self) -> None:
        """Give the call up."""
        self._pump.cancel()
        self._end_client()
        if self._server is not None:
            delay_ms = self._network.delay_ms()
            cut = (self.node, COORDINATOR) in self._network.cut
            self._world.after(KEEPALIVE_MS if cut else delay_ms, self._end_server)

    async def _run(self) -> None:
        def reachable() -> bool:
            return self._switchboard.listens() and (self.node, COORDINATOR) not in self._network.cut

        while not reachable():  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(CONNECT_MS / 1000)
        await asyncio.sleep(self._network.delay_ms() / 1000)
        if not self._switchboard.listens():
            self._tell_client(unavailable("the connection was refused"))
            return
        self._server = self._network.processes[COORDINATOR]
        self._up = Stream(self._network, self.node, COORDINATOR, self._arrived)
        self._down = Stream(self._network, COORDINATOR, self.node, self._answered)
        self._switchboard.calls.append(self)
        self._up.send(None)  # the headers of the call
        async for message in self._requests:
            if self._network.chance("broken", self._network.weather.broken):
                self.break_()
            self._up.send(message.SerializeToString())

    def _answered(self, blob: bytes | None) -> None:
        self._replies.put_nowait(None if blob is None else wire.CoordinatorMessage.FromString(blob))

    def _tell_client(self, error: BaseException) -> None:
        self._replies.put_nowait(error)

    def _end_client(self) -> None:
        if self._up:
            self._up.closed = True
        if self._down:
            self._down.closed = True

    # ---- the server's end

    def _arrived(self, blob: bytes | None) -> None:
        if blob is None:
            self._servant = self._world.create_task(self._serve())
            return
        self._incoming.put_nowait(wire.NodeMessage.FromString(blob))

    async def _serve(self) -> None:
        servicer = self._switchboard.servicer
        messages = servicer.Session(self._received(), VISITOR)
        try:
            async for message in messages:
                self._down.send(message.SerializeToString())  # type: ignore[union-attr]
            self._down.send(None)  # type: ignore[union-attr]
        finally:
            await messages.aclose()
            self._forget()

    async def _received(self) -> AsyncIterator[wire.NodeMessage]:
        while (message := await self._incoming.get()) is not None:
            yield message

    def _end_server(self) -> None:
        if self._servant is not None and self._server is not None and self._server.state != "dead":
            self._world.call_soon(self._servant.cancel, context=self._server.context)
        self._forget()

    def _forget(self) -> None:
        self._switchboard.forget(self)

    # ---- between

    def break_(self) -> None:
        """The connection is gone; each end learns of it in its own time."""
        self._end_client()
        process = PROCESS.get()
        node = self._network.processes[self.node]
        context = process.context if process and process.name == self.node else node.context
        error = unavailable("the connection broke")
        delay_s = self._network.delay_ms() / 1000
        self._world.call_later(delay_s, self._tell_client, error, context=context)
        self._world.after(
            self._world.random.choice([self._network.delay_ms(), KEEPALIVE_MS]), self._end_server
        )

    def lost_end(self, party: str) -> None:
        """The process at one end was killed."""
        silent = self._world.random.random() < SILENT_DEATH
        delay_ms = self._network.delay_ms()
        if party == COORDINATOR:
            self._end_client()
            self._forget()
            if not silent:
                error = unavailable("the connection was reset")
                node = self._network.processes[self.node]
                self._world.call_later(
                    delay_ms / 1000, self._tell_client, error, context=node.context
                )
        else:
            self._end_client()
            self._world.after(KEEPALIVE_MS if silent else delay_ms, self._end_server)
