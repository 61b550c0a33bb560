"""Promises of the fetches of one open link, between two meshes in virtual time."""

import asyncio

import pytest

from node.links.fetching import PROGRESS_S
from node.links.frames import Part
from node.links.network import Purpose, WithdrawnError
from node.links.upload_queue import AHEAD_BYTES_MIN, RATE_ASSUMED, SOON_MS, Upload
from protocol.errors import UnavailableError
from protocol.ids import Digest, PeerId
from tests.node.links.pair import (
    BLOB,
    each_part,
    first_part,
    linked,
    settled,
)
from tests.support.virtual_time import loop_ms, virtually


def test_late_parts_of_a_cancelled_fetch_are_counted_once_and_acknowledged() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(BLOB)
            taken = sum([len((await first_part(pair.two, pair, digest)).data) for _ in range(5)])
            await settled(pair)
            up, down = pair.one.mesh.traffic, pair.two.mesh.traffic
            assert down.payload_down == up.payload_up == taken + down.late_down
            assert down.late_down > 0
            assert up.payload_up < len(BLOB), "most of it was not sent"
            assert pair.links[0].protocol.window.acknowledged == up.payload_up
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB

    virtually(main())


def test_late_parts_keep_the_owner_of_their_fetch() -> None:
    async def main() -> None:
        async with linked() as pair:
            payload, snapshot = pair.one.hold(BLOB), pair.one.hold(BLOB[:-1])
            taken = len((await first_part(pair.two, pair, snapshot, Purpose.CATCH_UP)).data)
            await settled(pair)
            down = pair.two.mesh.traffic
            assert down.catch_up_down == taken + down.late_down > taken
            assert down.payload_down == 0
            late = down.late_down
            taken = len((await first_part(pair.two, pair, payload)).data)
            await settled(pair)
            now = pair.two.mesh.traffic
            assert now.payload_down == taken + now.late_down - late
            assert now.catch_up_down == down.catch_up_down

    virtually(main())


def test_a_range_is_served_to_its_last_byte_and_no_further() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(BLOB)
            assert (
                await pair.two.fetched(pair.one.remote, digest, 100_000, 300_001)
                == BLOB[100_000:400_001]
            )
            await settled(pair)
            assert pair.one.mesh.traffic.payload_up == 300_001
            assert pair.two.mesh.traffic.late_down == 0
            assert pair.one.served == [], "it does not hold the rest"
            assert (
                await pair.two.fetched(pair.one.remote, digest, 2_000_000, 1_000_000)
                == BLOB[2_000_000:]
            )
            await settled(pair)
            assert pair.one.served == [(pair.two.peer, digest)]

    virtually(main())


def test_an_upload_counts_acknowledged_bytes_and_keeps_its_turn_until_the_last() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, uplink, window = (
                pair.one.hold(BLOB),
                pair.one.mesh.uplink,
                pair.links[0].protocol.window,
            )
            progressed, counted = uplink.progressed, [0]

            def counting(upload: Upload, count: int) -> None:
                assert upload == Upload(pair.two.peer, digest)
                counted.append(counted[-1] + count)
                assert counted[-1] <= window.acknowledged
                progressed(upload, count)

            uplink.progressed = counting  # type: ignore[method-assign]
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB
            assert counted[-1] < len(BLOB), "the last acknowledgement is on its way"
            assert pair.links[0].serving
            await settled(pair)
            assert counted[-1] == len(BLOB)
            assert not pair.links[0].serving

    virtually(main())


def test_a_node_is_idle_unless_a_peer_wants_a_blob_of_it() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, seen = pair.one.hold(BLOB), set[tuple[bool, bool]]()
            assert (pair.one.mesh.idle, pair.two.mesh.idle) == (True, True)
            await each_part(
                pair, digest, lambda part: seen.add((pair.one.mesh.idle, pair.two.mesh.idle))
            )
            assert seen == {(False, True)}
            await settled(pair)
            assert pair.one.mesh.idle

    virtually(main())


def test_a_withdrawn_fetch_ends_as_such_and_wastes_no_byte() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, got = pair.one.hold(BLOB), 0

            def arrived(part: Part) -> None:
                nonlocal got
                if not got:
                    pair.two.mesh.withdraw(pair.one.peer, digest)
                got += len(part.data)

            with pytest.raises(WithdrawnError):
                await each_part(pair, digest, arrived)
            await settled(pair)
            assert 0 < got < len(BLOB)
            assert got == pair.one.mesh.traffic.payload_up
            assert pair.two.mesh.traffic.late_down == 0
            assert pair.one.served == []

    virtually(main())


def test_a_fetch_whose_turn_comes_soon_is_not_let_go() -> None:
    first = Upload(PeerId("ab" * 16), Digest(bytes(32)))

    async def behind(others_bytes: int, unless_soon: bool) -> bytes:
        async with linked() as pair:
            digest, uplink = pair.one.hold(b"what is wanted"), pair.one.mesh.uplink
            async with uplink.turn(first, others_bytes):
                fetch = asyncio.create_task(pair.two.fetched(pair.one.remote, digest))
                await asyncio.sleep(1)
                assert uplink.uploads == 2
                pair.two.mesh.withdraw(pair.one.peer, digest, unless_soon)
                await asyncio.sleep(1)
            return await fetch

    short = AHEAD_BYTES_MIN + RATE_ASSUMED * SOON_MS // 4000
    for others_bytes, unless_soon in ((10_000_000, True), (short, False)):
        with pytest.raises(WithdrawnError):
            virtually(behind(others_bytes, unless_soon))
    assert virtually(behind(short, True)) == b"what is wanted"


def test_a_withdrawal_in_the_last_moment_changes_nothing() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest = pair.one.hold(b"all of it in one part")
            assert await pair.two.fetched(pair.one.remote, digest) == b"all of it in one part"
            pair.two.mesh.withdraw(pair.one.peer, digest)
            assert await pair.two.fetched(pair.one.remote, digest) == b"all of it in one part"

    virtually(main())


def test_a_server_that_falls_silent_ends_the_fetch_and_not_the_link() -> None:
    async def main() -> None:
        async with linked() as pair:
            digest, stuck = pair.one.hold(BLOB), asyncio.Event()
            read = pair.one.read

            async def stalling(
                digest: Digest, offset: int, count: int = 1
            ) -> tuple[int, bytes] | None:
                if offset > 100_000 and not stuck.is_set():
                    await stuck.wait()
                return await read(digest, offset, count)

            pair.one.read = stalling  # type: ignore[method-assign]
            began_ms, link = loop_ms(), pair.links[1]
            with pytest.raises(UnavailableError, match=f"sent nothing for {PROGRESS_S} s"):
                await pair.two.fetched(pair.one.remote, digest)
            assert PROGRESS_S * 1000 <= loop_ms() - began_ms < PROGRESS_S * 1000 + 1000
            stuck.set()
            assert await pair.two.fetched(pair.one.remote, digest) == BLOB
            assert pair.links[1] is link

    virtually(main())


def test_many_fetches_at_once_share_the_link_and_all_arrive() -> None:
    async def main() -> None:
        async with linked() as pair:
            digests = [pair.one.hold(bytes([number]) * 400_000) for number in range(12)]
            found = await asyncio.gather(
                *(pair.two.fetched(pair.one.remote, digest) for digest in digests)
            )
            assert [blob[0] for blob in found] == list(range(12))
            await settled(pair)
            assert not any(link.serving for link in pair.links)

    virtually(main())
