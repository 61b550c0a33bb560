"""The links of one node: at most one per peer, over whatever transport reaches it, dialled by
whichever end can.

    keep(peers) --> for each, one task:  wait until unlinked -> dial its addresses in turn -> carry the link -> again
    a peer dials -> accept -> carry the link

Rules
- A link counts from the proof of the peer's key on; who cannot prove the key that was dialled is hung up on.
- When both ends dialled, both keep the same one: rather a direct one than a relayed one, then the one that the lower
  peer id dialled. A peer that started anew, or that dials again, replaces its old link: that one is dead.
- A peer that cannot be dialled (behind a router, or of another transport) links when it dials. Dialling waits longer
  after each failure, and starts at once when the peer's addresses change.
- A relayed link is dialled anew now and then: a direct one takes its place as soon as one can be had.
- Strangers may link too, a few of them: they are served after everyone else.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from node.links.frames import Part
from node.links.link import Link
from node.links.network import BlobRange, LinkServer, PeerAddress, Purpose, Traffic
from node.links.protocol import Identity, LinkProtocol
from node.links.uplink import Uplink
from node.transports.base import Accept, Pipe, Transport
from protocol.errors import LocalProtocolError, LockstepError, RemoteProtocolError, UnavailableError
from protocol.handshake import NONCE_BYTES, public_bytes
from protocol.ids import Digest, PeerId, peer_id, short
from protocol.limits import ADDRESSES_MAX
from protocol.wire_pb2 import Offers

LINKS_MAX = 64
"""Peers that links are kept to; with more members, those that matter most."""

STRANGERS_MAX = 16
"""Links from peers that this node does not keep."""

UNPROVEN_MAX = 64
"""Pipes on which nobody has proved a key yet."""

DIAL_SECONDS = 10
"""Longest time for one address: a few round trips around the world, through a relay."""

LINK_SECONDS = 5
"""Longest wait of an offer or a fetch for a link that is being dialled."""

BACKOFF_SECONDS = (0.5, 30.0)
"""First and longest pause between two attempts to dial a peer."""

HEAD_START_SECONDS = 1.0
"""How long the higher peer id waits for the lower one to dial, so that not both do."""

UPGRADE_SECONDS = 30.0
"""Pause between two attempts to find a direct way in place of a relayed one."""

HEALTHY_MS = 30_000
"""A link that held for so long was a good one: the next dial waits no longer than the first did."""

SERVED_SECONDS = 0.1
"""How often a mesh that drains looks whether it is done."""

GOODBYE_SECONDS = 1.0
"""How long goodbyes may take when this node stops."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerLink:
    """One open link, for status and metrics."""

    peer: PeerId
    transport: str
    remote: str
    relayed: bool
    dialled: bool
    rtt_ms: int | None
    traffic: Traffic


@dataclass(slots=True)
class _Kept:
    """A peer to be linked to."""

    remote: PeerAddress
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """For its task: other addresses, or a link opened or ended."""
    linked: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = "not dialled yet"
    task: asyncio.Task[None] | None = None


class Mesh:
    """A `node.links.network.Link` over any transports. `clock_ms()` is this machine's monotonic
    clock; `peer_limit` bounds the bytes per second that one peer may take."""

    server: LinkServer

    def __init__(
        self,
        identity: Identity,
        transports: Sequence[Transport],
        uplink: Uplink,
        clock_ms: Callable[[], int],
        peer_limit: int | None = None,
    ) -> None:
        if not transports:
            raise LocalProtocolError("expected at least one transport, got none")
        self.uplink = uplink
        self.clock_ms = clock_ms
        self.peer_limit = peer_limit
        self.troubles: dict[str, str] = {}
        """Transports that did not start, and why."""
        self._identity = identity
        self._own = peer_id(public_bytes(identity.key))
        self._transports = list(transports)
        self._links: dict[PeerId, Link] = {}
        self._carried: dict[Link, PeerId | None] = {}  # with the peer that was dialled
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: dict[PeerId, _Kept] = {}
        self._past = Traffic()
        self._stopped = False

    # ---- for the swarm

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        """Listen on every transport; returns the addresses to announce, the first transport's
        first.

        One that cannot start is a trouble to tell of, unless it is the only one. Raises what
        `Transport.start` does."""
        self.server = server
        self.uplink.urgency = server.urgency
        addresses = list[str]()
        for transport in list(self._transports):
            try:
                addresses += await transport.start(self._acceptor(transport))
            except UnavailableError as error:
                if len(self._transports) == 1:
                    raise
                _log.warning("goes on without a transport kind=%s reason=%s", transport.kind, error)
                self.troubles[transport.kind] = str(error)
                self._transports.remove(transport)
        return tuple(addresses[:ADDRESSES_MAX])

    async def stop(self) -> None:
        """Say goodbye on every link and stop listening."""
        self._stopped = True
        for link in self._carried:
            link.leave("this node stops")
        self.keep(())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in self._transports:
            await transport.stop()

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        """Peers to be linked to from now on, the most important first; links to others stay until
        they end."""
        wanted = {
            remote.peer_id: remote for remote in remotes[:LINKS_MAX] if remote.peer_id != self._own
        }
        for peer in self._kept.keys() - wanted.keys():
            if task := self._kept.pop(peer).task:
                task.cancel()
        for peer, remote in wanted.items():
            self._keep(peer, remote)

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        """Hand over offers; returns when the peer took them."""
        link = await self._link_to(to)
        await link.offer(offers)

    async def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        """The parts of a blob as the peer sends them: unchecked."""
        link = await self._link_to(source)
        async with aclosing(link.fetch(blob, purpose)) as parts:
            async for part in parts:
                yield part

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        """Ask the source for no more of a blob than it has begun to send, or can begin soon."""
        if link := self._links.get(source):
            link.withdraw(digest, unless_soon)

    async def served(self) -> None:
        """Return when nobody is being served any more."""
        while any(link.serving for link in self._carried):  # noqa: ASYNC110 - no event of a link says so
            await asyncio.sleep(SERVED_SECONDS)

    @property
    def idle(self) -> bool:
        """Whether nobody wants any blob of this node."""
        return self.uplink.idle

    @property
    def traffic(self) -> Traffic:
        """Bytes carried so far; a copy."""
        return sum((link.traffic for link in self._carried), replace(self._past))

    @property
    def links(self) -> list[PeerLink]:
        """The open links, by peer."""
        return [_described(link) for _, link in sorted(self._links.items())]

    def document(self) -> dict[str, Any]:
        """For a status page: the open links, and in words why others are missing."""
        missing = {
            peer: kept.trouble
            for peer, kept in sorted(self._kept.items())
            if peer not in self._links
        }
        return {
            "open": [asdict(link) for link in self.links],
            "missing": missing,
            "transports": dict(self.troubles),
        }

    # ---- for the links

    def on_proven(self, link: Link, public_key: bytes) -> None:
        """Take the link in, in place of another or not at all."""
        peer, expected = link.peer, self._carried[link]
        if expected not in (None, peer):
            raise RemoteProtocolError(
                f"expected {short(expected)} at {link.pipe.remote}, got {short(peer)}"
            )
        if link.pipe.proves(public_key) is False:
            raise RemoteProtocolError(
                f"expected the key that the transport proved at {link.pipe.remote}, "
                f"got that of {short(peer)}"
            )
        old, kept = self._links.get(peer), self._kept.get(peer)
        if kept is None and sum(other not in self._kept for other in self._links) >= STRANGERS_MAX:
            link.leave(f"busy with {STRANGERS_MAX} links of others")
            return
        if old is not None and not self._better(link, old):
            link.leave("another link between the two is open")
            return
        self._links[peer] = link
        if old is not None:
            if link.session.instance == old.session.instance:
                old.retire("replaced by another link between the two")
            else:
                old.leave("its process is gone: it started anew")
        if kept:
            kept.linked.set()
            kept.changed.set()
        self.server.on_linked(frozenset(self._links))

    def on_ended(self, link: Link, error: LockstepError) -> None:
        """Forget the link; whether another takes its place is up to the task that keeps the
        peer."""
        peer, dialled = link.session.peer, self._carried[link]
        if kept := self._kept.get(dialled or peer or PeerId("")):
            kept.trouble = f"{link.pipe.remote}: {error}"
        if peer is None or self._links.get(peer) is not link:
            return  # it never counted, or another has taken its place
        del self._links[peer]
        if kept := self._kept.get(peer):
            kept.linked.clear()
            kept.changed.set()
        self.server.on_linked(frozenset(self._links))

    def _better(self, new: Link, old: Link) -> bool:
        if (
            new.session.instance != old.session.instance
            or new.session.dialled == old.session.dialled
        ):
            return (
                new.pipe.relayed <= old.pipe.relayed or new.session.instance != old.session.instance
            )
        if new.pipe.relayed != old.pipe.relayed:
            return old.pipe.relayed
        return (self._own < new.peer) == new.session.dialled

    # ---- carrying

    def _acceptor(self, transport: Transport) -> Accept:
        async def accept(pipe: Pipe) -> None:
            if (
                not self._stopped
                and sum(link.session.peer is None for link in self._carried) < UNPROVEN_MAX
            ):
                await asyncio.wait({self._spawn(self._carry(self._open(pipe, transport, None)))})

        return accept

    def _open(self, pipe: Pipe, transport: Transport, expected: PeerId | None) -> Link:
        nonce = secrets.token_bytes(NONCE_BYTES)
        session = LinkProtocol(self._identity, nonce, expected is not None, self.clock_ms())
        link = Link(pipe, transport.kind, session, self)
        self._carried[link] = expected
        return link

    async def _carry(self, link: Link) -> None:
        """Run a link until it ends."""
        try:
            await link.run()
        except LockstepError as error:
            level = logging.WARNING if isinstance(error, RemoteProtocolError) else logging.DEBUG
            _log.log(
                level,
                "link ended peer=%s remote=%s reason=%s",
                link.session.peer,
                link.pipe.remote,
                error,
            )
        except Exception:
            _log.exception("a link died peer=%s remote=%s", link.session.peer, link.pipe.remote)
        finally:
            del self._carried[link]
            self._past += link.traffic

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- dialling

    def _keep(self, peer: PeerId, remote: PeerAddress) -> _Kept:
        kept = self._kept.get(peer)
        if kept is None:
            kept = self._kept[peer] = _Kept(remote)
            kept.task = self._spawn(self._keep_linked(peer, kept))
        elif kept.remote != remote:
            kept.remote = remote
            kept.changed.set()
        return kept

    async def _keep_linked(self, peer: PeerId, kept: _Kept) -> None:
        """Dial whenever there is no link, or only a relayed one, for as long as the peer is
        kept."""
        pause, head_start = BACKOFF_SECONDS[0], HEAD_START_SECONDS if peer < self._own else 0.0
        await _changed(kept, head_start)
        while True:
            if link := self._links.get(peer):
                since_ms = self.clock_ms()
                await _changed(kept, UPGRADE_SECONDS if link.pipe.relayed else None)
                if self.clock_ms() - since_ms > HEALTHY_MS:
                    pause = BACKOFF_SECONDS[0]
                if peer not in self._links:
                    await _changed(kept, head_start)
            for address in kept.remote.addresses[:ADDRESSES_MAX]:
                await self._dial(peer, address, kept)
            if peer not in self._links:
                await _changed(kept, pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, BACKOFF_SECONDS[1])

    async def _dial(self, peer: PeerId, address: str, kept: _Kept) -> None:
        """Try one address unless there is a link as good; return when it is a link, or why it is
        none is known."""
        transport = next(
            (transport for transport in self._transports if transport.dials(address)), None
        )
        link = self._links.get(peer)
        if transport is None or (link and not link.pipe.relayed):
            return
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                pipe = await transport.dial(address)
        except TimeoutError:
            kept.trouble = f"{address}: no answer within {DIAL_SECONDS} s"
            return
        except UnavailableError as error:
            kept.trouble = f"{address}: {error}"
            return
        if pipe.relayed and peer in self._links:  # as of now: a dial takes seconds
            await pipe.close()  # no better than what there is
            return
        opened = self._open(pipe, transport, peer)
        carrying = self._spawn(self._carry(opened))
        proven = asyncio.create_task(opened.proven.wait())
        try:
            await asyncio.wait((carrying, proven), return_when=asyncio.FIRST_COMPLETED)
        finally:
            proven.cancel()

    async def _link_to(self, remote: PeerAddress) -> Link:
        """The link to a peer; one that is not kept yet is from now on."""
        peer = remote.peer_id
        if self._stopped:
            raise UnavailableError("this node's links are stopped")
        if link := self._links.get(peer):
            return link
        kept = self._kept.get(peer) or self._keep(peer, remote)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINK_SECONDS):
                await kept.linked.wait()
        if link := self._links.get(peer):
            return link
        raise UnavailableError(f"no link to {short(peer)}: {kept.trouble}")


async def _changed(kept: _Kept, seconds: float | None) -> None:
    """Wait for news of a peer, or for so long."""
    try:
        async with asyncio.timeout(seconds):
            await kept.changed.wait()
    except TimeoutError:
        return
    finally:
        kept.changed.clear()


def _described(link: Link) -> PeerLink:
    session = link.session
    return PeerLink(
        link.peer,
        link.kind,
        link.pipe.remote,
        link.pipe.relayed,
        session.dialled,
        session.rtt_ms,
        replace(link.traffic),
    )
