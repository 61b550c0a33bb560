"""Links between peers: a `node.links.network.PeerNetwork` over the simulated network."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from node.links.frames import Part
from node.links.network import (
    BlobRange,
    LinkServer,
    NotHeldError,
    PeerAddress,
    Purpose,
    WithdrawnError,
)
from node.traffic import Traffic
from protocol.errors import RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, short
from protocol.wire_pb2 import Offers
from tests.simulation.disk import spoiled
from tests.simulation.network import Network

OFFER_S = 2.0
PROGRESS_S = 3.0
REFUSED_MS = 30
"""Time after which a caller learns that no peer listens."""

QUIET_S = 0.3
"""A node is idle once no peer has read from it for this time."""

LOOK_S = 0.4
"""Pause between two looks at the open links."""


class SimulatedLink:
    """One node's links to its peers; blobs travel in parts of `part_bytes`. `offered` judges the
    offers that the node makes.
    """

    def __init__(
        self, network: Network, own: PeerId, part_bytes: int, offered: Callable[[Offers], None]
    ) -> None:
        self._network, self._own, self._part_bytes, self._offered = (
            network,
            own,
            part_bytes,
            offered,
        )
        self._ends: dict[str, LinkServer] = network.ends
        self._kept: list[PeerId] = []
        self._withdrawn: set[tuple[PeerId, Digest]] = set()
        self._looking: asyncio.Task[None] | None = None

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        self._ends[self._own] = server
        self._looking = asyncio.create_task(self._look(server))
        return (f"{short(self._own)}:1",)

    async def stop(self) -> None:
        if self._looking:
            self._looking.cancel()
        self._ends.pop(self._own, None)

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        self._kept = [remote.peer_id for remote in remotes]

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        self._withdrawn.add((source, digest))

    async def _look(self, server: LinkServer) -> None:
        """Tell the server which links are open: those to peers that live and are cut off in neither
        direction.
        """
        told: frozenset[PeerId] = frozenset()
        while True:
            await asyncio.sleep(LOOK_S)
            linked = frozenset(filter(self._linked, self._kept))
            if linked != told:
                server.on_linked(linked)
                told = linked

    def _linked(self, peer: PeerId) -> bool:
        cut = self._network.cut
        return peer in self._ends and (peer, self._own) not in cut and (self._own, peer) not in cut

    @property
    def idle(self) -> bool:
        return self._network.world.time() - self._network.read_at.get(self._own, 0.0) >= QUIET_S

    @property
    def traffic(self) -> Traffic:
        return Traffic()

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        """As a real one; the network may carry offers twice, or lose the reply."""
        self._offered(offers)
        blob = offers.SerializeToString()
        if self._network.chance("corrupt", self._network.weather.corrupt / 4):
            blob = spoiled(blob, self._network.world.random)

        async def take(server: LinkServer) -> None:
            try:
                server.on_offer(Offers.FromString(blob))
            except UnicodeDecodeError as error:
                raise RemoteProtocolError(str(error)) from error
            except Exception as error:
                if type(error).__name__ == "DecodeError":
                    raise RemoteProtocolError(
                        f"expected offers, got bytes that do not decode: {error}"
                    ) from error
                raise

        await self._ask(to.peer_id, take, OFFER_S)

    async def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose = Purpose.PAYLOAD
    ) -> AsyncGenerator[Part, None]:
        key, offset, end = (source.peer_id, blob.digest), blob.offset, blob.offset + 1
        self._withdrawn.discard(key)
        while offset < end:
            count = (
                min(self._part_bytes, blob.count - (offset - blob.offset))
                if blob.count
                else self._part_bytes
            )

            async def read(
                server: LinkServer, offset: int = offset, count: int = count
            ) -> tuple[int, bytes] | None:
                self._network.read_at[source.peer_id] = self._network.world.time()
                try:
                    return await server.read(blob.digest, offset, count)
                except StorageError as error:
                    raise UnavailableError(str(error)) from error

            answer = await self._ask(source.peer_id, read, PROGRESS_S)
            if answer is None:
                raise NotHeldError(f"{short(source.peer_id)} does not hold it")
            if key in self._withdrawn:
                raise WithdrawnError("the rest was withdrawn")
            total, data = answer
            if server := self._ends.get(source.peer_id):
                server.on_part(self._own, blob.digest, len(data), total)
            if data and self._network.chance("corrupt", self._network.weather.corrupt):
                data = spoiled(data, self._network.world.random)
            yield Part(0, offset, total, data)
            offset, end = offset + len(data), blob.end(total)
        self._network.note(
            self._own, source.peer_id, lambda: self._served(source.peer_id, blob.digest)
        )

    def _served(self, source: PeerId, digest: Digest) -> None:
        if server := self._ends.get(source):
            server.on_served(self._own, digest)

    async def _ask(self, peer: str, question: Callable[[LinkServer], Any], seconds: float) -> Any:
        """Run a question at a peer, in its process; its answer or its error comes back over the
        network.
        """
        network, world = self._network, self._network.world
        reply: asyncio.Future[Any] = world.create_future()

        def settle(answer: Any, error: Exception | None) -> None:
            if not reply.done():
                if error is None:
                    reply.set_result(answer)
                else:
                    reply.set_exception(error)

        async def serve() -> None:
            server = self._ends.get(peer)
            if server is None:
                return
            answer, error = None, None
            try:
                answer = await question(server)
            except (UnavailableError, RemoteProtocolError) as failure:
                error = failure
            network.note(peer, self._own, lambda: settle(answer, error))

        if network.runs(peer) and peer in self._ends:
            network.note(self._own, peer, lambda: world.create_task(serve()))
        else:
            world.call_later(
                REFUSED_MS / 1000,
                settle,
                None,
                UnavailableError(f"nobody listens at {short(peer)}"),
            )
        try:
            async with asyncio.timeout(seconds):
                return await reply
        except TimeoutError:
            raise UnavailableError(f"{short(peer)} was silent for too long") from None
