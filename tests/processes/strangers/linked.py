"""A stranger with links to the honest nodes."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from node.links.mesh import Mesh
from node.links.network import PeerAddress, ReadOnlyPeer
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.system.clock import own_clock_ms
from node.transports.grpc_transport import GrpcTransport
from protocol import wire_pb2 as wire
from protocol.codec.announcement import announce, offered_payload
from protocol.ids import Digest, PeerId, sha256
from tests.processes.strangers.client import FAILURES, Stranger, Target


class Attacker(ReadOnlyPeer):
    """A member with links to the honest nodes. It serves what it was told to, and nothing else;
    other payloads that it is asked for it neither gives nor refuses.
    """

    def __init__(self, stranger: Stranger) -> None:
        self.stranger, self.blobs = stranger, dict[bytes, bytes]()
        self.heard: asyncio.Queue[wire.Offers] = asyncio.Queue()
        transport = GrpcTransport("127.0.0.1:0")
        identity = Identity(stranger.key, stranger.run_id, secrets.randbits(64))
        self.mesh = Mesh(identity, [transport], Uplink(None, own_clock_ms), own_clock_ms)
        self.honest = list[PeerAddress]()

    def on_offer(self, offers: wire.Offers) -> None:
        self.heard.put_nowait(offers)

    async def read(self, digest: bytes, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        if (blob := self.blobs.get(digest)) is not None:
            return len(blob), blob[offset : offset + count]
        await asyncio.sleep(3600)
        return None

    async def offer(self, *offers: wire.OfferedPayload) -> None:
        """Offer payloads to every honest node."""
        message = wire.Offers(run_id=self.stranger.run_id, sender=self.stranger.peer, offers=offers)

        async def one(peer: PeerAddress) -> None:
            with contextlib.suppress(*FAILURES):
                await self.mesh.offer(peer, message)

        await asyncio.gather(*map(one, self.honest))

    def signed(self, round: int, digest: Digest, size: int) -> wire.OfferedPayload:
        """An offer of a payload of its own."""
        key, run_id = self.stranger.key, self.stranger.run_id
        return offered_payload(announce(key, run_id, round, digest, size=size, samples=1))

    async def publish(self, round: int, payload: bytes, **about: object) -> None:
        """Announce, serve and offer a payload."""
        digest = sha256(payload)
        self.blobs[digest] = payload
        await self.stranger.announce(round, digest, **({"payload_bytes": len(payload)} | about))
        await self.offer(self.signed(round, digest, len(payload)))


@contextlib.asynccontextmanager
async def linked(target: Target, *, ready: bool) -> AsyncIterator[Attacker]:
    """A member that is linked to all honest nodes."""
    stranger = target.stranger()
    attacker = Attacker(stranger)
    addresses = await attacker.mesh.start(attacker)
    try:
        if ready:
            await stranger.join_ready(addresses=list(addresses))
        else:
            await stranger.hello(addresses=list(addresses))
            await stranger.hear("welcome")
        attacker.honest = await honest_nodes(stranger)
        attacker.mesh.keep(attacker.honest)
        yield attacker
    finally:
        with contextlib.suppress(*FAILURES):
            await stranger.say(leave=wire.Leave())
        await attacker.mesh.stop()
        await stranger.close()


async def honest_nodes(stranger: Stranger) -> list[PeerAddress]:
    """The members that train, as anybody is told of them."""
    told = await stranger.stub.GetMembers(wire.GetMembersRequest())
    return [
        PeerAddress(PeerId(member.peer_id), tuple(member.addresses))
        for member in told.members
        if member.peer_id != stranger.peer
        and not member.relay
        and member.addresses
        and "127.0.0.1" in member.addresses[0]
    ]
