"""Members that wish the run ill: each has a key, a session and one way to do harm. They know the
protocol, have no links and hold nothing.

    ghosts       say hello and beat, and are never ready
    stallers     are ready, are asked to work, and never announce
    withholders  announce payloads that nobody can get
    receipts     announce such payloads, and say that they hold those of the others
    liars        report wrong digests, of genesis too
    leavers      announce, and start over with a new session in each round

All of a kind are one ring: they know what the others of it announce.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol import wire_pb2 as wire
from protocol.codec.commits import SignedCommit, open_commit
from protocol.handshake import public_bytes, sign_hello
from protocol.ids import Digest, RunId, peer_id
from protocol.limits import PROTOCOL_VERSION
from tests.simulation.network import Network
from tests.simulation.session import Stub, Switchboard
from tests.simulation.world import Process, World

KINDS = ("ghosts", "stallers", "withholders", "receipts", "liars", "leavers")

WRONG_DIGEST = 0xBAD
PAUSE_S = 0.5
"""Pause before a session that ended is opened again."""

BEAT_S = 0.5

CONFIRM_S = 0.1
"""Time after which the others of a ring have announced."""

Outbox = asyncio.Queue[wire.NodeMessage]


class Ring:
    """The digests that hostile members have announced, by round. `recorded()` is the newest round
    with a digest on record, and the digest; None before the first.
    """

    def __init__(self, recorded: Callable[[], tuple[int, int] | None]) -> None:
        self.digests: dict[int, list[Digest]] = {}
        self.recorded = recorded

    def announce(self, round: int, digest: Digest) -> None:
        """One of them announces a payload that does not exist."""
        self.digests.setdefault(round, []).append(digest)


class HostileMember:
    """One key, and a process that keeps a session open."""

    def __init__(
        self, world: World, network: Network, switchboard: Switchboard, kind: str, ring: Ring
    ) -> None:
        assert kind in KINDS
        self.world, self.network, self.switchboard = world, network, switchboard
        self.kind, self.ring = kind, ring
        self._key = Ed25519PrivateKey.from_private_bytes(world.random.randbytes(32))
        self.peer = peer_id(public_bytes(self._key))
        self.sessions = 0
        self._later: list[asyncio.Task[None]] = []
        self.rounds = 0
        """Rounds that it was asked to work in."""

    def start(self) -> None:
        """Begin, for good."""
        process = Process(self.peer, self.world.random.randrange(10**12))
        self.network.processes[self.peer] = process
        self.world.start(process, self._main())

    async def _main(self) -> None:
        stub = Stub(self.switchboard, self.peer)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._session(stub)
            await asyncio.sleep(PAUSE_S)

    async def _session(self, stub: Stub) -> None:
        run = await stub.GetRun(wire.GetRunRequest(), 5)
        outbox: Outbox = asyncio.Queue()
        call = stub.Session(_drain(outbox))
        beating = asyncio.create_task(_beat(outbox))
        self.sessions += 1
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("kind"):
                    case "challenge":
                        outbox.put_nowait(self._hello(RunId(run.run_id), message.challenge.nonce))
                    case "welcome" if self.kind != "ghosts":
                        await self._ready(outbox.put_nowait)
                    case "resync":
                        ready = wire.Ready(round=-1, resyncs=message.resync.number)
                        outbox.put_nowait(wire.NodeMessage(ready=ready))
                    case "opened":
                        self.rounds += 1
                        self._work(message.opened, outbox.put_nowait)
                        if self.kind == "leavers":
                            return
                    case "committed" if self.kind == "liars":
                        signed = message.committed.commit
                        commit = open_commit(
                            SignedCommit(signed.body, signed.signature), run.coordinator_key
                        )
                        lie = wire.Applied(round=commit.round, state_digest=WRONG_DIGEST)
                        outbox.put_nowait(wire.NodeMessage(applied=lie))
        finally:
            beating.cancel()
            call.cancel()

    def _hello(self, run_id: RunId, nonce: bytes) -> wire.NodeMessage:
        hello = wire.Hello(
            protocol_version=PROTOCOL_VERSION,
            run_id=run_id,
            public_key=public_bytes(self._key),
            signature=sign_hello(self._key, run_id, nonce),
            addresses=[f"nowhere:{self.peer}"],
        )
        return wire.NodeMessage(hello=hello)

    async def _ready(self, say: Callable[[wire.NodeMessage], None]) -> None:
        """Ready costs nothing: the recorded digests are public. A liar does not wait for one."""
        round, digest = -1, WRONG_DIGEST
        if self.kind != "liars":
            while (recorded := self.ring.recorded()) is None:  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(CONFIRM_S)
            round, digest = recorded
        ready = wire.Ready(round=round, state_digest=digest)
        say(wire.NodeMessage(ready=ready))

    def _work(self, opened: wire.RoundOpened, say: Callable[[wire.NodeMessage], None]) -> None:
        if self.kind in ("ghosts", "stallers"):
            return
        digest = Digest(self.world.random.randbytes(32))
        announced = wire.Announced(
            round=opened.round,
            digest=b"" if opened.muted else digest,
            payload_bytes=400,
            samples=sum(share.count for share in opened.shares),
            compute_ms=1,
            loss=1e300,
        )
        if not opened.muted:
            self.ring.announce(opened.round, digest)
        say(wire.NodeMessage(announced=announced))
        if self.kind == "receipts":
            self._later.append(asyncio.create_task(self._confirm(opened.round, say)))

    async def _confirm(self, round: int, say: Callable[[wire.NodeMessage], None]) -> None:
        """Say that it holds what the others have announced, once they have."""
        await asyncio.sleep(CONFIRM_S)
        digests = self.ring.digests.get(round, [])
        say(wire.NodeMessage(holding=wire.Holding(round=round, digests=digests)))


async def _drain(outbox: Outbox) -> AsyncIterator[wire.NodeMessage]:
    while True:
        yield await outbox.get()


async def _beat(outbox: Outbox) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        outbox.put_nowait(wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=1)))
