"""Two meshes in virtual time with one link between them; and an end of a link that a test plays
itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from node.links.frames import Part, encode
from node.links.link import Link
from node.links.network import BlobRange, Purpose
from node.links.protocol import Identity, LinkProtocol
from node.links.protocol_events import Event, PeerLeft
from node.transports.base import Accept, Pipe
from protocol.errors import UnavailableError
from protocol.ids import Digest, PeerId
from protocol.wire_pb2 import Beat, LinkMessage
from tests.node.links.net import RUN, Member, key_of, peer_of
from tests.node.transports.memory_pipes import MemoryNetwork, MemoryTransport
from tests.support.virtual_time import loop_ms

BLOB = bytes(range(256)) * 8_000
PEER_OF_SCRIPTED = peer_of(5)


def link_of(member: Member, peer: PeerId) -> Link:
    """A member's link to a peer."""
    link = member.mesh._table.link_with(peer)
    assert link is not None
    return link


class Counting:
    """A memory transport that counts the bytes of its pipes."""

    kind = "memory"
    cuts: Mapping[str, int] = {}

    def __init__(self, inner: MemoryTransport) -> None:
        self._inner = inner
        self.written = self.read = 0

    async def start(self, accept: Accept) -> tuple[str, ...]:
        return await self._inner.start(lambda pipe: accept(CountingPipe(pipe, self)))

    async def stop(self) -> None:
        await self._inner.stop()

    def dials(self, address: str) -> bool:
        return self._inner.dials(address)

    async def dial(self, address: str) -> Pipe:
        return CountingPipe(await self._inner.dial(address), self)


class CountingPipe:
    relayed = False

    def __init__(self, inner: Pipe, transport: Counting) -> None:
        self._inner, self._transport = inner, transport
        self.remote = inner.remote

    def proves(self, public_key: bytes) -> bool | None:
        return self._inner.proves(public_key)

    def admit(self) -> None:
        self._inner.admit()

    async def read(self) -> bytes:
        data = await self._inner.read()
        self._transport.read += len(data)
        return data

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.write(data)
        self._transport.written += len(data)

    async def close(self) -> None:
        await self._inner.close()


class Pair:
    """Two linked members, `one` dialled by `two`, and what lies between them."""

    def __init__(self, **settings: Any) -> None:
        self.network = MemoryNetwork()
        self.transports = [Counting(self.network.transport(name)) for name in ("one", "two")]
        self.one, self.two = (
            Member(key_of(number), [transport], None, number, clock=loop_ms, **settings)
            for number, transport in enumerate(self.transports)
        )

    @property
    def links(self) -> tuple[Link, Link]:
        """Each one's link to the other."""
        return link_of(self.one, self.two.peer), link_of(self.two, self.one.peer)


@asynccontextmanager
async def linked(**settings: Any) -> AsyncIterator[Pair]:
    pair = Pair(**settings)
    one, two = pair.one, pair.two
    addresses = await one.mesh.start(one)
    await two.mesh.start(two)
    one.remote = type(one.remote)(one.peer, addresses)
    two.mesh.keep([one.remote])
    one.mesh.keep([two.remote])
    try:
        await happens(lambda: one.linked and two.linked)
        yield pair
    finally:
        await two.mesh.stop()
        await one.mesh.stop()


async def happens(condition: Callable[[], object], within: float = 60) -> None:
    """Virtual time passes until the condition holds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - the code under test has no event for it
            await asyncio.sleep(0.01)


async def settled(pair: Pair) -> None:
    """Everything that was sent has arrived and is acknowledged; time leaps only when nothing is
    left to do.
    """
    await happens(
        lambda: all(
            link.protocol.window.sent == link.protocol.window.acknowledged for link in pair.links
        )
    )
    await asyncio.sleep(0.00137)  # a moment at which no timer of a link fires


async def first_part(
    member: Member, pair: Pair, digest: Digest, purpose: Purpose = Purpose.PAYLOAD
) -> Part:
    async with aclosing(member.mesh.fetch(pair.one.remote, BlobRange(digest), purpose)) as parts:
        async for part in parts:
            return part
    raise AssertionError("no part came")


async def each_part(pair: Pair, digest: Digest, arrived: Callable[[Part], None]) -> None:
    async with aclosing(
        pair.two.mesh.fetch(pair.one.remote, BlobRange(digest), Purpose.PAYLOAD)
    ) as parts:
        async for part in parts:
            arrived(part)


class Scripted:
    """The other end of a link, played by the test: an honest session, and whatever else is
    written.
    """

    def __init__(self, pipe: Pipe, member: Member) -> None:
        self.pipe = pipe
        self.member = member
        self.protocol = LinkProtocol(Identity(key_of(5), RUN, 5), b"n" * 32, True, loop_ms())
        self.left = ""

    async def flush(self) -> None:
        for frame in self.protocol.outgoing():
            await self.pipe.write(frame)

    async def step(self) -> list[Event]:
        """Read once and answer as the session does."""
        data = await self.pipe.read()
        if not data:
            raise UnavailableError("the member closed the link")
        events = self.protocol.receive(data, loop_ms())
        self.left = next(
            (event.reason for event in events if isinstance(event, PeerLeft)), self.left
        )
        await self.flush()
        return events

    async def prove(self) -> "Scripted":
        await self.flush()
        while self.protocol.peer is None or self.protocol.peer not in {self.member.peer}:
            await self.step()
        await happens(lambda: self.member.linked)
        return self

    async def swallow(self) -> None:
        """Read to the end of the link, and answer nothing."""
        while await self.pipe.read():
            pass

    async def beat(self, seconds: float) -> None:
        """Show signs of life for so long, without reading."""
        for _ in range(int(seconds)):
            await self.pipe.write(encode(LinkMessage(beat=Beat(sent_ms=loop_ms()))))
            await asyncio.sleep(1)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Member, Scripted]]:
    """A member, and an end of a link to it that the test plays."""
    network = MemoryNetwork()
    member = Member(key_of(0), [network.transport("member")], None, 0, clock=loop_ms)
    door = network.transport("scripted")

    async def nobody(pipe: Pipe) -> None:
        raise AssertionError(f"nobody dials {pipe.remote}")

    await door.start(nobody)
    try:
        addresses = await member.mesh.start(member)
        yield member, await Scripted(await door.dial(addresses[0]), member).prove()
    finally:
        await member.mesh.stop()
        await door.stop()
