"""Promises of the swarm, in virtual time over real links: with peers that lie, stall and die."""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from node.gossip import announcements
from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.frames import Part
from node.links.mesh import Mesh
from node.links.network import (
    BlobRange,
    LinkServer,
    PeerAddress,
    PeerNetwork,
    Purpose,
    ReadOnlyPeer,
    WithdrawnError,
)
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.links.window import WINDOW_BYTES_FIRST
from node.traffic import Traffic
from protocol.codec.announcement import announce, offered_payload
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Blob
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, sha256
from protocol.wire_pb2 import OfferedPayload, Offers
from tests.node.links.net import RUN, key_of, peer_of
from tests.node.transports.memory_pipes import MemoryNetwork
from tests.support.unchecked import NOBODY, Unchecked
from tests.support.virtual_time import in_virtual_time, loop_ms, without_threads
from tests.support.waiting import PATIENCE_SECONDS, until

PAYLOAD_BYTES = 512 * 1024 + 77
LIMITS = SwarmLimits(payload_bytes_max=2 * PAYLOAD_BYTES, neighbours=4)
ROUND = 5

T = TypeVar("T")

peer = peer_of


def payload(number: int, size: int = PAYLOAD_BYTES) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(size)


def commit_of(blobs: Sequence[bytes], round: int = ROUND) -> Commit:
    entries = tuple(
        Entry(peer(number), sha256(blob), len(blob), 1, 1) for number, blob in enumerate(blobs)
    )
    return Commit(RUN, round, 0, entries, 0, 0, Digest(bytes(32)))


@dataclass
class Member:
    swarm: Swarm
    log: PayloadLog
    remote: PeerAddress
    reports: "asyncio.Queue[tuple[int, list[Digest]]]"


class Party:
    """Swarms and hostile peers on one network within this process."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._network = directory, MemoryNetwork()

    def mesh_of(self, number: int) -> Mesh:
        transport = self._network.transport(str(number))
        return Mesh(
            Identity(key_of(number), RUN, number), [transport], Uplink(None, loop_ms), loop_ms
        )

    @asynccontextmanager
    async def members(
        self, count: int, check: PayloadCheck | None = None
    ) -> AsyncIterator[list[Member]]:
        """Swarms that listen, not yet introduced to each other."""
        together: list[Member] = []
        try:
            for number in range(count):
                log = PayloadLog(self._directory / str(number), 100, 10**9)
                reports: asyncio.Queue[tuple[int, list[Digest]]] = asyncio.Queue()
                swarm = Swarm(
                    peer(number),
                    RUN,
                    LIMITS,
                    log,
                    self.mesh_of(number),
                    check=check or Unchecked(),
                    key=key_of(number),
                    report_holding=lambda round, digests, reports=reports: reports.put_nowait(
                        (round, digests)
                    ),
                    clock_ms=loop_ms,
                )
                remote = PeerAddress(peer(number), await swarm.start())
                together.append(Member(swarm, log, remote, reports))
            yield together
        finally:
            for member in together:
                await member.swarm.stop()

    @asynccontextmanager
    async def listening(self, number: int, server: "Liar") -> AsyncIterator[PeerAddress]:
        server.mesh = self.mesh_of(number)
        try:
            yield PeerAddress(peer(number), await server.mesh.start(server))
        finally:
            await server.mesh.stop()


@pytest.fixture
def party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Party:
    without_threads(monkeypatch)
    return Party(tmp_path)


def introduce(together: Sequence[Member], *others: PeerAddress) -> None:
    """Each member learns all addresses and opens the round."""
    remotes = [*(member.remote for member in together), *others]
    for member in together:
        member.swarm.set_members({remote.peer_id: remote.addresses for remote in remotes})
        member.swarm.open(ROUND)


# ---- peers that do not behave


class Liar(ReadOnlyPeer):
    """Serves `blob` under any digest, and says that it is `total` bytes long."""

    def __init__(self, blob: bytes, total: int | None = None) -> None:
        self.total = total or len(blob)
        self.blob = (blob + bytes(self.total))[: self.total]
        self.mesh: Mesh | None = None

    async def read(self, digest: Digest, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        return self.total, self.blob[offset : offset + count]

    @property
    def sent(self) -> int:
        """Bytes of blobs."""
        assert self.mesh is not None
        return self.mesh.traffic.catch_up_up


class Staller(Liar):
    """Serves the first part and then nothing any more."""

    async def read(self, digest: Digest, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        if offset:
            await asyncio.Event().wait()
        return await super().read(digest, offset, count)


async def soon(waiting: Awaitable[T]) -> T:
    """The result of an awaitable that has to end."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await waiting


def blamed(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Peers that faults were logged of."""
    faults = [record for record in caplog.records if record.message == "a peer is at fault"]
    return {vars(record)["peer"] for record in faults}


def sent_by(member: Member) -> int:
    """Bytes of blobs that a member gave, whether it knew their round or not."""
    return member.swarm.statistics.payload_up_bytes + member.swarm.statistics.catch_up_up_bytes


# ---- together


@in_virtual_time
async def test_a_commit_is_held_once_all_its_payloads_came_and_until_it_is_settled(
    party: Party,
) -> None:
    blobs = [payload(number) for number in range(2)]
    commit = commit_of(blobs)
    async with party.members(2) as (one, two):
        introduce([one, two])
        await one.swarm.publish(ROUND, blobs[0])
        assert not one.swarm.holds(commit)  # its own alone
        await two.swarm.publish(ROUND, blobs[1])
        await until(lambda: one.swarm.holds(commit) and two.swarm.holds(commit))
        assert await soon(one.swarm.collect(commit, [(), ()])) == blobs
        one.swarm.settle(ROUND, [entry.digest for entry in commit.entries])
        assert not one.swarm.holds(commit)


@in_virtual_time
async def test_four_swarms_exchange_all_their_payloads_and_hardly_a_byte_twice(
    party: Party,
) -> None:
    blobs = [payload(number) for number in range(4)]
    async with party.members(4) as together:
        introduce(together)
        for member, blob in zip(together, blobs, strict=True):
            assert await member.swarm.publish(ROUND, blob) == sha256(blob)
        await until(
            lambda: all(member.log.digests(ROUND) for member in together)
        )  # nothing is committed before that
        holders = [[peer(number)] for number in range(4)]
        collected = await asyncio.gather(
            *(member.swarm.collect(commit_of(blobs), holders) for member in together)
        )
        assert collected == [blobs] * 4
        size = len(blobs[0])
        for number, member in enumerate(together):
            statistics = member.swarm.statistics
            assert (statistics.payload_down_bytes, statistics.duplicate_bytes) == (3 * size, 0)
            assert 0 < statistics.control_down_bytes < 0.01 * 3 * size
            assert member.swarm.waiting_for == ""
            others = sorted(sha256(blob) for blob in blobs if blob != blobs[number])
            reported = [member.reports.get_nowait() for _ in others]
            assert sorted(digest for _, digests in reported for digest in digests) == others
        assert sum(member.swarm.statistics.payload_up_bytes for member in together) == 12 * size


@in_virtual_time
async def test_gossip_alone_spreads_payloads_and_holding_lists_them(party: Party) -> None:
    blobs = [payload(number, 1000) for number in range(6)]
    async with party.members(6) as together:
        introduce(together)
        for member, blob in zip(together, blobs, strict=True):
            await member.swarm.publish(ROUND, blob)
        for member in together:
            for _ in range(5):
                await soon(member.reports.get())
        assert together[0].swarm.holding(ROUND) == sorted(map(sha256, blobs[1:]))


@in_virtual_time
async def test_settling_keeps_committed_payloads_and_ends_the_offers(party: Party) -> None:
    async with party.members(2) as (one, two):
        introduce([one, two])
        kept, dropped = (
            await one.swarm.publish(ROUND, payload(0)),
            await two.swarm.publish(ROUND, payload(1)),
        )
        await until(lambda: one.log.digests(ROUND) and two.log.digests(ROUND))
        await asyncio.gather(
            *(
                member.swarm.collect(commit_of([payload(0), payload(1)]), [[], []])
                for member in (one, two)
            )
        )
        two.swarm.settle(ROUND, [kept])
        await two.swarm.stop()  # finishes what is being written
        assert [two.log.size(digest) for digest in (kept, dropped)] == [len(payload(0)), None]
        assert two.swarm.holding(ROUND) == []


@in_virtual_time
async def test_a_node_that_missed_the_round_fetches_the_commit_from_whoever_has_it(
    party: Party,
) -> None:
    async with party.members(3) as (one, two, late):
        introduce([one, two, late])
        one.log.put(3, payload(0))
        two.log.put(3, payload(1))
        blobs = [payload(0), payload(1)]
        assert await late.swarm.collect(commit_of(blobs, round=3), [[], []]) == blobs


@in_virtual_time
async def test_payloads_found_after_a_restart_are_reported_and_not_pulled_again(
    party: Party,
    tmp_path: Path,
) -> None:
    PayloadLog(tmp_path / "0", 100, 10**9).put(ROUND, payload(7))
    async with party.members(1) as (alone,):
        introduce([alone])
        assert await alone.swarm.collect(commit_of([payload(7)]), [[]]) == [payload(7)]
        assert alone.swarm.statistics.payload_down_bytes == 0


@in_virtual_time
async def test_a_payload_damaged_on_disk_is_fetched_again(party: Party, tmp_path: Path) -> None:
    file = tmp_path / "1" / str(ROUND) / sha256(payload(0)).hex()
    file.parent.mkdir(parents=True)
    file.write_bytes(b"damaged")
    async with party.members(2) as (one, two):
        one.log.put(ROUND, payload(0))
        assert two.log.digests(ROUND) == [sha256(payload(0))]
        introduce([one, two])
        assert await two.swarm.collect(commit_of([payload(0)]), [[one.remote.peer_id]]) == [
            payload(0)
        ]


# ---- against liars, stallers and the dead


@in_virtual_time
async def test_wrong_bytes_are_blamed_thrown_away_and_fetched_elsewhere(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    truth, forged = payload(0), payload(1)
    async with party.members(2) as (one, honest), party.listening(9, Liar(forged)) as liar:
        introduce([one, honest], liar)
        honest.log.put(ROUND, truth)
        with caplog.at_level(logging.WARNING):
            collecting = asyncio.create_task(
                one.swarm.collect(commit_of([truth]), [[liar.peer_id]])
            )
            assert await soon(collecting) == [truth]
        assert blamed(caplog) == {liar.peer_id[:8]}
        assert one.swarm.statistics.duplicate_bytes == len(forged)
        assert one.log.digests(ROUND) == [sha256(truth)]


@pytest.mark.parametrize("total", [LIMITS.payload_bytes_max + 1, 1])
@in_virtual_time
async def test_a_payload_of_another_size_is_refused_before_memory_is_taken(
    party: Party, total: int
) -> None:
    truth, lying = payload(0), Liar(payload(1), total)
    async with party.members(2) as (one, honest), party.listening(9, lying) as liar:
        introduce([one, honest], liar)
        honest.log.put(ROUND, truth)
        assert await soon(one.swarm.collect(commit_of([truth]), [[liar.peer_id]])) == [truth]
        assert 0 < lying.sent <= 2 * WINDOW_BYTES_FIRST, "sent before it was told to stop"
        await until(lambda: one.swarm.statistics.duplicate_bytes == lying.sent)


@in_virtual_time
async def test_a_stalled_transfer_goes_on_from_another_holder_where_it_stopped(
    party: Party,
) -> None:
    truth, stalling = payload(0), Staller(payload(0))
    async with party.members(2) as (one, honest), party.listening(9, stalling) as staller:
        introduce([one, honest], staller)
        collecting = asyncio.create_task(one.swarm.collect(commit_of([truth]), [[staller.peer_id]]))
        await until(lambda: one.swarm.statistics.payload_down_bytes)
        honest.log.put(ROUND, truth)
        assert await soon(collecting) == [truth]
        assert 0 < stalling.sent < len(truth)
        assert sent_by(honest) == len(truth) - stalling.sent
        assert one.swarm.statistics.duplicate_bytes == 0


@in_virtual_time
async def test_a_holder_that_dies_is_replaced_and_its_part_is_kept(party: Party) -> None:
    truth, staller = payload(0), Staller(payload(0))
    async with party.members(2) as (one, honest):
        async with party.listening(9, staller) as dying:
            introduce([one, honest], dying)
            collecting = asyncio.create_task(
                one.swarm.collect(commit_of([truth]), [[dying.peer_id]])
            )
            await until(lambda: one.swarm.statistics.payload_down_bytes)
            honest.log.put(ROUND, truth)
        assert await soon(collecting) == [truth]
        assert sent_by(honest) == len(truth) - staller.sent


@in_virtual_time
async def test_a_mixture_of_forged_and_true_parts_blames_no_honest_peer_and_is_fetched_again(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    truth, poisoning = payload(0), Staller(payload(1))
    async with party.members(2) as (one, honest), party.listening(9, poisoning) as poisoner:
        introduce([one, honest], poisoner)
        collecting = asyncio.create_task(
            one.swarm.collect(commit_of([truth]), [[poisoner.peer_id]])
        )
        await until(lambda: one.swarm.statistics.payload_down_bytes)
        honest.log.put(ROUND, truth)
        assert await soon(collecting) == [truth]
        assert blamed(caplog) <= {poisoner.peer_id[:8]}
        assert one.swarm.statistics.duplicate_bytes >= len(truth), (
            "all that could not be told apart"
        )


@in_virtual_time
async def test_a_payload_whose_size_was_announced_falsely_is_exchanged_all_the_same(
    party: Party,
) -> None:
    truth = payload(0)
    entry = Entry(peer(0), sha256(truth), len(truth) + 5, 1, 1)
    commit = Commit(RUN, ROUND, 0, (entry,), 0, 0, Digest(bytes(32)))
    async with party.members(2) as (one, holder):
        introduce([one, holder])
        holder.log.put(ROUND, truth)
        collecting = [
            member.swarm.collect(commit, [[holder.remote.peer_id]]) for member in (one, holder)
        ]
        assert await soon(asyncio.gather(*collecting)) == [[truth], [truth]]


# ---- waiting, failing, misuse


@in_virtual_time
async def test_a_wait_names_the_payload_and_its_author_and_can_be_cancelled(party: Party) -> None:
    stalling = Staller(payload(0))
    async with party.members(1) as (alone,), party.listening(9, stalling) as staller:
        introduce([alone], staller)
        collecting = asyncio.create_task(
            alone.swarm.collect(commit_of([payload(0)]), [[staller.peer_id]])
        )
        words = (
            f"round {ROUND} waits for 1 of 1 payloads: {peer(0)[:8]}'s {len(payload(0))} bytes ("
        )
        await until(lambda: alone.swarm.waiting_for.startswith(words))
        assert not collecting.done()
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert alone.swarm.waiting_for == ""
        assert stalling.mesh is not None
        await until(lambda: stalling.mesh.idle)  # it was told


@in_virtual_time
async def test_a_full_disk_ends_every_wait_with_its_reason(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with party.members(2) as (one, two):
        introduce([one, two])
        two.log.put(ROUND, payload(0))

        def full(*_: object, **__: object) -> Digest:
            raise StorageError("cannot write: no space left")

        monkeypatch.setattr(one.log, "put", full)
        failed = asyncio.create_task(one.swarm.failed())
        with pytest.raises(StorageError, match="no space left"):
            await one.swarm.collect(commit_of([payload(0)]), [[two.remote.peer_id]])
        with pytest.raises(StorageError, match="no space left"):
            await failed


@in_virtual_time
async def test_offers_of_another_run_or_out_of_bounds_are_refused(party: Party) -> None:
    async with party.members(2) as (one, two):
        introduce([one, two])
        sender, fine = (
            two.remote.peer_id,
            offered(1, b"x"),
        )
        bad = [
            Offers(run_id="cd" * 16, sender=sender, offers=[fine]),
            Offers(run_id=RUN, sender="nobody", offers=[fine]),
            Offers(run_id=RUN, sender=peer(77), offers=[fine]),
            Offers(
                run_id=RUN, sender=sender, offers=[OfferedPayload(round=ROUND, digest=b"short")]
            ),
            Offers(
                run_id=RUN, sender=sender, offers=[OfferedPayload(round=ROUND, digest=bytes(32))]
            ),
        ]
        for offers in bad:
            with pytest.raises(RemoteProtocolError, match="expected"):
                one.swarm.on_offer(offers)


def full_round(directory: Path) -> Swarm:
    """A swarm of member 0 of three, in an open round. Nothing is ever fetched from its peers."""
    swarm = swarm_over(DeadLink(), PayloadLog(directory, 100, 10**9), [0])
    swarm.set_members({peer(number): () for number in range(3)})
    swarm.open(ROUND)
    return swarm


def lacking(swarm: Swarm, *blobs: bytes) -> list[bool]:
    return [swarm._exchange.knows(sha256(blob)) for blob in blobs]


def offers_of(sender: int, *offers: OfferedPayload) -> Offers:
    return Offers(run_id=RUN, sender=peer(sender), offers=offers)


async def test_a_peer_that_offers_what_no_author_has_signed_takes_no_place(tmp_path: Path) -> None:
    swarm = full_round(tmp_path)
    forged = [offered(2, b"%d" % number, key=1) for number in range(50)]
    unsigned = [
        OfferedPayload(round=ROUND, digest=sha256(b"%d" % number), payload_bytes=1)
        for number in range(50)
    ]
    for flood in (forged, unsigned):
        with pytest.raises(RemoteProtocolError, match="expected"):
            swarm.on_offer(offers_of(1, *flood))
    assert not any(lacking(swarm, *(b"%d" % number for number in range(50))))
    swarm.on_offer(offers_of(1, offered(1, b"one"), offered(2, b"two")))
    assert lacking(swarm, b"one", b"two") == [True, True]


async def test_an_author_has_one_place_and_its_second_payload_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    swarm = full_round(tmp_path)
    many = [offered(1, b"%d" % number) for number in range(50)]
    swarm.on_offer(offers_of(1, *many))
    assert lacking(swarm, *(b"%d" % number for number in range(50))) == [True] + [False] * 49
    swarm.on_offer(offers_of(1, offered(2, b"two")))
    assert lacking(swarm, b"two") == [True]
    proof = vars(next(record for record in caplog.records if "two payloads" in record.message))
    assert proof["peer"] == peer(1)
    assert proof["digests"] == f"{sha256(b'0').hex()},{sha256(b'1').hex()}"


async def test_a_good_offer_after_a_bad_one_in_a_message_is_taken(tmp_path: Path) -> None:
    swarm = full_round(tmp_path)
    with pytest.raises(RemoteProtocolError, match="expected a payload of a member"):
        swarm.on_offer(offers_of(1, offered(9, b"stranger"), offered(2, b"two")))
    assert lacking(swarm, b"stranger", b"two") == [False, True]


async def test_a_flood_of_announcements_is_not_verified_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "CHECKS_PER_SENDER", (0.001, 2))
    swarm = full_round(tmp_path)
    swarm.on_offer(offers_of(1, offered(1, b"one"), offered(2, b"two")))
    with pytest.raises(RemoteProtocolError, match="new announcements per second"):
        swarm.on_offer(offers_of(1, offered(0, b"zero")))
    swarm.on_offer(offers_of(1, offered(2, b"two")))
    swarm.on_offer(offers_of(2, offered(0, b"zero")))
    assert lacking(swarm, b"zero") == [True]


@in_virtual_time
async def test_reads_that_make_no_sense_are_refused(party: Party) -> None:
    async with party.members(1) as (one,):
        digest = one.log.put(ROUND, b"payload")
        assert await one.swarm.read(digest, 3) == (7, b"load")
        assert await one.swarm.read(digest, 0, 3) == (7, b"pay")
        assert await one.swarm.read(Digest(bytes(32)), 0) is None
        with pytest.raises(RemoteProtocolError, match="offset below 7, got 7"):
            await one.swarm.read(digest, 7)


@in_virtual_time
async def test_a_collect_that_cannot_be_meant_is_our_bug(party: Party) -> None:
    async with party.members(1) as (one,):
        with pytest.raises(LocalProtocolError, match="holders of 1 payloads, got 0"):
            await one.swarm.collect(commit_of([b"payload"]), [])
        waiting = asyncio.create_task(one.swarm.collect(commit_of([b"payload"]), [[]]))
        await until(lambda: one.swarm.waiting_for)
        with pytest.raises(LocalProtocolError, match="one collect of round 5"):
            await one.swarm.collect(commit_of([b"payload"]), [[]])
        waiting.cancel()


class DeadLink:
    """A link on which nothing ever succeeds."""

    def __init__(self) -> None:
        self.offers: asyncio.Queue[Offers] = asyncio.Queue()
        self.kept: list[PeerAddress] = []
        self.idle = False

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        return ("dead:1",)

    async def stop(self) -> None:
        pass

    def keep(self, remotes: Sequence[PeerAddress]) -> None:
        self.kept = list(remotes)

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        self.offers.put_nowait(offers)
        raise UnavailableError("dead")

    async def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        raise UnavailableError("dead")
        yield

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        raise AssertionError("nothing is fetched")

    @property
    def traffic(self) -> Traffic:
        return Traffic()


class Held(DeadLink):
    """A link that takes offers, and on which a fetch waits until it is withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[PeerId] = []
        self.withdrawn: list[PeerId] = []
        self._ends: defaultdict[PeerId, asyncio.Event] = defaultdict(asyncio.Event)

    async def offer(self, to: PeerAddress, offers: Offers) -> None:
        self.offers.put_nowait(offers)

    async def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        self.asked.append(source.peer_id)
        await self._ends[source.peer_id].wait()
        raise WithdrawnError("withdrawn")
        yield

    def withdraw(self, source: PeerId, digest: Digest, unless_soon: bool = False) -> None:
        self.withdrawn.append(source)
        self._ends[source].set()


def swarm_over(link: PeerNetwork, log: PayloadLog, clock: list[int]) -> Swarm:
    return Swarm(
        peer(0),
        RUN,
        LIMITS,
        log,
        link,
        check=Unchecked(),
        key=key_of(0),
        report_holding=lambda *_: None,
        clock_ms=lambda: clock[0],
    )


def offered(author: int, blob: bytes, round: int = ROUND, key: int | None = None) -> OfferedPayload:
    """The offer of a payload of this author; `key` is the number of the key that signs it."""
    signer = key_of(author if key is None else key)
    made = announce(signer, RUN, round, sha256(blob), size=len(blob), samples=1)
    return offered_payload(replace(made, author_key=public_bytes(key_of(author))))


async def test_an_offer_that_fails_is_made_again_until_the_round_is_settled(tmp_path: Path) -> None:
    clock, link = [0], DeadLink()
    log = PayloadLog(tmp_path, 100, 10**9)
    swarm = swarm_over(link, log, clock)
    await swarm.start()
    swarm.set_members({peer(0): (), peer(1): ("dead:1",)})
    swarm.open(ROUND)
    digest = await swarm.publish(ROUND, b"payload")
    for _ in range(3):
        offers = await soon(link.offers.get())
        assert [offer.digest for offer in offers.offers] == [digest]
        clock[0] += 60_000
    swarm.settle(ROUND, [])
    await swarm.stop()
    assert link.offers.empty()
    assert log.digests(ROUND) == []


async def test_an_idle_node_tells_its_peers_and_goes_to_one_that_is(tmp_path: Path) -> None:
    link, log = Held(), PayloadLog(tmp_path, 100, 10**9)
    clock = [0]
    swarm = swarm_over(link, log, clock)
    await swarm.start()
    swarm.set_members({peer(number): (f"held:{number}",) for number in range(3)})
    swarm.open(ROUND)
    await swarm.publish(ROUND, b"payload")
    told = [await soon(link.offers.get()) for _ in range(2)]
    assert [(len(offers.offers), offers.idle) for offers in told] == [(1, False), (1, False)]
    link.idle = True
    told = [await soon(link.offers.get()) for _ in range(2)]
    assert [(len(offers.offers), offers.idle) for offers in told] == [(0, True), (0, True)]
    wanted = offered(1, b"theirs")
    for number in (1, 2):
        swarm.on_offer(Offers(run_id=RUN, sender=peer(number), offers=[wanted]))
    await until(lambda: link.asked)
    (asked,) = link.asked
    other = peer(2) if asked == peer(1) else peer(1)
    clock[0] += 1000
    swarm.on_offer(Offers(run_id=RUN, sender=other, idle=True))
    assert link.withdrawn == [asked]
    await until(lambda: len(link.asked) == 2)
    assert link.asked[1] == other
    await swarm.stop()


async def test_links_are_kept_to_relays_first_and_never_to_this_node(
    tmp_path: Path,
) -> None:
    link = DeadLink()
    swarm = swarm_over(link, PayloadLog(tmp_path, 100, 10**9), [0])
    swarm.set_members({peer(0): ("own:1",), peer(1): ("dead:1",)}, {peer(2): ("relay:1",)})
    assert link.kept == [PeerAddress(peer(2), ("relay:1",)), PeerAddress(peer(1), ("dead:1",))]
    assert swarm.peers == [peer(1)], "a relay is no member"


@in_virtual_time
async def test_bytes_of_undecided_rounds_are_payload_and_all_others_catch_up(
    party: Party,
) -> None:
    async with party.members(2) as (one, two):
        introduce([one, two])
        fresh, old = await one.swarm.publish(ROUND, payload(0)), one.log.put(3, payload(1, 1000))
        assert await soon(two.swarm.collect(commit_of([payload(0)]), [[one.remote.peer_id]])) == [
            payload(0)
        ]
        async with aclosing(two.swarm.fetch(one.remote.peer_id, BlobRange(old))) as parts:
            assert b"".join([part.data async for part in parts]) == payload(1, 1000)
        assert [one.swarm.purpose(digest) for digest in (fresh, old)] == [
            Purpose.PAYLOAD,
            Purpose.CATCH_UP,
        ]
        up, down = one.swarm.statistics, two.swarm.statistics
        assert (up.payload_up_bytes, up.catch_up_up_bytes) == (PAYLOAD_BYTES, 1000)
        assert (down.payload_down_bytes, down.catch_up_down_bytes) == (PAYLOAD_BYTES, 1000)
        one.swarm.settle(ROUND, [fresh])
        assert one.swarm.purpose(fresh) is Purpose.CATCH_UP


# ---- payloads that count for nothing


class Distrust(Unchecked):
    """Passes the payloads in `good`."""

    def __init__(self, *good: bytes) -> None:
        super().__init__()
        self.good = good

    def check(self, round: int, payload: Blob) -> PeerId:
        if bytes(payload) not in self.good:
            raise RemoteProtocolError("expected a payload, got junk")
        return NOBODY


@in_virtual_time
async def test_junk_is_never_held_reported_or_offered_and_its_sender_is_blamed(
    party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    good, junk = payload(0), payload(1)
    async with party.members(3, Distrust(good)) as (one, two, hostile):
        introduce([one, two, hostile])
        with caplog.at_level(logging.WARNING):
            await hostile.swarm.publish(ROUND, junk)
            await until(lambda: blamed(caplog) == {peer(2)[:8]})
        await two.swarm.publish(ROUND, good)
        assert await soon(one.reports.get()) == (ROUND, [sha256(good)])
        assert one.reports.empty()
        assert two.reports.empty()
        assert one.swarm.holding(ROUND) == [sha256(good)]
        assert sha256(junk) not in one.log.digests(ROUND) + two.log.digests(ROUND)


@in_virtual_time
async def test_junk_that_a_commit_names_is_fetched_all_the_same(party: Party) -> None:
    """It counts for nothing on every node, and none may be stuck without it."""
    junk = payload(1)
    async with party.members(2, Distrust()) as (one, hostile):
        introduce([one, hostile])
        hostile.log.put(ROUND, junk)
        assert await soon(one.swarm.collect(commit_of([junk]), [[peer(1)]])) == [junk]
