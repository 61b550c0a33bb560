"""The ways to carry bytes that `tests.benchmarks.links` compares, behind one small interface.

    grpc, libp2p             raw pipes, one kept open per dialled peer: a length, that many bytes;
                             one byte back
    grpc mesh, libp2p mesh   the same transports below a `Mesh`: framed, digests checked,
                             acknowledged, pulled
    hivemind                 the baseline: its own protobuf streams, one per transfer, one message
                             back

All cut the bytes into pieces of the size that was fastest for them, the mesh as it does for nodes.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from border.visitors import Direct
from node.links.network import BlobRange, PeerAddress, Purpose
from node.system.malloc import keep_freed_memory
from node.system.rate_limit import rate_bucket
from node.transports.base import Pipe, Transport
from protocol.errors import UnavailableError
from protocol.ids import PeerId

PIECE_BYTES = {"grpc": 512 * 1024, "libp2p": 256 * 1024, "hivemind": 256 * 1024}
TRIES = 5
"""Attempts to carry a blob when a link fails, as nodes do; hivemind's streams end early without an
error."""

DIALS_MAX = 3
REDIAL_S = 6
"""Pause before another dial: libp2p dials an address again only after 5 s."""

_LENGTH_BYTES = 8


class Carrier(Protocol):
    """One node's end of every link."""

    async def start(self) -> str:
        """Listen; returns the address."""

    async def connect(self, address: str) -> None:
        """Open the link to one more peer."""

    async def call(self, address: str) -> None:
        """A small question and its answer."""

    async def carry(self, address: str, size: int) -> None:
        """Move `size` bytes between the two; returns when all are known to have arrived."""

    async def stop(self) -> None:
        """Stop."""


def make(kind: str, sizes: tuple[int, ...]) -> Carrier:
    """A carrier of one kind that will carry blobs of these sizes."""
    if kind == "hivemind":
        return HivemindCarrier()
    transport, _, layer = kind.partition(" ")
    return (
        MeshCarrier(_TRANSPORTS[transport], sizes)
        if layer == "mesh"
        else PipeCarrier(_TRANSPORTS[transport])
    )


WITHOUT_GATE = "ungated mesh"
"""gRPC that listens by itself: what `tests.benchmarks.border` holds beside `grpc mesh`."""

KINDS = ("grpc", "libp2p", "grpc mesh", "libp2p mesh", "hivemind")


def through(address: str, port: int) -> str:
    """The same peer at another port of this machine: through a relay."""
    return re.sub(r"(?<=/tcp/)\d+|(?<=127\.0\.0\.1:)\d+", str(port), address)


def port_of(address: str) -> int:
    """The port that a loopback address names."""
    match = re.search(r"(?:/tcp/|127\.0\.0\.1:)(\d+)", address)
    assert match, f"no port in {address}"
    return int(match[1])


# ---- raw pipes


def _grpc(key: Ed25519PrivateKey) -> Transport:
    from node.transports.grpc_transport import GrpcTransport

    return GrpcTransport("127.0.0.1:0")


class _NoGate(Direct):
    """A gate that is none."""

    def __init__(self, listen: str, credentials: Any) -> None:
        self._listen = listen

    def attach(self, server: Any, places: int) -> int:
        return int(server.add_insecure_port(self._listen))

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _ungated(key: Ed25519PrivateKey) -> Transport:
    from node.transports import grpc_transport

    grpc_transport.Gate = _NoGate  # type: ignore[assignment, misc] # in a process of its own
    return grpc_transport.GrpcTransport("127.0.0.1:0")


def _libp2p(key: Ed25519PrivateKey) -> Transport:
    from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport

    return Libp2pTransport(key, Libp2pSettings(listen="127.0.0.1:0", public=True, upnp=False))


_TRANSPORTS: dict[str, Callable[[Ed25519PrivateKey], Transport]] = {
    "grpc": _grpc,
    "ungated": _ungated,
    "libp2p": _libp2p,
}


class PipeCarrier:
    """Raw pipes."""

    def __init__(self, transport: Callable[[Ed25519PrivateKey], Transport]) -> None:
        self._transport = transport(Ed25519PrivateKey.generate())
        self._pipes: dict[str, Pipe] = {}

    async def start(self) -> str:
        return (await self._transport.start(_acknowledge))[0]

    async def connect(self, address: str) -> None:
        for attempt in range(DIALS_MAX):
            try:
                self._pipes[address] = await self._transport.dial(address)
                return
            except UnavailableError:
                if attempt == DIALS_MAX - 1:
                    raise
                await asyncio.sleep(REDIAL_S)

    async def call(self, address: str) -> None:
        await self.carry(address, 1)

    async def carry(self, address: str, size: int) -> None:
        pipe = self._pipes[address]
        first, *rest = _pieces(size, self._transport.kind)
        for piece in (size.to_bytes(_LENGTH_BYTES, "big") + first, *rest):
            await pipe.write(piece)
        if not await pipe.read():
            raise UnavailableError(f"{address} closed the pipe")

    async def stop(self) -> None:
        await self._transport.stop()


async def _acknowledge(pipe: Pipe) -> None:
    pipe.admit()
    """Take blobs, one after the other, and answer each when its last byte has arrived."""
    with contextlib.suppress(UnavailableError):
        awaited, head = 0, b""
        while data := await pipe.read():
            rest = memoryview(data)
            while rest:
                if not awaited:
                    take = _LENGTH_BYTES - len(head)
                    head, rest = head + bytes(rest[:take]), rest[take:]
                    if len(head) < _LENGTH_BYTES:
                        break
                    awaited, head = int.from_bytes(head, "big"), b""
                took = min(awaited, len(rest))
                awaited, rest = awaited - took, rest[took:]
                if took and not awaited:
                    await pipe.write(b"k")


def _pieces(size: int, kind: str) -> list[bytes]:
    whole, rest = divmod(size, PIECE_BYTES[kind])
    piece = bytes(PIECE_BYTES[kind])
    return [piece] * whole + ([piece[:rest]] if rest else [])


# ---- the mesh


class MeshCarrier:
    """The mesh of nodes. An address is PEER@ADDRESS; bytes are fetched from there."""

    def __init__(
        self, transport: Callable[[Ed25519PrivateKey], Transport], sizes: tuple[int, ...]
    ) -> None:
        from tests.node.links.net import Member

        keep_freed_memory()  # as nodes do
        key = Ed25519PrivateKey.generate()
        self._member = Member(key, [transport(key)], None, 1)
        # An acceptor keeps no peer here, and what strangers may read is bounded.
        self._member.mesh._strangers_quota = rate_bucket(1 << 40, 0)
        self._digests = {size: self._member.hold(bytes(size)) for size in sizes}
        self._remotes: dict[str, Any] = {}

    async def start(self) -> str:
        addresses = await self._member.mesh.start(self._member)
        return f"{self._member.peer}@{addresses[0]}"

    async def connect(self, address: str) -> None:
        peer, _, at = address.partition("@")
        self._remotes[address] = PeerAddress(PeerId(peer), (at,))
        self._member.mesh.keep(list(self._remotes.values()))
        async with asyncio.timeout(60):
            while PeerId(peer) not in self._member.linked:  # noqa: ASYNC110 (the member is a test's)
                await asyncio.sleep(0.01)

    async def call(self, address: str) -> None:
        await self._member.mesh.offer(self._remotes[address], self._member.message())

    async def carry(self, address: str, size: int) -> None:
        for attempt in range(TRIES):
            try:
                await self._fetch(address, size)
                return
            except UnavailableError:  # both ends dialled, and one of the two links gave way
                if attempt == TRIES - 1:
                    raise

    async def _fetch(self, address: str, size: int) -> None:
        blob = BlobRange(self._digests[size])
        async with contextlib.aclosing(
            self._member.mesh.fetch(self._remotes[address], blob, Purpose.PAYLOAD)
        ) as parts:
            arrived = sum([len(part.data) async for part in parts])
        assert arrived == size, f"expected {size} bytes, got {arrived}"

    async def stop(self) -> None:
        await self._member.mesh.stop()


# ---- hivemind


class HivemindCarrier:
    """hivemind's own protobuf streams over its own daemon."""

    def __init__(self) -> None:
        from hivemind.p2p import P2P, PeerID
        from hivemind.proto.runtime_pb2 import Tensor
        from hivemind.utils.multiaddr import Multiaddr

        self._p2p_class, self._peer_id, self._message, self._multiaddr = (
            P2P,
            PeerID,
            Tensor,
            Multiaddr,
        )
        self._p2p: Any = None
        self._peers: dict[str, Any] = {}

    async def start(self) -> str:
        self._p2p = await self._p2p_class.create(
            auto_nat=False, nat_port_map=False, startup_timeout=120
        )
        await self._p2p.add_protobuf_handler("call", self._answer, self._message)
        await self._p2p.add_protobuf_handler(
            "carry", self._take, self._message, stream_input=True, stream_output=True
        )
        return str((await self._p2p.get_visible_maddrs())[0])

    async def connect(self, address: str) -> None:
        at, _, peer = address.rpartition("/p2p/")
        self._peers[address] = self._peer_id.from_base58(peer)
        await self._p2p._client.connect(self._peers[address], [self._multiaddr(at)])

    async def call(self, address: str) -> None:
        await self._p2p.call_protobuf_handler(
            self._peers[address], "call", self._message(), self._message
        )

    async def carry(self, address: str, size: int) -> None:

        for _ in range(TRIES):
            answers = await self._p2p.iterate_protobuf_handler(
                self._peers[address], "carry", self._requests(size), self._message
            )
            if [answer.size[0] async for answer in answers] == [size]:
                return
        raise UnavailableError(
            f"hivemind lost {TRIES} times what should have gone to {address}, or the answer"
        )

    async def _requests(self, size: int) -> AsyncIterator[Any]:
        for piece in _pieces(size, "hivemind"):
            yield self._message(buffer=piece)

    async def stop(self) -> None:
        if self._p2p:
            await self._p2p.shutdown()

    async def _answer(self, request: Any, context: Any) -> Any:
        return self._message()

    async def _take(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        arrived = 0
        async for request in requests:
            arrived += len(request.buffer)
        yield self._message(size=[arrived])
