"""A limit on the download holds over links: parts are acknowledged as they are paid, so the sender
waits, while everything else on the link goes on.
"""

import asyncio
import secrets

from node.links.network import PeerAddress
from node.links.window import WINDOW_BYTES_MIN
from node.system.rate_limit import BURST_S
from protocol.ids import Digest
from tests.node.links.net import Member, clock_ms, key_of, meshes, peer_of
from tests.node.transports.memory_pipes import MemoryNetwork
from tests.support.virtual_time import loop_ms, virtually
from tests.support.waiting import until

LEAST = 20_000


class Limited:
    """Two members in virtual time; the second one downloads no more than `limit`."""

    def __init__(self, limit: int) -> None:
        network = MemoryNetwork()
        self.members = [
            Member(
                key_of(number),
                [network.transport(f"m{place}")],
                None,
                number,
                clock=loop_ms,
                download_limit=limit * place,
            )
            for place, number in enumerate(sorted(range(2), key=peer_of))
        ]

    async def __aenter__(self) -> list[Member]:
        for member in self.members:
            member.remote = PeerAddress(member.peer, await member.mesh.start(member))
        one, two = self.members
        two.mesh.keep([one.remote])
        one.mesh.keep([two.remote])
        while not two.linked:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        return self.members

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            await member.mesh.stop()


async def timed(taker: Member, source: Member, digest: Digest) -> float:
    """Bytes per second of one fetch."""
    began_ms = clock_ms()
    blob = await taker.fetched(source.remote, digest)
    return 1000 * len(blob) / max(1, clock_ms() - began_ms)


def test_at_the_least_limit_a_long_fetch_neither_outruns_it_nor_loses_its_link() -> None:
    """Minutes of waiting bytes; heartbeats come once a second, and a link ends after five silent
    ones.
    """

    async def main() -> None:
        async with Limited(LEAST) as (one, two):
            blob = secrets.token_bytes(2_000_000)
            links = two.mesh.carried
            began_ms = loop_ms()
            assert await two.fetched(one.remote, one.hold(blob)) == blob
            rate = 1000 * len(blob) / (loop_ms() - began_ms)
            assert 0.8 * LEAST <= rate <= LEAST
            assert two.mesh.carried == links, "no link has ended meanwhile"

    virtually(main())


def test_what_is_not_paid_stays_with_its_sender() -> None:
    async def main() -> None:
        async with Limited(LEAST) as (one, two):
            digest = one.hold(secrets.token_bytes(4_000_000))
            fetch = asyncio.create_task(two.fetched(one.remote, digest))
            await asyncio.sleep(30)
            began = two.mesh.traffic.payload_down
            await asyncio.sleep(60)
            arrived = two.mesh.traffic.payload_down - began
            assert arrived <= 60 * LEAST + WINDOW_BYTES_MIN, "it has shrunk to what is taken"
            fetch.cancel()
            await asyncio.gather(fetch, return_exceptions=True)
            small = one.hold(b"after a fetch that was cancelled")
            assert await two.fetched(one.remote, small) == b"after a fetch that was cancelled"

    virtually(main())


async def test_over_grpc_it_holds_and_an_offer_does_not_wait_behind_it() -> None:
    """Bytes over seconds against the limit, and against the same link without one."""
    limit, blob = 100_000, secrets.token_bytes(300_000)
    async with meshes(2) as (one, two):
        await until(lambda: bool(one.linked and two.linked))
        digest = one.hold(blob)
        free = await timed(two, one, digest)
        two.mesh.downlink.limit(limit)
        fetch = asyncio.create_task(timed(two, one, digest))
        await until(lambda: two.mesh.traffic.payload_down > len(blob))  # the second fetch has begun
        await one.mesh.offer(two.remote, one.message(digest))
        assert len(two.offers) == 1
        assert not fetch.done(), "the offer went by"
        held = await fetch
        assert len(blob) <= limit * (len(blob) / held + BURST_S)
        assert free > 2 * held, "the limit is what held it back"
