"""The archive: complete from the first round on as far as anybody gives payloads, over restarts,
and within its bytes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.members import MemberList
from node.gossip.payload_log import PayloadLog
from node.links.frames import Part
from node.links.network import BlobRange, NotHeldError, PeerAddress, Purpose
from node.relay import archive as archiving
from node.relay.archive import ARCHIVE_NAME, Archive
from protocol import wire_pb2 as wire
from protocol.codec.chain import Void, sign_entry
from protocol.codec.commit_sums import RangeSum, Sums
from protocol.codec.commits import Commit, Entry, genesis_digest, sign_commit
from protocol.errors import UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, sha256
from protocol.run_info import RunInfo
from protocol.runfile import run_id
from protocol.sums.part_list import list_of
from tests.support.summed import sums_of
from tests.support.tiny import tiny_spec
from tests.support.waiting import until

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SPEC = tiny_spec()
INFO = RunInfo(SPEC, run_id(SPEC, public_bytes(KEY)), public_bytes(KEY))
OWN, LIAR, GIVER = (PeerId(letter * 32) for letter in "abc")
ROUNDS = 6


def payload(round: int) -> bytes:
    return b"payload of round %d" % round


class Peers:
    """The network: what each peer holds."""

    def __init__(self) -> None:
        self.held: dict[PeerId, dict[Digest, bytes]] = {GIVER: {}, LIAR: {}}
        self.asked: list[Digest] = []
        self.sources: list[PeerId] = []
        self.silent: set[PeerId] = set()

    def give(self, round: int, peer: PeerId = GIVER) -> None:
        self.held[peer][sha256(payload(round))] = payload(round)

    async def fetch(
        self, source: PeerAddress, blob: BlobRange, purpose: Purpose
    ) -> AsyncGenerator[Part, None]:
        self.asked.append(blob.digest)
        self.sources.append(source.peer_id)
        if source.peer_id in self.silent:
            await asyncio.Event().wait()
        assert purpose is Purpose.CATCH_UP
        found = self.held[source.peer_id].get(blob.digest)
        if found is None:
            raise NotHeldError("not held")
        yield Part(0, 0, len(found), found)


class Log:
    """The coordinator's log of `ROUNDS` commits, one payload each."""

    def __init__(self) -> None:
        self.voids: dict[int, wire.ChainEntry] = {}
        self.roots: dict[int, tuple[Digest, Sums]] = {}
        self.rounds = ROUNDS

    async def fetch(self, after_round: int) -> wire.Commits:
        rounds = range(after_round + 1, self.rounds)
        return wire.Commits(commits=[self._commit(round) for round in rounds])

    def _commit(self, round: int) -> wire.Committed:
        digest, sums = self.roots.get(round, (sha256(payload(round)), None))
        entries = (Entry(GIVER, digest, 1, 1, 1),)
        previous = genesis_digest(INFO.run_id)
        commit = Commit(INFO.run_id, round, round, entries, 1, 2, previous, sums=sums)
        signed = sign_commit(commit, KEY)
        voids = [self.voids[round]] if round in self.voids else []
        return wire.Committed(body=signed.body, signature=signed.signature, voids=voids)


def opened(directory: Path, peers: Peers, bytes_max: int = 10**9) -> tuple[Archive, PayloadLog]:
    payloads = PayloadLog(directory / "payloads", 10**9, bytes_max)
    members = MemberList()
    members.update(
        wire.Members(
            members=[
                wire.Member(peer_id=OWN, relay=True),
                wire.Member(peer_id=LIAR),
                wire.Member(peer_id=GIVER, relay=True),
            ]
        )
    )

    async def collected(round: int) -> None:
        await asyncio.sleep(0)

    archive = Archive(
        INFO,
        OWN,
        payloads,
        peers,  # type: ignore[arg-type]
        members,
        collected=collected,
        path=directory / ARCHIVE_NAME,
    )
    return archive, payloads


@asynccontextmanager
async def filling(archive: Archive, log: Log) -> AsyncIterator[None]:
    task = asyncio.create_task(archive.fill(log.fetch))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "POLL_S", 0.01)
    monkeypatch.setattr(archiving, "RETRY_S", 0.02)


@pytest.fixture
def peers() -> Peers:
    known = Peers()
    for round in range(ROUNDS):
        known.give(round)
    return known


async def test_what_came_before_it_is_fetched_from_members_and_other_relays(
    tmp_path: Path, peers: Peers
) -> None:
    archive, payloads = opened(tmp_path, peers)
    async with filling(archive, Log()):
        await until(lambda: archive.document()["round"] == ROUNDS - 1)
    assert archive.document() == {
        "first_round": 0,
        "round": ROUNDS - 1,
        "missing": 0,
        "rounds_dropped": 0,
    }
    assert [payloads.digests(round) for round in range(ROUNDS)] == [
        [sha256(payload(round))] for round in range(ROUNDS)
    ]


async def test_after_a_restart_it_goes_on_and_asks_for_nothing_again(
    tmp_path: Path, peers: Peers
) -> None:
    archive, _ = opened(tmp_path, peers)
    log = Log()
    log.rounds = 4
    async with filling(archive, log):
        await until(lambda: archive.document()["round"] == 3)
        await until((tmp_path / ARCHIVE_NAME).exists)
    archive, _ = opened(tmp_path, peers)
    peers.asked, log.rounds = [], ROUNDS
    async with filling(archive, log):
        await until(lambda: archive.document()["round"] == ROUNDS - 1)
    assert set(peers.asked) == {sha256(payload(4)), sha256(payload(5))}


async def test_what_nobody_gives_is_noted_and_asked_for_again(tmp_path: Path, peers: Peers) -> None:
    del peers.held[GIVER][sha256(payload(2))]
    archive, payloads = opened(tmp_path, peers)
    async with filling(archive, Log()):
        await until(lambda: archive.document()["round"] == ROUNDS - 1)
        assert archive.document()["missing"] == 1
        with pytest.raises(UnavailableError, match="of round 2 from one of 2 peers, got it from"):
            await archive.payload(2, sha256(payload(2)))
        peers.give(2)
        await until(lambda: archive.document()["missing"] == 0)
    assert payloads.digests(2)


async def test_a_liar_s_bytes_are_not_kept_and_another_peer_is_asked(
    tmp_path: Path, peers: Peers
) -> None:
    digest = sha256(payload(1))
    peers.held[LIAR][digest] = b"other bytes"
    archive, payloads = opened(tmp_path, peers)
    archive._favourite = LIAR  # asked first
    assert await archive.payload(1, digest) == payload(1)
    assert payloads.get(digest) == payload(1)
    assert len(peers.asked) == 2


async def test_a_peer_that_sends_nothing_in_time_is_asked_last_from_then_on(
    tmp_path: Path, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "FETCH_S", 0.05)
    peers.silent.add(LIAR)
    archive, _ = opened(tmp_path, peers)
    archive._favourite = LIAR
    assert await archive.payload(1, sha256(payload(1))) == payload(1)
    peers.sources = []
    archive._favourite = None
    assert await archive.payload(2, sha256(payload(2))) == payload(2)
    assert peers.sources == [GIVER]


async def test_of_a_round_with_sums_the_results_are_fetched_and_lists_and_parts_stay(
    tmp_path: Path, peers: Peers
) -> None:
    """Whoever adds again, or audits work, asks for these: from here, or anew from members."""
    parts, result = [b"part 0", b"part 1"], b"the result of range 0"
    listed = list_of(parts)
    sums = sums_of(2, (RangeSum(0, sha256(result), len(result)),), ())
    log = Log()
    log.roots[2] = (listed.root, sums)
    peers.held[GIVER] |= {sha256(blob): blob for blob in (result, listed.blob, parts[1])}
    archive, payloads = opened(tmp_path, peers)
    payloads.put(2, listed.blob)
    payloads.put(2, parts[0])
    async with filling(archive, log):
        await until(lambda: archive.document()["round"] == ROUNDS - 1)
        assert archive.document()["missing"] == 0
        kept = [sha256(blob) for blob in (result, listed.blob, parts[0])]
        assert payloads.digests(2) == sorted(kept)
        assert sha256(parts[1]) not in peers.asked
        assert await archive.payload(2, sha256(parts[1])) == parts[1]
        assert payloads.digests(2) == sorted([*kept, sha256(parts[1])])


async def test_a_void_payload_is_not_asked_for(tmp_path: Path, peers: Peers) -> None:
    log, digest = Log(), sha256(payload(3))
    signed = sign_entry(
        Void(INFO.run_id, 3, digest, "nobody has it", genesis_digest(INFO.run_id)), KEY
    )
    log.voids[3] = wire.ChainEntry(body=signed.body, signature=signed.signature)
    archive, _ = opened(tmp_path, peers)
    async with filling(archive, log):
        await until(lambda: archive.document()["round"] == ROUNDS - 1)
    assert digest not in peers.asked
    assert archive.document()["missing"] == 0


async def test_a_full_archive_drops_its_oldest_rounds_and_says_so(
    tmp_path: Path, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    archive, payloads = opened(tmp_path, peers, bytes_max=2 * len(payload(0)))
    async with filling(archive, Log()):
        await until(lambda: archive.document()["round"] == ROUNDS - 1)
    document = archive.document()
    assert (document["first_round"], document["rounds_dropped"]) == (ROUNDS - 2, ROUNDS - 2)
    assert payloads.held_bytes == 2 * len(payload(0))
    assert sum("can no longer be audited" in each.message for each in caplog.records) == 1


async def test_the_note_of_another_run_or_a_damaged_one_begins_again(
    tmp_path: Path, peers: Peers
) -> None:
    for text in ("{", '{"run_id": "0", "round": 5}'):
        (tmp_path / ARCHIVE_NAME).write_text(text)
        archive, _ = opened(tmp_path, peers)
        assert archive.document()["round"] == -1
