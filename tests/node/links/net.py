"""Nodes that have nothing but links: a mesh over a transport, and blobs to serve."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.mesh import Mesh
from node.links.network import BlobRange, PeerAddress, Purpose
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.transports.base import Accept, Pipe, Transport
from node.transports.grpc_transport import GrpcTransport
from protocol.codec.heads import Heads
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, peer_id, sha256
from protocol.wire_pb2 import OfferedPayload, Offers
from tests.support.waiting import PATIENCE_SECONDS, until

RUN = RunId("ab" * 16)


def clock_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Member:
    """A mesh and what it serves. Members are ordered by their peer ids: number 0 has the lowest."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        transports: Sequence[Transport],
        limit: int | None,
        instance: int,
        *,
        clock: Callable[[], int] = clock_ms,
        peer_limit: int | None = None,
        download_limit: int = 0,
    ) -> None:
        self.key = key
        self.peer = peer_id(public_bytes(key))
        self.mesh = Mesh(
            Identity(key, RUN, instance), transports, Uplink(limit, clock), clock, peer_limit
        )
        self.mesh.downlink.limit(download_limit)
        self.blobs: dict[Digest, bytes] = {}
        self.offers: list[Offers] = []
        self.served: list[tuple[PeerId, Digest]] = []
        self.linked: frozenset[PeerId] = frozenset()
        self.refuses = ""
        self.remote = PeerAddress(self.peer, ())

    def hold(self, blob: bytes) -> Digest:
        self.blobs[sha256(blob)] = blob
        return sha256(blob)

    def message(self, *digests: Digest) -> Offers:
        offers = [OfferedPayload(round=1, digest=digest, payload_bytes=1) for digest in digests]
        return Offers(run_id=RUN, sender=self.peer, offers=offers)

    async def fetched(
        self, source: PeerAddress, digest: Digest, offset: int = 0, count: int = 0
    ) -> bytes:
        blob = b""
        async with aclosing(
            self.mesh.fetch(source, BlobRange(digest, offset, count), Purpose.PAYLOAD)
        ) as parts:
            async for part in parts:
                assert part.offset == offset + len(blob)
                blob += part.data
        return blob

    async def fetched_at_last(self, source: PeerAddress, digest: Digest) -> bytes:
        """The blob, asked for again where a link gives way to another, as a round does."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(UnavailableError):
                    return await self.fetched(source, digest)
                await asyncio.sleep(0.01)

    def trouble(self, other: PeerId) -> str:
        """Why there is no link to a peer that is kept; empty when there is one."""
        return self.mesh.document()["missing"].get(other, "")

    # ---- a LinkServer

    def on_offer(self, offers: Offers) -> None:
        if self.refuses:
            raise RemoteProtocolError(self.refuses)
        self.offers.append(offers)

    async def read(
        self, digest: Digest, offset: int, count: int = 1 << 19
    ) -> tuple[int, bytes] | None:
        blob = self.blobs.get(digest)
        if blob is None:
            return None
        if offset >= len(blob):
            raise RemoteProtocolError(f"expected an offset below {len(blob)}, got {offset}")
        return len(blob), blob[offset : offset + count]

    def purpose(self, digest: Digest) -> Purpose:
        return Purpose.PAYLOAD

    def urgency(self, peer: PeerId, digest: Digest) -> tuple[int, ...]:
        return ()

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        self.linked = peers

    def on_part(self, peer: PeerId, digest: Digest, count: int, size: int) -> None:
        return

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        self.served.append((peer, digest))


class Faulty:
    """A transport whose dials can be held up, and whose pipes can be stalled one way, cut, or made
    to damage bytes.
    """

    kind = "grpc"
    cuts: Mapping[str, int] = {}

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.pipes: list[FaultyPipe] = []
        self.dials_made = 0
        self.dialling = asyncio.Event()
        self.dialling.set()
        self.relayed = False
        self.proven: bytes | None = None
        """The key that the transport claims to have proven at the other ends."""

    async def start(self, accept: Accept) -> tuple[str, ...]:
        async def wrapped(pipe: Pipe) -> None:
            await accept(self._wrap(pipe))

        return await self._inner.start(wrapped)

    async def stop(self) -> None:
        for pipe in self.pipes:
            pipe.flowing.set()
        await self._inner.stop()

    def dials(self, address: str) -> bool:
        return self._inner.dials(address)

    async def dial(self, address: str) -> Pipe:
        self.dials_made += 1
        await self.dialling.wait()
        return self._wrap(await self._inner.dial(address))

    def _wrap(self, pipe: Pipe) -> Pipe:
        faulty = FaultyPipe(pipe, self.relayed, self.proven)
        self.pipes.append(faulty)
        return faulty


class FaultyPipe:
    def __init__(self, inner: Pipe, relayed: bool, proven: bytes | None) -> None:
        self._inner = inner
        self.relayed = relayed
        self.proven = proven
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.damage = False
        self.delay_s = 0.0

    @property
    def remote(self) -> str:
        return self._inner.remote

    def proves(self, public_key: bytes) -> bool | None:
        return None if self.proven is None else self.proven == public_key

    def admit(self) -> None:
        self._inner.admit()

    async def read(self) -> bytes:
        return await self._inner.read()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await self.flowing.wait()
        await asyncio.sleep(self.delay_s)
        if self.damage:
            data = bytearray(data)
            data[len(data) // 2] ^= 1
        await self._inner.write(data)

    async def close(self) -> None:
        self.flowing.set()
        await self._inner.close()


def key_of(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number + 1] * 32))


def peer_of(number: int) -> PeerId:
    return peer_id(public_bytes(key_of(number)))


def grpc() -> Transport:
    return GrpcTransport("127.0.0.1:0")


@asynccontextmanager
async def meshes(
    count: int,
    transports: Callable[[], Transport] = grpc,
    limit: int | None = None,
    linked: bool = True,
) -> AsyncIterator[list[Member]]:
    """So many members, started; each keeps links to all others if `linked`."""
    keys = sorted(
        (key_of(number) for number in range(count)), key=lambda key: peer_id(public_bytes(key))
    )
    members = [Member(key, [transports()], limit, number) for number, key in enumerate(keys)]
    async with AsyncExitStack() as stack:
        for member in members:
            addresses = await member.mesh.start(member)
            stack.push_async_callback(member.mesh.stop)
            member.remote = PeerAddress(member.peer, addresses)
        if linked:
            for member in members:
                member.mesh.keep([other.remote for other in members])
        yield members


@asynccontextmanager
async def neighbour(heads: Heads, to: PeerAddress) -> AsyncIterator[None]:
    """A peer that knows these heads of a run, linked to another node of it."""
    peer = Member(key_of(7), [grpc()], None, 7)
    peer.mesh._identity = Identity(peer.key, heads.run_id, 7, heads)
    await peer.mesh.start(peer)
    peer.mesh.keep([to])
    try:
        await until(lambda: peer.linked)
        yield
    finally:
        await peer.mesh.stop()
