"""Promises of the swarm: real gRPC on loopback, with peers that lie, stall and die."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.links.base import LinkServer, Remote, Traffic
from node.links.grpc import GrpcLink, Timeouts
from node.payload_log import PayloadLog
from node.swarm import Swarm, SwarmLimits
from protocol.commits import Commit, Entry
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError, UnavailableError
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.limits import OFFERS_MAX, PART_BYTES
from protocol.wire_pb2 import OfferedPayload, Offers, Part

RUN = RunId("ab" * 16)
LIMITS = SwarmLimits(payload_bytes_max=4 * PART_BYTES, neighbours=4, stall_ms=300)
SHORT = Timeouts(offer=1.0, progress=0.5)
ROUND = 5


def peer(number: int) -> PeerId:
    return PeerId(hashlib.sha256(f"peer {number}".encode()).hexdigest()[:32])


def payload(number: int, size: int = 2 * PART_BYTES + 77) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(size)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def commit_of(blobs: Sequence[bytes], round: int = ROUND) -> Commit:
    entries = tuple(Entry(peer(number), sha256(blob), len(blob), 1, 1) for number, blob in enumerate(blobs))
    return Commit(RUN, round, 0, entries, 0, 0, Digest(bytes(32)))


@dataclass
class Member:
    swarm: Swarm
    log: PayloadLog
    remote: Remote
    reports: "asyncio.Queue[tuple[int, list[Digest]]]"


@asynccontextmanager
async def members(directory: Path, count: int) -> AsyncIterator[list[Member]]:
    """Swarms that listen, not yet introduced to each other."""
    together: list[Member] = []
    try:
        for number in range(count):
            log = PayloadLog(directory / str(number), 100, 10**9)
            reports: asyncio.Queue[tuple[int, list[Digest]]] = asyncio.Queue()
            swarm = Swarm(
                peer(number),
                RUN,
                LIMITS,
                log,
                GrpcLink("127.0.0.1:0", timeouts=SHORT),
                report_holding=lambda round, digests, reports=reports: reports.put_nowait((round, digests)),
                clock_ms=now_ms,
            )
            remote = Remote(peer(number), await swarm.start())
            together.append(Member(swarm, log, remote, reports))
        yield together
    finally:
        for member in together:
            await member.swarm.stop()


def introduce(together: Sequence[Member], *others: Remote) -> None:
    """Everybody learns everybody's address and opens the round."""
    remotes = [*(member.remote for member in together), *others]
    for member in together:
        member.swarm.set_members({remote.peer_id: remote.addresses for remote in remotes})
        member.swarm.open(ROUND)


# ---- peers that do not behave


class Liar:
    """Serves `blob` as whatever it is asked for, and says that it is `total` bytes long."""

    def __init__(self, blob: bytes, total: int | None = None) -> None:
        self.blob, self.total = blob, total or len(blob)
        self.asked = asyncio.Event()
        self.offsets: list[int] = []

    def on_offer(self, offers: Offers) -> None:
        pass

    async def read(self, digest: bytes, offset: int) -> tuple[int, bytes] | None:
        self.asked.set()
        self.offsets.append(offset)
        return self.total, self.blob[offset : offset + PART_BYTES]


class Staller(Liar):
    """Serves the first part and then nothing any more."""

    async def read(self, digest: bytes, offset: int) -> tuple[int, bytes] | None:
        if offset:
            self.asked.set()
            await asyncio.Event().wait()
        return await super().read(digest, offset)


@asynccontextmanager
async def listening(number: int, server: LinkServer) -> AsyncIterator[Remote]:
    link = GrpcLink("127.0.0.1:0")
    try:
        yield Remote(peer(number), await link.start(server))
    finally:
        await link.stop()


# ---- together


async def test_four_swarms_exchange_all_their_payloads_and_hardly_a_byte_twice(tmp_path: Path) -> None:
    blobs = [payload(number) for number in range(4)]
    async with members(tmp_path, 4) as together:
        introduce(together)
        for member, blob in zip(together, blobs, strict=True):
            assert member.swarm.publish(ROUND, blob) == sha256(blob)
        holders = [[peer(number)] for number in range(4)]
        collected = await asyncio.gather(*(member.swarm.collect(commit_of(blobs), holders) for member in together))
        assert collected == [blobs] * 4
        size = len(blobs[0])
        for number, member in enumerate(together):
            statistics = member.swarm.statistics
            assert (statistics.payload_down_bytes, statistics.duplicate_bytes) == (3 * size, 0)
            assert 0 < statistics.other_down_bytes < 0.01 * 3 * size
            assert member.swarm.waiting_for == ""
            others = sorted(sha256(blob) for blob in blobs if blob != blobs[number])
            reported = [member.reports.get_nowait() for _ in others]
            assert sorted(digest for _, digests in reported for digest in digests) == others
        assert sum(member.swarm.statistics.payload_up_bytes for member in together) == 12 * size


async def test_gossip_alone_spreads_payloads_and_holding_lists_them(tmp_path: Path) -> None:
    blobs = [payload(number, 1000) for number in range(6)]
    async with members(tmp_path, 6) as together:
        introduce(together)
        for member, blob in zip(together, blobs, strict=True):
            member.swarm.publish(ROUND, blob)
        for member in together:
            for _ in range(5):
                await asyncio.wait_for(member.reports.get(), 20)
        assert together[0].swarm.holding(ROUND) == sorted(map(sha256, blobs[1:]))


async def test_settling_keeps_what_was_committed_and_ends_the_offers(tmp_path: Path) -> None:
    async with members(tmp_path, 2) as (one, two):
        introduce([one, two])
        kept, dropped = one.swarm.publish(ROUND, payload(0)), two.swarm.publish(ROUND, payload(1))
        await asyncio.gather(
            *(member.swarm.collect(commit_of([payload(0), payload(1)]), [[], []]) for member in (one, two))
        )
        two.swarm.settle(ROUND, [kept])
        await two.swarm.stop()  # finishes what is being written
        assert [two.log.size(digest) for digest in (kept, dropped)] == [len(payload(0)), None]
        assert two.swarm.holding(ROUND) == []


async def test_a_node_that_missed_the_round_fetches_the_commit_from_whoever_has_it(tmp_path: Path) -> None:
    async with members(tmp_path, 3) as (one, two, late):
        introduce([one, two, late])
        one.log.put(3, payload(0))
        two.log.put(3, payload(1))
        blobs = [payload(0), payload(1)]
        assert await late.swarm.collect(commit_of(blobs, round=3), [[], []]) == blobs


async def test_payloads_found_after_a_restart_are_reported_and_not_pulled_again(tmp_path: Path) -> None:
    PayloadLog(tmp_path / "0", 100, 10**9).put(ROUND, payload(7))
    async with members(tmp_path, 1) as (alone,):
        introduce([alone])
        assert await alone.swarm.collect(commit_of([payload(7)]), [[]]) == [payload(7)]
        assert alone.swarm.statistics.payload_down_bytes == 0


async def test_a_payload_damaged_on_disk_is_fetched_again(tmp_path: Path) -> None:
    async with members(tmp_path, 2) as (one, two):
        one.log.put(ROUND, payload(0))
        file = tmp_path / "1" / str(ROUND) / sha256(payload(0)).hex()
        file.parent.mkdir()
        file.write_bytes(b"damaged")
        two.log._scan()
        introduce([one, two])
        assert await two.swarm.collect(commit_of([payload(0)]), [[one.remote.peer_id]]) == [payload(0)]


# ---- against liars, stallers and the dead


async def test_wrong_bytes_are_blamed_thrown_away_and_fetched_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    truth, forged = payload(0), payload(1)
    async with members(tmp_path, 2) as (one, honest), listening(9, Liar(forged)) as liar:
        introduce([one, honest], liar)
        honest.log.put(ROUND, truth)
        with caplog.at_level(logging.WARNING):
            collecting = asyncio.create_task(one.swarm.collect(commit_of([truth]), [[liar.peer_id]]))
            assert await asyncio.wait_for(collecting, 20) == [truth]
        assert f"peer {liar.peer_id[:8]}: payload" in caplog.text
        assert f"peer {honest.remote.peer_id[:8]}" not in caplog.text
        assert one.swarm.statistics.duplicate_bytes == len(forged)
        assert one.log.digests(ROUND) == [sha256(truth)]


@pytest.mark.parametrize("total", [LIMITS.payload_bytes_max + 1, 1])
async def test_a_payload_of_another_size_is_refused_before_memory_is_taken(tmp_path: Path, total: int) -> None:
    truth = payload(0)
    async with members(tmp_path, 2) as (one, honest), listening(9, Liar(payload(1), total)) as liar:
        introduce([one, honest], liar)
        honest.log.put(ROUND, truth)
        assert await asyncio.wait_for(one.swarm.collect(commit_of([truth]), [[liar.peer_id]]), 20) == [truth]
        assert one.swarm.statistics.duplicate_bytes == PART_BYTES  # no second part was taken


async def test_a_stalled_transfer_goes_on_from_another_holder_where_it_stopped(tmp_path: Path) -> None:
    truth = payload(0)
    async with members(tmp_path, 2) as (one, honest), listening(9, Staller(truth)) as staller:
        introduce([one, honest], staller)
        collecting = asyncio.create_task(one.swarm.collect(commit_of([truth]), [[staller.peer_id]]))
        honest.log.put(ROUND, truth)
        assert await asyncio.wait_for(collecting, 20) == [truth]
        assert honest.swarm.statistics.payload_up_bytes == len(truth) - PART_BYTES
        assert one.swarm.statistics.duplicate_bytes == 0


async def test_a_holder_that_dies_is_replaced_and_its_part_is_kept(tmp_path: Path) -> None:
    truth, staller = payload(0), Staller(payload(0))
    async with members(tmp_path, 2) as (one, honest):
        async with listening(9, staller) as dying:
            introduce([one, honest], dying)
            collecting = asyncio.create_task(one.swarm.collect(commit_of([truth]), [[dying.peer_id]]))
            await staller.asked.wait()
        honest.log.put(ROUND, truth)
        assert await asyncio.wait_for(collecting, 20) == [truth]
        assert honest.swarm.statistics.payload_up_bytes >= len(truth) - PART_BYTES


async def test_forged_parts_mixed_with_true_ones_blame_nobody_and_end_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    truth = payload(0)
    async with members(tmp_path, 2) as (one, honest), listening(9, Staller(payload(1))) as poisoner:
        introduce([one, honest], poisoner)
        collecting = asyncio.create_task(one.swarm.collect(commit_of([truth]), [[poisoner.peer_id]]))
        honest.log.put(ROUND, truth)
        assert await asyncio.wait_for(collecting, 20) == [truth]
        assert honest.remote.peer_id[:8] not in caplog.text
        assert one.swarm.statistics.duplicate_bytes >= len(truth)


async def test_a_size_that_the_author_announced_falsely_stops_nobody(tmp_path: Path) -> None:
    truth = payload(0)
    entry = Entry(peer(0), sha256(truth), len(truth) + 5, 1, 1)
    commit = Commit(RUN, ROUND, 0, (entry,), 0, 0, Digest(bytes(32)))
    async with members(tmp_path, 2) as (one, holder):
        introduce([one, holder])
        holder.log.put(ROUND, truth)
        collecting = [member.swarm.collect(commit, [[holder.remote.peer_id]]) for member in (one, holder)]
        assert await asyncio.wait_for(asyncio.gather(*collecting), 20) == [[truth], [truth]]


# ---- waiting, failing, misuse


async def test_waiting_says_for_what_and_for_whom_and_can_be_cancelled(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (alone,), listening(9, Staller(payload(0))) as staller:
        introduce([alone], staller)
        server_called = asyncio.create_task(alone.swarm.collect(commit_of([payload(0)]), [[staller.peer_id]]))
        done, _ = await asyncio.wait({server_called}, timeout=0.2)
        assert not done
        words = alone.swarm.waiting_for
        assert words.startswith(f"round {ROUND} waits for 1 of 1 payloads: {peer(0)[:8]}'s {len(payload(0))} bytes (")
        server_called.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server_called
        assert alone.swarm.waiting_for == ""
        assert alone.swarm._pulls._tasks == {}


async def test_a_full_disk_ends_every_wait_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with members(tmp_path, 2) as (one, two):
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


async def test_offers_of_another_run_or_out_of_bounds_are_refused(tmp_path: Path) -> None:
    async with members(tmp_path, 2) as (one, two):
        introduce([one, two])
        sender, fine = two.remote.peer_id, OfferedPayload(round=ROUND, digest=bytes(32), payload_bytes=1)
        bad = [
            Offers(run_id="cd" * 16, sender=sender, offers=[fine]),
            Offers(run_id=RUN, sender="nobody", offers=[fine]),
            Offers(run_id=RUN, sender=peer(77), offers=[fine]),
            Offers(run_id=RUN, sender=sender, offers=[OfferedPayload(round=ROUND, digest=b"short")]),
            Offers(run_id=RUN, sender=sender, offers=[OfferedPayload(round=ROUND, digest=bytes(32))]),
            Offers(run_id=RUN, sender=sender, offers=[fine] * (OFFERS_MAX + 1)),
        ]
        for offers in bad:
            with pytest.raises(RemoteProtocolError, match="expected"):
                one.swarm.on_offer(offers)


async def test_reads_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (one,):
        digest = one.log.put(ROUND, b"payload")
        assert await one.swarm.read(digest, 3) == (7, b"load")
        assert await one.swarm.read(bytes(32), 0) is None
        for name, offset in ((b"short", 0), (digest, 7)):
            with pytest.raises(RemoteProtocolError, match="expected"):
                await one.swarm.read(name, offset)


async def test_a_collect_that_cannot_be_meant_is_our_bug(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (one,):
        with pytest.raises(LocalProtocolError, match="holders of 1 entries, got 0"):
            await one.swarm.collect(commit_of([b"payload"]), [])
        waiting = asyncio.create_task(one.swarm.collect(commit_of([b"payload"]), [[]]))
        await asyncio.wait({waiting}, timeout=0.05)
        with pytest.raises(LocalProtocolError, match="one collect of round 5"):
            await one.swarm.collect(commit_of([b"payload"]), [[]])
        waiting.cancel()


class DeadLink:
    """A link on which nothing ever succeeds."""

    def __init__(self) -> None:
        self.offers: asyncio.Queue[Offers] = asyncio.Queue()

    async def start(self, server: LinkServer) -> tuple[str, ...]:
        return ("dead:1",)

    async def stop(self) -> None:
        pass

    async def offer(self, to: Remote, offers: Offers) -> None:
        self.offers.put_nowait(offers)
        raise UnavailableError("dead")

    async def fetch(self, source: Remote, digest: Digest, offset: int) -> AsyncGenerator[Part, None]:
        raise UnavailableError("dead")
        yield Part()

    @property
    def traffic(self) -> Traffic:
        return Traffic()


async def test_an_offer_that_fails_is_made_again_until_the_round_is_settled(tmp_path: Path) -> None:
    clock, link = [0], DeadLink()
    log = PayloadLog(tmp_path, 100, 10**9)
    swarm = Swarm(peer(0), RUN, LIMITS, log, link, report_holding=lambda *_: None, clock_ms=lambda: clock[0])
    await swarm.start()
    swarm.set_members({peer(0): (), peer(1): ("dead:1",)})
    swarm.open(ROUND)
    digest = swarm.publish(ROUND, b"payload")
    for _ in range(3):
        offers = await asyncio.wait_for(link.offers.get(), 20)
        assert [offer.digest for offer in offers.offers] == [digest]
        clock[0] += 60_000
    swarm.settle(ROUND, [])
    await swarm.stop()
    assert link.offers.empty()
    assert log.digests(ROUND) == []
