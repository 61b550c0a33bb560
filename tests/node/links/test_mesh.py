"""Meshes of several nodes over gRPC on loopback: links that come, go, and are of two minds."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from node.links import kept_peers
from node.links import mesh as mesh_module
from node.links import serving as serving_module
from node.links.link_table import STRANGERS_MAX, UNPROVEN_MAX
from node.links.network import BlobRange, NotHeldError, PeerAddress, Purpose
from node.transports.grpc_transport import GrpcTransport
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, sha256
from tests.node.links.net import Faulty, Member, clock_ms, grpc, key_of, meshes, peer_of
from tests.node.transports.memory_pipes import MemoryNetwork
from tests.support.elsewhere import elsewhere
from tests.support.virtual_time import loop_ms, virtually
from tests.support.waiting import until

BLOB = secrets.token_bytes(3_000_000)


def linked_to_all(members: list[Member]) -> bool:
    peers = {member.peer for member in members}
    return all(member.linked == peers - {member.peer} for member in members)


def faulty_transports(*, relayed: bool = False) -> tuple[list[Faulty], Callable[[], Faulty]]:
    """(the transports made so far, what makes the next one)."""
    transports: list[Faulty] = []

    def make() -> Faulty:
        transports.append(Faulty(grpc()))
        transports[-1].relayed = relayed
        return transports[-1]

    return transports, make


async def test_every_pair_keeps_one_link_whichever_end_dialled() -> None:
    async with meshes(4) as members:
        await until(lambda: linked_to_all(members))
        await until(lambda: all(len(member.mesh.carried) == 3 for member in members))
        for one in members:
            for other in members:
                if one.peer < other.peer:
                    [there] = [link for link in one.mesh.links if link.peer == other.peer]
                    [back] = [link for link in other.mesh.links if link.peer == one.peer]
                    assert there.dialled != back.dialled


async def test_a_blob_crosses_whole_from_any_offset() -> None:
    async with meshes(2) as (one, two):
        digest = one.hold(BLOB)
        assert await two.fetched(one.remote, digest) == BLOB
        assert await two.fetched(one.remote, digest, 2_999_999) == BLOB[-1:]
        await until(lambda: len(one.served) == 2)
        assert one.served == [(two.peer, digest)] * 2
        assert one.mesh.traffic.payload_up == two.mesh.traffic.payload_down == len(BLOB) + 1


async def test_blobs_cross_both_ways_and_several_at_once() -> None:
    async with meshes(3) as members:
        digests = [member.hold(secrets.token_bytes(1_000_000)) for member in members]
        wanted = [
            (taker, giver, digest)
            for taker in members
            for giver, digest in zip(members, digests, strict=True)
            if giver is not taker
        ]
        found = await asyncio.gather(
            *(taker.fetched(giver.remote, digest) for taker, giver, digest in wanted)
        )
        assert all(
            blob == giver.blobs[digest]
            for blob, (_, giver, digest) in zip(found, wanted, strict=True)
        )


async def test_a_peer_without_an_address_is_reached_over_the_link_that_it_dialled() -> None:
    async with meshes(2, linked=False) as (hidden, public):
        public.mesh.keep([PeerAddress(hidden.peer, ())])
        hidden.mesh.keep([public.remote])
        digest = hidden.hold(BLOB)
        assert await public.fetched(PeerAddress(hidden.peer, ()), digest) == BLOB


async def test_an_offer_is_taken_or_refused_with_its_reason() -> None:
    async with meshes(2) as (one, two):
        digest = one.hold(b"payload")
        await one.mesh.offer(two.remote, one.message(digest))
        assert [offer.digest for offers in two.offers for offer in offers.offers] == [digest]
        two.refuses = "expected something else"
        with pytest.raises(RemoteProtocolError, match="expected something else"):
            await one.mesh.offer(two.remote, one.message(digest))
        assert one.linked, "a refusal is no reason to hang up"


async def test_an_offer_in_anothers_name_ends_the_link() -> None:
    async with meshes(2) as (one, two):
        message = one.message(one.hold(b"payload"))
        message.sender = "00" * 16
        with pytest.raises(UnavailableError):
            await one.mesh.offer(two.remote, message)
        assert two.offers == []


async def test_a_fetch_of_an_unknown_blob_or_offset_is_refused_with_the_reason() -> None:
    async with meshes(2) as (one, two):
        digest = one.hold(b"payload")
        with pytest.raises(NotHeldError, match="not held"):
            await two.fetched(one.remote, bytes(32))
        with pytest.raises(RemoteProtocolError, match="offset below 7, got 9"):
            await two.fetched(one.remote, digest, 9)
        assert await two.fetched(one.remote, digest) == b"payload"


async def test_a_peer_that_is_not_kept_is_dialled_for_a_fetch() -> None:
    async with meshes(2, linked=False) as (one, two):
        digest = one.hold(BLOB)
        assert await two.fetched(one.remote, digest) == BLOB


async def test_no_link_to_a_peer_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_peers, "LINK_S", 2)
    async with meshes(2, linked=False) as (one, two):
        with pytest.raises(UnavailableError, match=r"it announced no address|not dialled"):
            await one.mesh.offer(PeerAddress(two.peer, ()), one.message())
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
            await one.mesh.offer(PeerAddress("ff" * 16, ("127.0.0.1:1",)), one.message())


async def test_another_key_at_an_address_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_peers, "LINK_S", 2)
    async with meshes(2, linked=False) as (one, two):
        with pytest.raises(UnavailableError, match=r"expected ffffffff at .*, got"):
            await one.mesh.offer(PeerAddress("ff" * 16, two.remote.addresses), one.message())


async def test_a_key_that_is_not_the_one_the_transport_proved_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A man in the middle, with a connection of his own to each of the two."""
    monkeypatch.setattr(kept_peers, "LINK_S", 2)
    transport = Faulty(grpc())
    async with meshes(1, lambda: transport) as [one], meshes(3, linked=False) as others:
        two, three = (other for other in others if other.peer != one.peer)
        transport.proven = public_bytes(three.key)
        with pytest.raises(
            UnavailableError, match=r"expected the key that the transport proved at .* got that of"
        ):
            await one.mesh.offer(two.remote, one.message())
        await one.mesh.offer(three.remote, one.message())


async def test_a_cancelled_fetch_leaves_the_link_and_its_window_whole() -> None:
    async with meshes(2) as (one, two):
        digest = one.hold(BLOB)
        for _ in range(20):
            async for _part in two.mesh.fetch(one.remote, BlobRange(digest), Purpose.PAYLOAD):
                break
        assert await two.fetched(one.remote, digest) == BLOB


async def test_a_peer_that_started_anew_takes_the_place_of_its_old_link() -> None:
    transport = Faulty(grpc())
    async with meshes(1, lambda: transport) as [one]:
        old = Member(key_of(7), [grpc()], None, instance=1)
        await old.mesh.start(old)
        old.mesh.keep([one.remote])
        await until(lambda: old.peer in one.linked)
        old.mesh.keep([])  # its process is gone, and nobody noticed yet
        new = Member(key_of(7), [grpc()], None, instance=2)
        await new.mesh.start(new)
        new.mesh.keep([one.remote])
        digest = one.hold(BLOB)
        assert await new.fetched(one.remote, digest) == BLOB
        await old.mesh.stop()
        await new.mesh.stop()


async def test_a_silent_network_is_noticed_and_healed() -> None:
    transports, make = faulty_transports()
    async with meshes(2, make) as (one, two):
        await until(lambda: linked_to_all([one, two]))
        digest = one.hold(BLOB)
        for transport in transports:
            for pipe in transport.pipes:
                pipe.flowing.clear()  # one way and the other: nothing is lost, nothing arrives
        before = {id(link) for member in (one, two) for link in member.mesh.carried}
        await until(
            lambda: not before & {id(link) for member in (one, two) for link in member.mesh.carried}
        )
        assert await two.fetched_at_last(one.remote, digest) == BLOB


async def test_damaged_bytes_end_the_link_and_are_never_passed_on() -> None:
    transports, make = faulty_transports()
    async with meshes(2, make) as (one, two):
        await until(lambda: linked_to_all([one, two]))
        digest = one.hold(BLOB)
        for pipe in transports[0].pipes:
            pipe.damage = True
        with pytest.raises(UnavailableError, match="ended"):
            await two.fetched(one.remote, digest)
        for pipe in transports[0].pipes:
            pipe.damage = False
        assert await two.fetched_at_last(one.remote, digest) == BLOB


async def test_a_relayed_link_gives_way_to_a_direct_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_peers, "UPGRADE_S", 0.5)
    transports, make = faulty_transports(relayed=True)
    async with meshes(2, make) as (one, two):
        await until(lambda: linked_to_all([one, two]))
        assert one.mesh.links[0].relayed
        for transport in transports:
            transport.relayed = False
        await until(lambda: all(m.mesh.links and not m.mesh.links[0].relayed for m in (one, two)))
        digest = one.hold(BLOB)
        assert await two.fetched_at_last(one.remote, digest) == BLOB


async def test_a_relayed_pipe_is_kept_when_the_link_that_it_was_to_replace_has_ended_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_peers, "UPGRADE_S", 0.5)
    transports, make = faulty_transports(relayed=True)
    async with meshes(2, make, linked=False) as (one, two):
        transport = transports[0]
        one.mesh.keep([two.remote])
        await until(lambda: linked_to_all([one, two]))
        transport.dialling.clear()
        before = transport.dials_made
        await until(lambda: transport.dials_made > before)
        await transport.pipes[0].close()
        await until(lambda: not one.linked and not two.linked)
        transport.dialling.set()  # for the dial that is on its way, and for none after it
        transport.dialling.clear()
        await until(lambda: linked_to_all([one, two]))
        transport.dialling.set()


async def test_a_limited_upload_takes_its_time_and_no_more_than_the_limit() -> None:
    async with meshes(2, limit=2_000_000) as (one, two):
        await until(lambda: linked_to_all([one, two]))
        digest = one.hold(BLOB)
        began = clock_ms()
        assert await two.fetched(one.remote, digest) == BLOB
        elapsed_ms = clock_ms() - began
        assert len(BLOB) <= 2_000 * elapsed_ms + 500_000, (
            "the limit, and a quarter of a second that was saved up"
        )


# ---- many, and both at once


@pytest.mark.slow
async def test_twenty_members_are_all_linked_to_all_with_one_link_per_pair() -> None:
    async with meshes(20) as members:
        await until(lambda: linked_to_all(members))
        await until(lambda: all(len(member.mesh.carried) == 19 for member in members))
        digest = members[0].hold(BLOB)
        found = await asyncio.gather(
            *(member.fetched(members[0].remote, digest) for member in members[1:])
        )
        assert all(blob == BLOB for blob in found)


@pytest.mark.parametrize("attempt", range(3))
async def test_when_both_dial_at_once_one_link_is_left_and_nothing_is_lost(
    attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_peers, "HEAD_START_S", 0)
    async with meshes(2, linked=False) as (one, two):
        digests = [one.hold(BLOB), two.hold(BLOB[::-1])]
        one.mesh.keep([two.remote])
        two.mesh.keep([one.remote])
        for each, other, digest in ((two, one, digests[0]), (one, two, digests[1])):
            assert (
                await retried(lambda e=each, o=other, d=digest: e.fetched(o.remote, d))
                == other.blobs[digest]
            )
        await until(lambda: len(one.mesh.carried) == len(two.mesh.carried) == 1)
        [there], [back] = one.mesh.links, two.mesh.links
        assert (there.dialled, back.dialled) == (True, False), (
            "the one that the lower peer id dialled"
        )


async def retried(fetch: Callable[[], object]) -> object:
    """A fetch as the swarm makes it: again when the link under it is replaced by another."""
    while True:
        with contextlib.suppress(UnavailableError):
            return await fetch()  # type: ignore[misc]


# ---- peers that die, stop and move


class Elsewhere:
    """A member in another process, as the module run as a program is."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, address: str) -> None:
        self.process, self.remote = process, PeerAddress(peer_of(number), (address,))

    def send(self, what: signal.Signals) -> None:
        os.kill(self.process.pid, what)


@asynccontextmanager
async def member_elsewhere(
    number: int, listen: str = "127.0.0.1:0", dials: PeerAddress | None = None
) -> AsyncIterator[Elsewhere]:
    arguments = [str(number), listen, *((dials.peer_id, *dials.addresses) if dials else ())]
    async with elsewhere(__name__, *arguments) as (process, address):
        yield Elsewhere(number, process, address)


OTHER = 1
OTHERS_BLOB = bytes(range(251)) * 20_000


async def fetch_others_blob(
    member: Member, other: PeerAddress, arrived: Callable[[], None]
) -> bytes:
    blob = b""
    async with aclosing(
        member.mesh.fetch(other, BlobRange(sha256(OTHERS_BLOB)), Purpose.PAYLOAD)
    ) as parts:
        async for part in parts:
            blob += part.data
            arrived()
    return blob


@pytest.mark.parametrize("who_dials", ["they", "we"])
@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_killed_peer_is_noticed_before_its_silence_and_its_successor_is_linked(
    who_dials: str, busy: bool
) -> None:
    async with meshes(1) as [one]:
        dials = one.remote if who_dials == "they" else None
        async with member_elsewhere(OTHER, dials=dials) as other:
            kept = PeerAddress(other.remote.peer_id, () if dials else other.remote.addresses)
            one.mesh.keep([kept])
            await until(lambda: one.linked)
            coming = asyncio.Event()
            fetching = (
                asyncio.create_task(fetch_others_blob(one, kept, coming.set)) if busy else None
            )
            if busy:
                await coming.wait()
            other.send(signal.SIGKILL)
            await until(lambda: not one.linked)
            assert "was silent for" not in one.trouble(other.remote.peer_id)
            if fetching:
                with contextlib.suppress(UnavailableError):  # or all of it had come
                    assert await fetching == OTHERS_BLOB
        address = other.remote.addresses[0]
        async with member_elsewhere(OTHER, listen=address, dials=dials):
            assert await retried(lambda: fetch_others_blob(one, kept, lambda: None)) == OTHERS_BLOB


async def test_a_stopped_peer_is_noticed_by_its_silence_and_healed_when_it_goes_on() -> None:
    async with meshes(1) as [one], member_elsewhere(OTHER) as other:
        one.mesh.keep([other.remote])
        assert (
            await retried(lambda: fetch_others_blob(one, other.remote, lambda: None)) == OTHERS_BLOB
        )
        other.send(signal.SIGSTOP)
        try:
            await until(lambda: not one.linked)
            assert "was silent for" in one.trouble(other.remote.peer_id)
        finally:
            other.send(signal.SIGCONT)
        assert (
            await retried(lambda: fetch_others_blob(one, other.remote, lambda: None)) == OTHERS_BLOB
        )


@pytest.mark.parametrize("deaf", [0, 1])
async def test_a_loss_of_one_way_is_noticed_by_both_and_healed(deaf: int) -> None:
    """What one sends does not arrive: the other hears nothing and leaves, and then the first hears
    nothing either.
    """
    transports, make = faulty_transports()
    async with meshes(2, make) as (one, two):
        await until(lambda: linked_to_all([one, two]))
        digest, old = (
            one.hold(BLOB),
            {id(link) for each in (one, two) for link in each.mesh.carried},
        )
        for pipe in transports[deaf].pipes:
            pipe.flowing.clear()
        fetching = asyncio.create_task(retried(lambda: two.fetched(one.remote, digest)))
        await until(
            lambda: not old & {id(link) for each in (one, two) for link in each.mesh.carried}
        )
        assert await fetching == BLOB


async def test_a_peer_that_comes_back_at_another_address_is_linked_as_soon_as_it_is_told() -> None:
    async with meshes(1) as [one]:
        async with member_elsewhere(OTHER) as before:
            one.mesh.keep([before.remote])
            await until(lambda: one.linked)
        await until(lambda: not one.linked)
        async with member_elsewhere(OTHER) as after:
            assert after.remote.addresses != before.remote.addresses
            one.mesh.keep([after.remote])
            await until(lambda: one.linked)
            assert await fetch_others_blob(one, after.remote, lambda: None) == OTHERS_BLOB


# ---- in virtual time


class World:
    """Members of a network within this process, by the order of their peer ids."""

    def __init__(self, count: int) -> None:
        self.network = MemoryNetwork()
        numbers = sorted(range(count), key=peer_of)
        self.transports = [Faulty(self.network.transport(f"m{place}")) for place in range(count)]
        self.members = [
            Member(key_of(number), [transport], None, number, clock=loop_ms)
            for number, transport in zip(numbers, self.transports, strict=True)
        ]

    async def __aenter__(self) -> "World":
        for member in self.members:
            member.remote = PeerAddress(member.peer, await member.mesh.start(member))
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            await member.mesh.stop()

    def keep_all(self) -> None:
        for member in self.members:
            member.mesh.keep([other.remote for other in self.members])

    async def passes(self, condition: Callable[[], object], within: float) -> None:
        """Virtual seconds pass until the condition holds."""
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - the code under test has no event for it
                await asyncio.sleep(0.01)


def test_a_cable_pulled_for_half_a_minute_heals_within_the_backoff() -> None:
    async def main() -> None:
        async with World(2) as world:
            one, two = world.members
            world.keep_all()
            await world.passes(lambda: linked_to_all(world.members), 5)
            for ends in (("m0", "m1"), ("m1", "m0")):
                world.network.stall(*ends)
            pulled_ms = loop_ms()
            await world.passes(lambda: not one.linked and not two.linked, 5.1)
            assert loop_ms() - pulled_ms <= 5_000
            await asyncio.sleep(30)
            for ends in (("m0", "m1"), ("m1", "m0")):
                world.network.resume(*ends)
            await world.passes(
                lambda: linked_to_all(world.members), 1.5 * kept_peers.BACKOFF_MS[1] / 1000 + 1
            )
            digest = one.hold(BLOB)
            assert await two.fetched(one.remote, digest) == BLOB

    virtually(main())


def test_a_mesh_that_stops_says_goodbye_at_once() -> None:
    async def main() -> None:
        async with World(2) as world:
            one, two = world.members
            world.keep_all()
            await world.passes(lambda: linked_to_all(world.members), 5)
            await one.mesh.stop()
            await world.passes(lambda: not two.linked, 0.1)

    virtually(main())


def test_dials_that_fail_come_less_and_less_often_until_the_address_changes() -> None:
    async def main() -> None:
        async with World(2) as world:
            low, high = world.members
            transport = world.transports[0]
            low.mesh.keep([PeerAddress(high.peer, ("memory:nobody",))])
            await asyncio.sleep(600)
            assert 600 / (1.5 * 30) <= transport.dials_made <= 600 / (0.5 * 30) + 10
            assert "nobody answers" in low.trouble(high.peer)
            low.mesh.keep([high.remote])
            await world.passes(lambda: low.linked, 0.1)
            assert low.trouble(high.peer) == ""

    virtually(main())


def test_keys_that_announce_one_host_have_it_dialled_no_more_often_together() -> None:
    async def main() -> None:
        async with World(2) as world:
            low, high = world.members
            transport = world.transports[0]
            hosts = [
                PeerAddress(peer_of(number), tuple(f"memory:{number}-{port}" for port in range(8)))
                for number in range(100, 160)
            ]
            low.mesh.keep([*hosts, high.remote])
            await world.passes(lambda: low.linked, 1)
            await asyncio.sleep(60)
            first = sum(len(host.addresses) for host in hosts)
            per_second, at_once = kept_peers.MISSES_PER_HOST
            assert first < transport.dials_made < first + 61 * per_second + at_once

    virtually(main())


def test_strangers_are_served_up_to_a_number_and_members_beyond_it() -> None:
    async def main() -> None:
        async with World(STRANGERS_MAX + 3) as world:
            host, *others = world.members
            digest = host.hold(b"payload")
            host.mesh.keep([others[-1].remote])
            for stranger in others[:-1]:
                stranger.mesh.keep([host.remote])
            await asyncio.sleep(5)
            assert len(host.linked) == STRANGERS_MAX + 1, "and the one that is kept"
            assert others[-1].peer in host.linked
            unlucky = next(each for each in others if each.peer not in host.linked)
            assert f"busy with {STRANGERS_MAX} links" in unlucky.trouble(host.peer)
            lucky = next(each for each in others if each.peer in host.linked)
            assert await lucky.fetched(host.remote, digest) == b"payload"

    virtually(main())


def test_a_pipe_without_a_proof_takes_no_place_for_long() -> None:
    async def main() -> None:
        async with World(2) as world:
            host, honest = world.members
            door = world.network.transport("door")
            await door.start(lambda pipe: asyncio.sleep(0))
            silent = [await door.dial("memory:m0") for _ in range(UNPROVEN_MAX + 5)]
            await asyncio.sleep(0.1)
            assert len(host.mesh.carried) == UNPROVEN_MAX
            honest.mesh.keep([host.remote])
            await world.passes(lambda: honest.linked, 20)
            await world.passes(lambda: len(host.mesh.carried) == 1, 20)
            for pipe in silent:
                await pipe.close()
            await door.stop()

    virtually(main())


def test_a_pipe_counts_as_a_strangers_until_its_link_is_proven() -> None:
    async def main() -> None:
        async with World(2) as world:
            host, honest = world.members
            door = world.network.transport("door")
            await door.start(lambda pipe: asyncio.sleep(0))
            silent = await door.dial("memory:m0")
            honest.mesh.keep([host.remote])
            await world.passes(lambda: honest.linked and host.linked, 20)
            admitted = [pipe.admitted for pipe in world.network.pipes if pipe.name == "m0"]
            assert admitted == [False, True]
            await silent.close()
            await door.stop()

    virtually(main())


def test_silent_pipes_that_come_again_without_end_keep_no_newcomer_out() -> None:
    async def main() -> None:
        async with World(2) as world:
            host, honest = world.members
            door = world.network.transport("door")
            await door.start(lambda pipe: asyncio.sleep(0))

            async def crowd() -> None:
                while True:
                    await door.dial("memory:m0")
                    await asyncio.sleep(0.01)

            crowding = asyncio.create_task(crowd())
            await asyncio.sleep(2)
            honest.mesh.keep([host.remote])
            await world.passes(lambda: honest.linked, 5)
            crowding.cancel()
            await door.stop()

    virtually(main())


def test_strangers_together_are_served_slowly_and_members_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mesh_module, "STRANGERS_BYTES_PER_SECOND", 100_000)

    async def main() -> None:
        async with World(3) as world:
            host, member, stranger = world.members
            digest = host.hold(bytes(1_000_000))
            host.mesh.keep([member.remote])
            for each in (member, stranger):
                each.mesh.keep([host.remote])
            await world.passes(lambda: member.linked and stranger.linked, 10)
            began_ms = loop_ms()
            await member.fetched(host.remote, digest)
            member_ms = loop_ms() - began_ms
            await stranger.fetched(host.remote, digest)
            assert loop_ms() - began_ms - member_ms > 8_000
            assert member_ms < 5_000

    virtually(main())


def test_a_member_reads_the_past_at_a_bounded_rate_and_an_undecided_round_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving_module, "CATCH_UP_BYTES_PER_SECOND", 1_000_000)

    async def main() -> None:
        async with World(2) as world:
            host, member = world.members
            old = [host.hold(b"old %d" % number) for number in range(60)]
            new = host.hold(b"new")
            host.mesh.keep([member.remote])
            member.mesh.keep([host.remote])
            await world.passes(lambda: member.linked, 10)
            monkeypatch.setattr(
                host,
                "purpose",
                lambda digest: Purpose.PAYLOAD if digest == new else Purpose.CATCH_UP,
            )
            began_ms = loop_ms()
            for digest in old:
                await member.fetched(host.remote, digest)
            assert loop_ms() - began_ms > 2_000, "60 of them cost 65 kB each"
            began_ms = loop_ms()
            await member.fetched(host.remote, new)
            assert loop_ms() - began_ms < 500

    virtually(main())


def test_a_stopped_mesh_reaches_no_peer_and_leaves_nothing() -> None:
    async def main() -> None:
        async with World(2) as world:
            one, two = world.members
            digest = one.hold(b"payload")
            assert await two.fetched(one.remote, digest) == b"payload"
            await two.mesh.stop()
            await two.mesh.stop()
            with pytest.raises(UnavailableError, match="stopped"):
                await two.fetched(one.remote, digest)
            with pytest.raises(UnavailableError, match="stopped"):
                await two.mesh.offer(one.remote, two.message(digest))
            await world.passes(lambda: not one.linked, 1)
            assert not two.mesh.carried

    virtually(main())


async def _serve(number: int, listen: str, dials: list[str]) -> None:
    """The other process: a member that holds a blob, at an address that is printed, until standard
    input ends.
    """
    member = Member(key_of(number), [GrpcTransport(listen)], None, os.getpid())
    member.hold(OTHERS_BLOB)
    addresses = await member.mesh.start(member)
    if dials:
        member.mesh.keep([PeerAddress(PeerId(dials[0]), tuple(dials[1:]))])
    print(addresses[0], flush=True)  # noqa: T201 - the test reads it
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
