"""The peers to which a mesh keeps links, and the task that each of them has.

    wait until unlinked -> dial its addresses -> carry the link -> again

Rules
- A peer that cannot be dialled (behind a router, or of another transport) links when it dials.
- Dialling pauses longer after each failure, and starts at once when the peer's addresses change.
- Members announce any addresses. Those that led to no link are dialled again at a rate that is
  bounded for each host, whoever announced it; over a relay, which is a party of the run, at any.
- A relayed link is dialled again at intervals: a direct one replaces it as soon as one is possible.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from node.links.link import Link
from node.links.link_table import LinkTable
from node.links.network import PeerAddress
from node.system.backoff import Backoff
from node.transports.base import DIAL_S, Pipe, Transport
from protocol.border.networks import dialled_host
from protocol.border.token_bucket import TokenBuckets
from protocol.errors import UnavailableError
from protocol.ids import PeerId, short
from protocol.limits import ADDRESSES_MAX

LINKS_MAX = 64
"""Peers to which links are kept; with more members, the most important ones."""

LINK_S = 5
"""Longest wait of an offer or a fetch for a link that is being dialled."""

BACKOFF_MS = (500, 30_000)
"""First and longest pause between two attempts to dial a peer; half more or less at random."""

MISSES_PER_HOST = (1.0, 32)
"""Dials of one host that lead to no link: per second, and at once; beyond it only addresses are
dialled that have not failed yet. A laboratory of nodes that are away is found again within a
minute, and keys that announce somebody's address have each node knock there no more often."""

HEAD_START_S = 1.0
"""Time that the higher peer id leaves to the lower one to dial, so that not both do."""

UPGRADE_S = 30.0
"""Pause between two attempts to replace a relayed link by a direct one."""

CIRCUIT = "/p2p-circuit"
"""Part of libp2p's address of a peer behind a relay."""

HEALTHY_MS = 30_000
"""Time after which a link counts as good: the next dial begins with the first pause."""


class Carrier(Protocol):
    """The mesh, as the tasks that dial see it."""

    clock_ms: Callable[[], int]

    def carry(self, pipe: Pipe, kind: str, expected: PeerId) -> tuple[Link, asyncio.Task[None]]:
        """Make a link of a pipe to a peer that was dialled; the task ends with it."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task until it ends, or the mesh stops."""


@dataclass(slots=True)
class KeptPeer:
    """One such peer, and what its task waits for."""

    remote: PeerAddress
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for its task: the addresses changed, or a link opened or ended."""
    linked: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = "not dialled yet"
    missed: set[str] = field(default_factory=set)
    """Addresses that led to no link when they were dialled last."""
    task: asyncio.Task[None] | None = None

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until its addresses or its link change, or for `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        self.changed.clear()


class KeptPeers:
    """The kept peers of one node, whose id is `own`. `transports` may lose some that do not
    start.
    """

    def __init__(
        self,
        own: PeerId,
        transports: Sequence[Transport],
        table: LinkTable[Link],
        carrier: Carrier,
    ) -> None:
        self._own, self._transports, self._table, self._carrier = own, transports, table, carrier
        self._peers: dict[PeerId, KeptPeer] = {}
        self._misses: TokenBuckets[str] = TokenBuckets(*MISSES_PER_HOST)

    def troubles(self) -> dict[PeerId, str]:
        """The reason why a link is missing, by peer."""
        return {
            peer: kept.trouble
            for peer, kept in sorted(self._peers.items())
            if self._table.link_with(peer) is None
        }

    # ---- for the mesh

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        """Keep links to these peers from now on, the most important first, and to no others."""
        wanted = {
            remote.peer_id: remote for remote in remotes[:LINKS_MAX] if remote.peer_id != self._own
        }
        for peer in self._peers.keys() - wanted.keys():
            del self._table.kept[peer]
            if task := self._peers.pop(peer).task:
                task.cancel()
        for peer, remote in wanted.items():
            self._keep(peer, remote)

    async def link_to(self, remote: PeerAddress) -> Link:
        """The link to a peer, which is kept from now on; `UnavailableError` if none opens within
        `LINK_S`.
        """
        peer = remote.peer_id
        if link := self._table.link_with(peer):
            return link
        kept = self._peers.get(peer) or self._keep(peer, remote)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINK_S):
                await kept.linked.wait()
        if link := self._table.link_with(peer):
            return link
        raise UnavailableError(f"no link to {short(peer)}: {kept.trouble}")

    def on_linked(self, peer: PeerId) -> None:
        """A link to the peer is open."""
        if kept := self._peers.get(peer):
            kept.linked.set()
            kept.changed.set()

    def on_unlinked(self, peer: PeerId) -> None:
        """The last link to the peer has ended."""
        if kept := self._peers.get(peer):
            kept.linked.clear()
            kept.changed.set()

    def note_trouble(self, peer: PeerId, trouble: str) -> None:
        """A link to the peer has failed, or ended, for this reason."""
        if kept := self._peers.get(peer):
            kept.trouble = trouble

    # ---- the task of each

    def _keep(self, peer: PeerId, remote: PeerAddress) -> KeptPeer:
        kept = self._peers.get(peer)
        self._table.kept[peer] = remote
        if kept is None:
            kept = self._peers[peer] = KeptPeer(remote)
            kept.task = self._carrier.spawn(self._keep_linked(peer, kept))
            if link := self._table.link_with(peer):
                link.limit(None)  # a stranger no more
        elif kept.remote != remote:
            kept.remote = remote
            kept.missed.intersection_update(remote.addresses)
            kept.changed.set()
        return kept

    async def _keep_linked(self, peer: PeerId, kept: KeptPeer) -> None:
        """Dial whenever there is no link, or only a relayed one, for as long as the peer is
        kept.
        """
        backoff = Backoff(*BACKOFF_MS)
        head_start_s = HEAD_START_S if peer < self._own else 0.0
        await kept.wait(head_start_s)
        while True:
            if link := self._table.link_with(peer):
                since_ms = self._carrier.clock_ms()
                await kept.wait(UPGRADE_S if link.pipe.relayed else None)
                if self._carrier.clock_ms() - since_ms > HEALTHY_MS:
                    backoff.reset()
                if self._table.link_with(peer) is None:
                    await kept.wait(head_start_s)
            for address in kept.remote.addresses[:ADDRESSES_MAX]:
                await self._dial(peer, address, kept)
            if self._table.link_with(peer) is None:
                await kept.wait(backoff.next() / 1000 * random.uniform(0.5, 1.5))

    async def _dial(self, peer: PeerId, address: str, kept: KeptPeer) -> None:
        """Try one address, unless there is a direct link; return once the new link is proven or has
        failed.
        """
        transport = next(
            (transport for transport in self._transports if transport.dials(address)), None
        )
        link = self._table.link_with(peer)
        if transport is None or (link and not link.pipe.relayed):
            return
        if CIRCUIT in address:
            await self._try(peer, address, transport, kept)
            return
        misses = self._misses.of(dialled_host(address), self._carrier.clock_ms())
        if address in kept.missed and misses.wait_ms(1, self._carrier.clock_ms()):
            return  # its trouble stands
        if await self._try(peer, address, transport, kept):
            kept.missed.discard(address)
        else:
            kept.missed.add(address)
            misses.charge(1, self._carrier.clock_ms())

    async def _try(self, peer: PeerId, address: str, transport: Transport, kept: KeptPeer) -> bool:
        """Dial one address; returns whether somebody with the peer's key was there."""
        try:
            async with asyncio.timeout(DIAL_S + 1):  # for a transport that breaks its promise
                pipe = await transport.dial(address)
        except TimeoutError:
            kept.trouble = f"{address}: no answer within {DIAL_S + 1} s"
            return False
        except UnavailableError as error:
            kept.trouble = f"{address}: {error}"
            return False
        if pipe.relayed and self._table.link_with(peer):  # asked again: a dial takes seconds
            await pipe.close()  # it would not replace the link that exists
            return True
        opened, carrying = self._carrier.carry(pipe, transport.kind, peer)
        proven = asyncio.create_task(opened.proven.wait())
        try:
            await asyncio.wait((carrying, proven), return_when=asyncio.FIRST_COMPLETED)
        finally:
            proven.cancel()
        return opened.proven.is_set()
