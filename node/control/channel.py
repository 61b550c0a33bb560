"""The channel to the coordinator, and the messages of a session on it.

A channel is given up after each failure, and the next call opens another one, which looks the
coordinator's name up again: gRPC itself stays with an address that was right for as long as a
connection to it might come back, which one whose machine is gone never does. Calls that are under
way on the old channel end by themselves. Each channel asks for the coordinator's certificate first
and trusts this one alone (`node.system.tls`).
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from node.system.tls import CHANNEL_OPTIONS, Shown, fetch_certificate, judged
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink
from protocol.border.text import clean
from protocol.channel import CLIENT_OPTIONS
from protocol.wire_pb2_grpc import CoordinatorStub

Outbox: TypeAlias = "asyncio.Queue[wire.NodeMessage | None]"
"""Messages that a session sends; None ends it."""

CALL_S = 20
"""Longest wait for a unary call: a home link's worst round trips, with room."""

_OPTIONS = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""A new channel shares no connection, and no pause between attempts, with the one before it."""


class CoordinatorChannel:
    """Channels to the coordinator that a link names, one after the other."""

    def __init__(self, link: JoinLink) -> None:
        self._link = link
        self._channel: grpc.aio.Channel | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self.vouching: bytes | None = None
        """The key that vouches for the channel; None without TLS, or before the first call."""

    async def stub(self, timeout_s: float = CALL_S) -> Any:
        """The service; its channel belongs to the event loop of the first call.

        Raises `UnavailableError` when nobody answers, `RemoteProtocolError` when another server
        does, or a coordinator without TLS where it is needed.
        """
        async with self._opening:
            if self._channel is None:
                address = self._link.address
                shown = await fetch_certificate(address, timeout_s, "a coordinator at ")
                self._channel = self._open(judged(self._link, shown))
        return CoordinatorStub(self._channel)

    def _open(self, shown: Shown | None) -> grpc.aio.Channel:
        address = self._link.address
        if shown is None:
            self.vouching = None
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        self.vouching = shown.key
        return grpc.aio.secure_channel(
            address, shown.credentials, options=(*_OPTIONS, *CHANNEL_OPTIONS)
        )

    def renew(self) -> None:
        """Use another channel from the next call on."""
        if self._channel:
            closing = asyncio.create_task(self._channel.close(grace=CALL_S + 1))
            self._ending.add(closing)
            closing.add_done_callback(self._ending.discard)
            self._channel = None

    async def close(self) -> None:
        """Close every channel."""
        for task in list(self._ending):
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._channel:
            await self._channel.close()
            self._channel = None


class SessionReader:
    """Reads the messages of a session until the coordinator is silent."""

    def __init__(self) -> None:
        self._limit: asyncio.Timeout | None = None

    async def messages(self, call: Any, silence_s: float) -> AsyncIterator[wire.CoordinatorMessage]:
        """The call's messages; `TimeoutError` when none comes for `silence_s`."""
        while True:
            async with asyncio.timeout(silence_s) as self._limit:
                message = await call.read()
            self._limit = None
            if message is grpc.aio.EOF:
                return
            yield message

    def give_up(self) -> None:
        """Wait no longer for the message that is awaited now."""
        if self._limit and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


def clean_reason(message: wire.CoordinatorMessage) -> None:
    """Clean the words of a message: they go to logs, statuses and terminals."""
    kind = message.WhichOneof("kind")
    if kind and (reason := getattr(getattr(message, kind), "reason", "")):
        getattr(message, kind).reason = clean(reason)


def end_outbox(outbox: Outbox) -> None:
    """End the stream of a call's messages: gRPC waits for them even after the other side has ended
    the call.
    """
    if outbox.full():
        outbox.get_nowait()
    outbox.put_nowait(None)
