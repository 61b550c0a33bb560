"""A stranger: a key made on the spot, with a session of its own at a coordinator."""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.system.tls import CHANNEL_OPTIONS, Shown
from protocol import wire_pb2 as wire
from protocol.channel import CLIENT_OPTIONS
from protocol.errors import LockstepError
from protocol.handshake import public_bytes, sign_hello
from protocol.ids import PeerId, RunId, peer_id
from protocol.limits import PROTOCOL_VERSION
from protocol.wire_pb2_grpc import CoordinatorStub

BEAT_S = 0.5
"""Pause between two heartbeats."""

PAUSE_S = 0.2
"""Pause of a stranger that was turned away, before it comes again."""


@dataclass
class Target:
    """What strangers know of the run that they attack."""

    address: str
    """The coordinator as they reach it: through a host of their own."""
    behind: str
    """The coordinator itself."""
    run_id: RunId
    host: str
    """Address of the strangers' host."""
    directory: Path
    """Directory of the cluster; only who has stolen a key reads it."""
    did: Counter[str] = field(default_factory=Counter)
    """What they have done, and what became of it."""

    def stranger(self, key: Ed25519PrivateKey | None = None) -> "Stranger":
        """A new one."""
        return Stranger(self.address, self.run_id, key)


class SessionEndedError(Exception):
    """The coordinator has ended a stranger's session."""


FAILURES = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
    LockstepError,
    OSError,
    SessionEndedError,
    TimeoutError,
)
"""The ways in which an attack is turned away."""


class Stranger:
    """A key with a connection and a session of its own."""

    def __init__(
        self,
        address: str,
        run_id: RunId,
        key: Ed25519PrivateKey | None = None,
        shown: Shown | None = None,
    ) -> None:
        """`shown`: the certificate of the coordinator's TLS, where there is some."""
        self.address, self.run_id = address, run_id
        self.key = key or Ed25519PrivateKey.generate()
        self.peer: PeerId = peer_id(public_bytes(self.key))
        # a connection of its own: those of one process are shared else
        options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self.channel = (
            grpc.aio.secure_channel(
                address, shown.credentials, options=(*options, *CHANNEL_OPTIONS)
            )
            if shown
            else grpc.aio.insecure_channel(address, options=options)
        )
        self.stub = CoordinatorStub(self.channel)  # type: ignore[no-untyped-call]
        self.call: grpc.aio.StreamStreamCall[wire.NodeMessage, wire.CoordinatorMessage]
        self._turn = asyncio.Lock()

    async def connect(self) -> bytes:
        """Open a session; its nonce."""
        self.call = self.stub.Session(wait_for_ready=True)
        message = await self.call.read()
        if message is grpc.aio.EOF:
            raise SessionEndedError
        return bytes(message.challenge.nonce)

    async def hello(self, **texts: object) -> None:
        nonce = await self.connect()
        fields = {
            "protocol_version": PROTOCOL_VERSION,
            "run_id": self.run_id,
            "public_key": public_bytes(self.key),
            "signature": sign_hello(self.key, self.run_id, nonce),
            "addresses": ["192.0.2.1:1"],
            "name": "stranger",
            "instance": secrets.randbits(64),
        }
        await self.say(hello=wire.Hello(**(fields | texts)))  # type: ignore[arg-type]

    async def say(self, **kind: object) -> None:
        """Send a message; gRPC takes the next one when this one is on its way."""
        async with self._turn:
            await self.call.write(wire.NodeMessage(**kind))  # type: ignore[arg-type]

    async def hear(self, *kinds: str) -> wire.CoordinatorMessage:
        """The next message of one of these kinds."""
        while (message := await self.call.read()) is not grpc.aio.EOF:
            if message.WhichOneof("kind") in kinds:
                return message
        raise SessionEndedError

    async def join_ready(self, **texts: object) -> wire.Welcome:
        """Become a ready member, as anybody may: the recorded digest is public."""
        await self.hello(**texts)
        welcome = (await self.hear("welcome")).welcome
        while True:
            request = wire.GetCommitsRequest(after_round=welcome.head_round - 3)
            commits = await self.stub.GetCommits(request)
            if reported := [row for row in commits.commits if row.digest_reports]:
                break
            await asyncio.sleep(PAUSE_S)
        await self.ready(commits.head_round, reported[-1].state_digest)
        return welcome

    async def ready(self, round: int, state_digest: int, resyncs: int = 0) -> None:
        """Say what the state is."""
        said = wire.Ready(round=round, state_digest=state_digest, resyncs=resyncs)
        await self.say(ready=said)

    async def announce(self, round: int, digest: bytes, **fields: object) -> None:
        """Say that a payload is there."""
        usual = {"payload_bytes": 400, "samples": 1, "compute_ms": 10, "loss": 2.0}
        about = usual | fields
        await self.say(announced=wire.Announced(round=round, digest=digest, **about))  # type: ignore[arg-type]

    async def opened(self) -> AsyncIterator[wire.RoundOpened]:
        """The rounds in which the coordinator asks for work, until it ends the session."""
        while True:
            yield (await self.hear("opened")).opened

    async def close(self) -> None:
        """Leave without a word."""
        await self.channel.close()


@contextlib.asynccontextmanager
async def going_on(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Work that goes on to the end of the block, or until it is turned away."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, *FAILURES):
            await task


@contextlib.asynccontextmanager
async def beating(stranger: Stranger) -> AsyncIterator[None]:
    """Heartbeats to the end of the block."""

    async def beat() -> None:
        while True:
            await stranger.say(heartbeat=wire.Heartbeat(sent_ms=1))
            await asyncio.sleep(BEAT_S)

    async with going_on(beat()):
        yield


async def forever(work: Callable[[], Awaitable[object]], target: Target) -> None:
    """Repeat a piece of work, also after it was turned away."""
    while True:
        try:
            await work()
            await asyncio.sleep(0)
        except FAILURES:
            target.did["turned away"] += 1
            await asyncio.sleep(PAUSE_S)
