"""The node's line to its coordinator: one session, opened again and again for as long as the node
lives.

A lost session is nobody's error: the client says so, waits (exponential backoff with jitter) and
opens the next. What is sent while there is none is dropped on purpose: after each welcome the owner
says again what still holds (`Listener.welcomed`). Only the coordinator's own refusal ends the
client, with its reason; being removed for silence does not.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.members import MemberList
from node.system.clock import own_clock_ms
from node.traffic import Traffic
from protocol import wire_pb2 as wire
from protocol.channel import CLIENT_OPTIONS
from protocol.clock import ClockOffset
from protocol.errors import (
    DivergedError,
    RefusedError,
    RemoteProtocolError,
    UnavailableError,
    VersionError,
)
from protocol.handshake import NONCE_BYTES, public_bytes, sign_hello
from protocol.ids import RunId
from protocol.limits import PROTOCOL_VERSION
from protocol.runfile import RunSpec, parse_run_json, run_id
from protocol.wire_pb2_grpc import CoordinatorStub

log = logging.getLogger("lockstep.node")

_Outbox: TypeAlias = "asyncio.Queue[wire.NodeMessage | None]"
"""What a session has to say; None ends it."""

CALL_SECONDS = 20
"""Longest wait for a unary call: a home link's worst round trips, with room."""

BACKOFF_SECONDS = (0.5, 5.0)
"""First and longest pause between two sessions."""

SILENCE_HEARTBEATS = 4
"""Heartbeats without any message from the coordinator after which a session counts as dead."""

OUTBOX_MESSAGES_MAX = 1024
"""Messages that may wait for a slow coordinator; then the session is given up and opened again."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as its coordinator describes it."""

    spec: RunSpec
    run_id: RunId
    coordinator_key: bytes


class Listener(Protocol):
    """What the client tells its owner, all from the event loop."""

    def welcomed(self, welcome: wire.Welcome) -> None:
        """A session is open: say again what still holds."""

    def received(self, message: wire.CoordinatorMessage) -> None:
        """An event of the run."""


class CoordinatorClient:
    """Session and unary calls to one coordinator at HOST:PORT."""

    def __init__(self, address: str, key: Ed25519PrivateKey) -> None:
        self.address = address
        self.clock = ClockOffset()
        self.state = "not connected yet"
        self.traffic = Traffic()
        """Bytes of messages: the run and old commits are what a late joiner needs, all else is
        control."""
        self._key = key
        self._channel: grpc.aio.Channel | None = None
        self._outbox: _Outbox | None = None

    @property
    def connected(self) -> bool:
        """Is a session open? If not, `state` says why."""
        return self.state == "connected"

    async def close(self) -> None:
        """Close the channel."""
        if self._channel:
            await self._channel.close()
            self._channel = None

    @property
    def _stub(self) -> Any:
        """The service; its channel belongs to the event loop of the first call."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=CLIENT_OPTIONS)
        return CoordinatorStub(self._channel)

    # ---- unary calls

    async def fetch_run(self, patience_seconds: float = 30) -> RunInfo:
        """The run, checked: its name must be the hash of what was received.

        Raises `UnavailableError` when the coordinator does not answer in time, `VersionError`,
        `SettingsError`.
        """
        try:
            run = await self._stub.GetRun(
                wire.GetRunRequest(), timeout=patience_seconds, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None
        self.traffic.catch_up_down += run.ByteSize()
        if run.protocol_version != PROTOCOL_VERSION:
            raise VersionError(
                f"the coordinator at {self.address} speaks protocol version {run.protocol_version}, this node "
                f"{PROTOCOL_VERSION}: update the older one"
            )
        spec = parse_run_json(run.run_json, f"run file from {self.address}")
        if run_id(spec, run.coordinator_key) != run.run_id:
            raise RemoteProtocolError(
                f"{self.address}: expected the run id to be the hash of the run file, it is not"
            )
        return RunInfo(spec, RunId(run.run_id), run.coordinator_key)

    async def fetch_commits(self, after_round: int) -> wire.Commits:
        """Commits after a round; asks until the coordinator answers."""
        while True:
            try:
                request = wire.GetCommitsRequest(after_round=after_round)
                self.traffic.control_up += request.ByteSize()
                commits: wire.Commits = await self._stub.GetCommits(request, timeout=CALL_SECONDS)
                self.traffic.catch_up_down += commits.ByteSize()
                return commits
            except grpc.aio.AioRpcError as error:
                log.warning("cannot fetch commits reason=%s", str(self._unavailable(error)))
                await asyncio.sleep(BACKOFF_SECONDS[0] * random.uniform(1, 3))

    async def fetch_members(self) -> MemberList:
        """The run's members and relays, without being one; `UnavailableError` when nobody answers
        in time.
        """
        try:
            members = await self._stub.GetMembers(wire.GetMembersRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise self._unavailable(error) from None
        self.traffic.control_down += members.ByteSize()
        roster = MemberList()
        roster.take(members)
        return roster

    # ---- the session

    def now_ms(self) -> int:
        """The coordinator's clock as this node knows it."""
        return own_clock_ms() + self.clock.milliseconds

    def send(self, message: wire.NodeMessage) -> None:
        """Send in the open session, if there is one."""
        if self._outbox is not None:
            with contextlib.suppress(asyncio.QueueFull):
                self._outbox.put_nowait(message)

    async def flushed(self, seconds: float) -> None:
        """Return when everything sent has gone out, or after so long."""
        deadline = time.monotonic() + seconds
        while self._outbox is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            if self._outbox is not None and self._outbox.empty():
                await asyncio.sleep(0.2)  # the last one is with gRPC; a moment to leave the machine
                return

    async def run(self, info: RunInfo, hello: wire.Hello, listener: Listener) -> None:
        """Keep a session open until cancelled.

        Raises `RefusedError` when the coordinator turns the node away, `DivergedError` when it says
        that this machine computes wrong results.
        """
        pause = BACKOFF_SECONDS[0]
        while True:
            opened = time.monotonic()
            try:
                await self._session(info, hello, listener)
                self.state = f"the coordinator at {self.address} closed the session; reconnecting"
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                detail = (
                    error.details() if isinstance(error, grpc.aio.AioRpcError) else "it fell silent"
                )
                self.state = f"lost the coordinator at {self.address} ({detail}); reconnecting"
            except RemoteProtocolError as error:
                self.state = (
                    f"the coordinator at {self.address} broke the protocol ({error}); reconnecting"
                )
            finally:
                self._outbox = None
            log.warning("session lost reason=%s", self.state)
            if time.monotonic() - opened > 30:
                pause = BACKOFF_SECONDS[0]
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, BACKOFF_SECONDS[1])

    async def _session(self, info: RunInfo, hello: wire.Hello, listener: Listener) -> None:
        outbox: _Outbox = asyncio.Queue(OUTBOX_MESSAGES_MAX)
        call = self._stub.Session(self._drain(outbox), wait_for_ready=True)
        heartbeat_seconds = info.spec.membership.heartbeat_ms / 1000
        beating = None
        try:
            async for message in _unless_silent(call, heartbeat_seconds * SILENCE_HEARTBEATS):
                self.traffic.control_down += message.ByteSize()
                kind = message.WhichOneof("kind")
                if kind == "challenge":
                    outbox.put_nowait(
                        wire.NodeMessage(hello=self._signed(hello, info, message.challenge.nonce))
                    )
                elif kind == "refused":
                    error = DivergedError if message.refused.wrong_results else RefusedError
                    raise error(f"the coordinator refused this node: {message.refused.reason}")
                elif kind == "evicted" and message.evicted.wrong_results:
                    raise DivergedError(
                        f"the coordinator removed this node: {message.evicted.reason}"
                    )
                elif kind == "heartbeat":
                    beat = message.heartbeat
                    self.clock.observe(
                        beat.sent_ms, beat.received_ms, beat.replied_ms, own_clock_ms()
                    )
                elif kind == "welcome":
                    self._outbox, self.state = outbox, "connected"
                    beating = beating or asyncio.create_task(self._beat(outbox, heartbeat_seconds))
                    listener.welcomed(message.welcome)
                else:
                    listener.received(message)
        finally:
            call.cancel()
            if beating:
                beating.cancel()
            _end(outbox)

    async def _drain(self, outbox: _Outbox) -> AsyncIterator[wire.NodeMessage]:
        while message := await outbox.get():
            self.traffic.control_up += message.ByteSize()
            yield message

    async def _beat(self, outbox: _Outbox, seconds: float) -> None:
        while True:
            with contextlib.suppress(asyncio.QueueFull):
                outbox.put_nowait(
                    wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=own_clock_ms()))
                )
            await asyncio.sleep(seconds)

    def _signed(self, hello: wire.Hello, info: RunInfo, nonce: bytes) -> wire.Hello:
        if len(nonce) != NONCE_BYTES:
            raise RemoteProtocolError(
                f"{self.address}: expected a nonce of {NONCE_BYTES} bytes, got {len(nonce)}"
            )
        signed = wire.Hello()
        signed.CopyFrom(hello)
        signed.protocol_version, signed.run_id = PROTOCOL_VERSION, info.run_id
        signed.public_key = public_bytes(self._key)
        signed.signature = sign_hello(self._key, info.run_id, nonce)
        return signed

    def _unavailable(self, error: grpc.aio.AioRpcError) -> UnavailableError:
        silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        what = "nobody answered in time" if silent else error.details()
        return UnavailableError(
            f"cannot reach a coordinator at {self.address}: {what}; check the address, that it runs, and the network "
            "of this machine"
        )


def _end(outbox: _Outbox) -> None:
    """GRPC goes on to wait for the messages of a call that the other side has ended; nothing else
    stops it.
    """
    if outbox.full():
        outbox.get_nowait()
    outbox.put_nowait(None)


async def _unless_silent(call: Any, seconds: float) -> AsyncIterator[wire.CoordinatorMessage]:
    """The call's messages; `TimeoutError` when none comes for so long."""
    while True:
        async with asyncio.timeout(max(seconds, 1.0)):
            message = await call.read()
        if message is grpc.aio.EOF:
            return
        yield message
