"""The links of one node: at most one per peer, over any transport, dialled by either end.

    keep(peers) --> for each, a task that dials while there is no link (`node.links.kept_peers`)
    a peer dials -> accept -> carry the link

A link counts from the proof of the peer's key on; an end that proves another key than the dialled
one is hung up on. `node.links.link_table` decides which links stay. Peers that this node does not
keep are served after all others, and slowly.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from node.links.frames import Part
from node.links.kept_peers import KeptPeers
from node.links.link import Link, PeerLink
from node.links.link_table import Departure, LinkTable
from node.links.network import BlobRange, LinkServer, PeerAddress, Purpose
from node.links.protocol import Identity, LinkProtocol
from node.links.uplink import Uplink
from node.system.downlink import Downlink
from node.system.rate_limit import rate_bucket
from node.traffic import Traffic
from node.transports.base import Accept, Pipe, Transport
from protocol.errors import LocalProtocolError, LockstepError, RemoteProtocolError, UnavailableError
from protocol.handshake import NONCE_BYTES
from protocol.ids import Digest, PeerId, short
from protocol.limits import ADDRESSES_MAX
from protocol.wire_pb2 import Head, Offers

STRANGERS_BYTES_PER_SECOND = 4_000_000
"""Bytes of payloads and snapshots for all strangers together: auditors read, and so may others."""

SERVED_S = 0.1
"""Pause between two looks whether a mesh that drains is done."""

GOODBYE_S = 1.0
"""Longest time for goodbyes when this node stops."""

_log = logging.getLogger(__name__)


class Mesh:
    """A `node.links.network.PeerNetwork` over any transports. `clock_ms()` is a monotonic clock;
    `peer_limit` bounds the bytes per second that one peer may take, `downlink` those that this node
    takes of all; None: no limit.
    """

    server: LinkServer

    def __init__(
        self,
        identity: Identity,
        transports: Sequence[Transport],
        uplink: Uplink,
        clock_ms: Callable[[], int],
        peer_limit: int | None = None,
        *,
        downlink: Downlink | None = None,
    ) -> None:
        if not transports:
            raise LocalProtocolError("expected at least one transport, got none")
        self.uplink = uplink
        self.downlink = downlink or Downlink(0, clock_ms)
        self.clock_ms = clock_ms
        self.peer_limit = peer_limit
        self.troubles: dict[str, str] = {}
        """Transports that did not start, each with the reason."""
        self._identity = identity
        self._transports = list(transports)
        self._table: LinkTable[Link] = LinkTable(identity.peer)
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept = KeptPeers(identity.peer, self._transports, self._table, self)
        self._past = Traffic()
        self._strangers_quota = rate_bucket(STRANGERS_BYTES_PER_SECOND, clock_ms())
        self._stopped = False

    # ---- for the swarm

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        """Listen on every transport; returns the addresses to announce, in the transports' order.

        The node goes on without a transport that cannot start, unless it is the only one. Raises
        the errors of `Transport.start`.
        """
        self.server = server
        self.uplink.urgency = server.urgency
        addresses = list[str]()
        for transport in list(self._transports):
            try:
                addresses += await transport.start(self._acceptor(transport))
            except UnavailableError as error:
                if len(self._transports) == 1:
                    raise
                _log.warning(
                    "transport did not start",
                    extra={"transport": transport.kind, "reason": str(error)},
                )
                self.troubles[transport.kind] = str(error)
                self._transports.remove(transport)
        return tuple(addresses[:ADDRESSES_MAX])

    async def stop(self) -> None:
        """Say goodbye on every link and stop listening."""
        self._stopped = True
        for link in self._table.open:
            link.leave("this node stops")
        self.keep(())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in self._transports:
            await transport.stop()

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        """Keep links to these peers from now on, the most important first; links to others stay
        until they end.
        """
        self._kept.keep(remotes)

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        """Hand over offers; returns when the peer accepted them."""
        link = await self._link_to(to)
        await link.offer(offers)

    async def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them, unchecked."""
        link = await self._link_to(source)
        async with aclosing(link.fetch(blob, purpose)) as parts:
            async for part in parts:
                yield part

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        """Ask a source for no more of a blob than it has begun to send, or can begin soon."""
        if link := self._table.link_with(source):
            link.withdraw(digest, unless_soon)

    async def served(self) -> None:
        """Wait until no peer is being served any more."""
        while any(link.serving for link in self._table.open):  # noqa: ASYNC110 - no event
            await asyncio.sleep(SERVED_S)

    @property
    def idle(self) -> bool:
        """Whether no peer wants any blob of this node."""
        return self.uplink.idle

    @property
    def traffic(self) -> Traffic:
        """Bytes carried so far; a copy."""
        return sum((link.traffic for link in self._table.open), replace(self._past))

    @property
    def links(self) -> list[PeerLink]:
        """The proven links, by peer."""
        return [link.describe() for link in self._table.proven_links]

    @property
    def carried(self) -> frozenset[Link]:
        """All open links, also unproven and replaced ones."""
        return frozenset(self._table.open)

    def document(self) -> dict[str, Any]:
        """For a status page: the open links, and the reasons why others are missing."""
        return {
            "open": [asdict(link) for link in self.links],
            "missing": self._kept.troubles(),
            "transports": dict(self.troubles),
            "cut": dict(sum((Counter(each.cuts) for each in self._transports), Counter[str]())),
        }

    # ---- for the links

    def on_proven(self, link: Link, public_key: bytes) -> None:
        """Admit a link, in place of another one, or not at all."""
        if link.pipe.proves(public_key) is False:
            raise RemoteProtocolError(
                f"expected the key that the transport proved at {link.pipe.remote}, "
                f"got that of {short(link.peer)}"
            )
        self._part_with(self._table.proven(link, link.peer, link.candidate))
        if self._table.link_with(link.peer) is not link:
            return
        link.pipe.admit()
        link.limit(None if link.peer in self._table.kept else self._strangers_quota)
        self._kept.on_linked(link.peer)
        self.server.on_linked(self._table.peers)

    def on_head(self, head: Head) -> None:
        """Weigh a head that a peer shows."""
        if self._identity.heads:
            self._identity.heads.show(head)

    def on_ended(self, link: Link, error: LockstepError) -> None:
        """Forget a link; the task that keeps its peer dials again."""
        peer, dialled = link.protocol.peer, self._table.dialled(link)
        self._kept.note_trouble(dialled or peer or PeerId(""), f"{link.pipe.remote}: {error}")
        if peer and self._table.unlinked(link, peer):
            self._kept.on_unlinked(peer)
            self.server.on_linked(self._table.peers)

    # ---- for the tasks that dial

    def carry(
        self, pipe: Pipe, kind: str, expected: PeerId | None
    ) -> tuple[Link, asyncio.Task[None]]:
        """Make a link of a transport's pipe; `kind` is the transport's, `expected` the peer that
        was dialled. The task ends with the link.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        protocol = LinkProtocol(self._identity, nonce, expected is not None, self.clock_ms())
        link = Link(pipe, kind, protocol, self)
        self._part_with(self._table.opened(link, pipe.remote, expected))
        return link, self.spawn(self._carry(link))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task until it ends, or this mesh stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- carrying

    def _acceptor(self, transport: Transport) -> Accept:
        async def accept(pipe: Pipe) -> None:
            if self._stopped:
                return
            _, carrying = self.carry(pipe, transport.kind, None)
            await asyncio.wait({carrying})

        return accept

    def _part_with(self, departures: Sequence[Departure[Link]]) -> None:
        for departure in departures:
            link = departure.link
            if departure.finishes:
                link.retire(departure.reason)
                continue
            link.leave(departure.reason)
            if link.protocol.peer is None:  # it may read nothing, not even a goodbye
                self.spawn(link.pipe.close())

    async def _carry(self, link: Link) -> None:
        try:
            await link.run()
        except LockstepError as error:
            level = logging.WARNING if isinstance(error, RemoteProtocolError) else logging.DEBUG
            _log.log(level, "link ended", extra={**_names(link), "reason": str(error)})
        except Exception:
            _log.exception("link died of a bug", extra=_names(link))
        finally:
            self._table.closed(link)
            self._past += link.traffic

    async def _link_to(self, remote: PeerAddress) -> Link:
        if self._stopped:
            raise UnavailableError("this node's links are stopped")
        return await self._kept.link_to(remote)


def _names(link: Link) -> dict[str, str | None]:
    return {"peer": link.protocol.peer, "remote": link.pipe.remote}
