"""Catching up by a snapshot, over real links, and a state that a kill does not change."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links import kept_peers
from node.links.frames import Part
from node.links.mesh import Mesh
from node.links.network import BlobRange, PeerAddress, Purpose, ReadOnlyPeer
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.replica import replica as replica_module
from node.replica import snapshot
from node.replica.canonical import canonical_size
from node.replica.demo import DemoReplica
from node.replica.digest import state_digest
from node.replica.factory import replica_for
from node.replica.position import Position
from node.replica.replica import STATE_VERSION
from node.replica.snapshot import SNAPSHOTS_HELD_MAX, SNAPSHOTS_KEPT, Partial, Snapshots
from node.round.catching_up.catch_up import CatchUp, NotFound
from node.round.catching_up.landmarks import SNAPSHOTS_TRIED, SnapshotJump
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.codec.chain import Restart, entry_digest, sign_entry
from protocol.codec.commits import Commit, Entry, commit_digest, genesis_digest, sign_commit
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, sha256
from protocol.limits import COMMITS_PER_REPLY, PART_BYTES
from protocol.run_info import RunInfo
from protocol.runfile import AlgorithmSpec, RunSpec
from protocol.sections.retention import RetentionSpec
from tests.node.links.net import RUN, clock_ms, grpc, key_of, peer_of
from tests.node.test_process import NodeTask, coordinator_of
from tests.node.test_trainer import Stage, ended, playing
from tests.support.tiny import CONFIG, DEMO, tiny_corpus, tiny_spec
from tests.support.waiting import PATIENCE_SECONDS, until

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NUMBERS = {peer_of(number): number for number in range(4)}
AUTHOR, LIAR, HONEST, THIRD = sorted(NUMBERS)
GENESIS = Position(0, genesis_digest(RUN), -1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback nobody needs the patience of the internet."""
    monkeypatch.setattr(kept_peers, "HEAD_START_S", 0.05)
    monkeypatch.setattr(kept_peers, "BACKOFF_MS", (50, 500))


# ---- a log with recorded snapshots, and members that serve them


def middle_spec() -> RunSpec:
    """A model whose snapshot has eight parts."""
    spec = tiny_spec()
    model = spec.model.model_copy(
        update={"config": {**CONFIG, "hidden_size": 192, "intermediate_size": 512}}
    )
    retention = RetentionSpec(log_rounds=5, snapshot_every=5)
    return spec.model_copy(update={"model": model, "retention": retention})


class Log:
    """A coordinator's log of `count` commits; the states after them are made up, and recorded at
    snapshots.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self.snapshots = Snapshots(directory)
        self.replica = DemoReplica(middle_spec(), RUN, torch.device("cpu"), 1)
        self.messages: list[wire.Committed] = []
        self.tail: list[wire.ChainEntry] = []
        self._head = genesis_digest(RUN)
        self.grow(count)

    def grow(self, count: int) -> None:
        """Add `count` commits."""
        for round in range(len(self.messages), len(self.messages) + count):
            entry = Entry(AUTHOR, sha256(str(round).encode()), 100, 1, 1)
            commit = Commit(RUN, round, round, (entry,), 1, 2, self._head)
            self._head, signed = commit_digest(commit), sign_commit(commit, KEY)
            message = wire.Committed(body=signed.body, signature=signed.signature)
            if (round + 1) % 5 == 0:
                next(iter(self.replica.committed.values())).add_(1)
                message.snapshot_sha256 = self.snapshots.write(round, self.replica.committed)
                message.state_digest, message.digest_reports = (
                    self.replica.adopt(self.path(message)),
                    2,
                )
            self.messages.append(message)

    @property
    def size(self) -> int:
        """Bytes of a snapshot."""
        return canonical_size(self.replica.committed)

    def path(self, message: wire.Committed) -> Path:
        path = self.snapshots.path(Digest(message.snapshot_sha256))
        assert path is not None
        return path

    def restart(self, message: wire.Committed) -> Restart:
        """Go on from the snapshot that this commit has on record."""
        about = Digest(message.snapshot_sha256), message.state_digest
        restart = Restart(RUN, len(self.messages) - 1, *about, self._head)
        self._head, signed = entry_digest(restart), sign_entry(restart, KEY)
        entry = wire.ChainEntry(body=signed.body, signature=signed.signature)
        self.tail.append(entry)
        return restart

    async def fetch(self, after_round: int) -> wire.Commits:
        page = self.messages[after_round + 1 :][:COMMITS_PER_REPLY]
        return wire.Commits(commits=page, decided_round=len(self.messages) - 1, tail=self.tail)


class Server(ReadOnlyPeer):
    """A member that serves snapshots, or begins only once another has stopped (`after`); remembers
    the offsets that it was asked for.
    """

    def __init__(
        self,
        snapshots: Snapshots | None = None,
        *,
        ranges: int = 10**6,
        after: "Server | None" = None,
    ) -> None:
        self.snapshots, self.ranges, self.after = snapshots, ranges, after
        self.offsets: list[int] = []
        self.stopped = asyncio.Event()

    async def read(self, digest: Digest, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        """Bytes as asked, until it has begun to serve `ranges` ranges."""
        if self.after:
            await self.after.stopped.wait()
        if count == 1:  # a link asks for the size first, once for each range
            self.offsets.append(offset)
        await asyncio.sleep(0)
        total = self.snapshots.size(digest) if self.snapshots else None
        if total is None or len(self.offsets) > self.ranges:
            self.stopped.set()
            return None
        assert self.snapshots is not None
        return total, self.snapshots.read(digest, offset, count) or b""


class Forger(Server):
    """Serves bytes of the right length that are not the snapshot's."""

    async def read(self, digest: Digest, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        found = await super().read(digest, offset, count)
        return found and (found[0], bytes(len(found[1])))


class Members:
    """Servers as a `BlobSource` of `snapshot_fetch`, each behind links of its own."""

    def __init__(self, servers: dict[PeerId, Server]) -> None:
        self.servers = servers
        self._meshes = {peer: mesh_of(NUMBERS[peer]) for peer in servers}
        self._own = mesh_of(NUMBERS[AUTHOR])
        self._remotes: dict[PeerId, PeerAddress] = {}

    async def __aenter__(self) -> "Members":
        for peer, each in self._meshes.items():
            self._remotes[peer] = PeerAddress(peer, await each.start(self.servers[peer]))
        await self._own.start(ReadOnlyPeer())
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (self._own, *self._meshes.values()):
            await each.stop()

    @property
    def peers(self) -> list[PeerId]:
        return sorted(self._remotes)

    @property
    def bytes_sent(self) -> int:
        """Bytes of blobs, by all servers."""
        return sum(each.traffic.catch_up_up for each in self._meshes.values())

    def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:
        return self._own.fetch(self._remotes[peer], blob, Purpose.CATCH_UP)


def mesh_of(number: int) -> Mesh:
    return Mesh(Identity(key_of(number), RUN, number), [grpc()], Uplink(None, clock_ms), clock_ms)


class Newcomer:
    """A replica at genesis and what it catches up with."""

    def __init__(self, log: Log, members: Members, directory: Path) -> None:
        spec = middle_spec()
        self.replica = DemoReplica(spec, RUN, torch.device("cpu"), 1)
        info, status = RunInfo(spec, RUN, public_bytes(KEY)), NodeStatus(AUTHOR, "newcomer")
        snapshots = Snapshots(directory)
        self.catch_up = CatchUp(info, self.replica, snapshots, members, log.fetch, status=status)

    async def find(
        self, decided_round: int = 11, rounds: Collection[int] = ()
    ) -> SnapshotJump | NotFound:
        """Look for a snapshot, and adopt it as the trainer does."""
        found = await self.catch_up.find(GENESIS, decided_round, rounds)
        if isinstance(found, SnapshotJump):
            self.replica.adopt(found.path)
        return found

    async def jump(self, decided_round: int = 11, rounds: Collection[int] = ()) -> SnapshotJump:
        """Find a snapshot, which must be there."""
        found = await self.find(decided_round, rounds)
        assert isinstance(found, SnapshotJump), found
        return found


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(snapshot, "RANGE_BYTES", PART_BYTES)
    return Log(tmp_path / "log", 12)


async def test_the_newest_recorded_snapshot_comes_in_ranges_from_all_members(
    log: Log, tmp_path: Path
) -> None:
    async with Members({HONEST: Server(log.snapshots), THIRD: Server(log.snapshots)}) as members:
        newcomer = Newcomer(log, members, tmp_path / "new")
        jump = await newcomer.jump(rounds=[3, 9, 10])
    position = jump.landmark.position
    assert (position.next_round, position.head_round) == (10, 9)
    assert position.head == sha256(log.messages[9].body)
    assert newcomer.replica.digest == log.replica.digest == jump.landmark.state_digest
    kept = {round: decision.kept for round, decision in jump.passed.items()}
    assert kept == {round: [sha256(str(round).encode())] for round in (3, 9)}
    assert members.bytes_sent == log.size, "not a byte twice, and none beyond the end of a range"
    first, second = (set(server.offsets) for server in members.servers.values())
    assert first
    assert second
    assert not first & second


async def test_a_forged_snapshot_is_refused_its_sender_named_and_another_member_asked(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Members({LIAR: Forger(log.snapshots), HONEST: Server(log.snapshots)}) as members:
        newcomer = Newcomer(log, members, tmp_path / "new")
        await newcomer.jump()
    assert newcomer.replica.digest == log.replica.digest
    refused = [vars(record) for record in caplog.records if "refused" in record.getMessage()]
    assert refused[-1]["peers"] == LIAR[:8], refused


async def test_a_member_that_stops_in_the_middle_is_replaced_and_what_it_gave_is_kept(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[int]()
    put = Partial.put

    def recorded(partial: Partial, offset: int, blob: bytes | bytearray) -> None:
        kept.append(offset)
        put(partial, offset, blob)

    monkeypatch.setattr(Partial, "put", recorded)
    dying = Server(log.snapshots, ranges=3)
    async with Members({LIAR: dying, HONEST: Server(log.snapshots, after=dying)}) as members:
        newcomer = Newcomer(log, members, tmp_path / "new")
        await newcomer.jump()
    assert newcomer.replica.digest == log.replica.digest
    assert dying.stopped.is_set()
    assert sorted(kept) == list(range(0, log.size, PART_BYTES)), "each range once"


async def test_after_a_restart_only_the_ranges_that_are_missing_are_asked_for(
    log: Log, tmp_path: Path
) -> None:
    async with Members({LIAR: Server(log.snapshots, ranges=4)}) as members:
        first = Newcomer(log, members, tmp_path / "new")
        genesis = first.replica.digest
        assert await first.find() is NotFound.INCOMPLETE
        assert first.replica.digest == genesis
    async with Members({HONEST: Server(log.snapshots)}) as members:
        second = Newcomer(log, members, tmp_path / "new")
        await second.jump()
    assert second.replica.digest == log.replica.digest
    asked = set(members.servers[HONEST].offsets)
    assert 0 not in asked
    assert len(asked) < -(-log.size // PART_BYTES)


async def test_when_nobody_has_a_snapshot_the_replica_stays_where_it_is(
    log: Log, tmp_path: Path
) -> None:
    async with Members({HONEST: Server()}) as members:
        newcomer = Newcomer(log, members, tmp_path / "new")
        genesis = newcomer.replica.digest
        assert await newcomer.find() is NotFound.NOT_HELD
    assert newcomer.replica.digest == genesis
    assert len(set(members.servers[HONEST].offsets)) == 1, (
        "asked for two snapshots, each from its beginning"
    )


@pytest.mark.parametrize("beyond", [0, 1, 4])
async def test_after_a_restart_from_a_checkpoint_an_older_snapshot_is_where_the_log_goes_on(
    log: Log, tmp_path: Path, beyond: int
) -> None:
    """Wherever it lies: also right behind a commit that has a snapshot on record itself."""
    log.grow(-len(log.messages) % 5 + beyond)
    old, newest = [row for row in log.messages if row.snapshot_sha256][-2:]
    restart = log.restart(old)
    async with Members({HONEST: Server(log.snapshots)}) as members:
        newcomer = Newcomer(log, members, tmp_path)
        jump = await newcomer.jump(len(log.messages) - 1)
        assert newcomer.replica.digest == old.state_digest != newest.state_digest
        place = jump.landmark.position
        assert (place.head, place.head_round) == (entry_digest(restart), len(log.messages) - 1)
        assert (place.next_round, place.void_count) == (len(log.messages), 1)


async def test_a_node_whose_state_is_the_checkpoints_needs_nobody_to_give_it(
    log: Log, tmp_path: Path
) -> None:
    old = next(row for row in log.messages if row.snapshot_sha256)
    async with Members({}) as members:
        newcomer = Newcomer(log, members, tmp_path)
        newcomer.replica.adopt(log.path(old))
        log.restart(old)
        jump = await newcomer.jump()
    assert jump.landmark.sha256 == old.snapshot_sha256
    assert newcomer.replica.digest == old.state_digest


async def test_no_snapshot_is_taken_over_a_chain_that_does_not_hold(
    log: Log, tmp_path: Path
) -> None:
    log.messages[4], log.messages[5] = log.messages[5], log.messages[4]
    del log.messages[4]
    async with Members({HONEST: Server(log.snapshots)}) as members:
        with pytest.raises(RemoteProtocolError, match="does not follow"):
            await Newcomer(log, members, tmp_path / "new").jump()
    assert members.servers[HONEST].offsets == []


async def test_a_run_without_recorded_snapshots_has_none_to_find(log: Log, tmp_path: Path) -> None:
    async with Members({HONEST: Server(log.snapshots)}) as members:
        newcomer = Newcomer(log, members, tmp_path / "new")
        assert await newcomer.find(decided_round=3) is NotFound.NOT_RECORDED
    assert members.servers[HONEST].offsets == []


async def test_after_a_search_in_vain_the_log_is_followed_for_as_long_as_the_node_was_behind(
    log: Log, tmp_path: Path
) -> None:
    async with Members({}) as members:
        catch_up = Newcomer(log, members, tmp_path / "new").catch_up
        assert not catch_up.too_far_behind(0, 3)
        assert catch_up.too_far_behind(0, 11)
        assert catch_up.too_far_behind(0, 11), "a question changes nothing"
        assert await catch_up.find(GENESIS, 11, []) is NotFound.NOT_HELD
        assert not catch_up.too_far_behind(0, 21)
        assert catch_up.too_far_behind(0, 22)


# ---- rounds that go on


class Busy(Server):
    """A member whose run goes on: it makes a snapshot after every other range that it serves."""

    def __init__(self, log: Log) -> None:
        super().__init__(log.snapshots)
        self.log = log

    async def read(self, digest: Digest, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        found = await super().read(digest, offset, count)
        if count == 1 and len(self.offsets) % 2 == 0:
            self.log.grow(5)
        return found


async def test_a_snapshot_stays_until_it_is_fetched_however_many_are_made_meanwhile(
    log: Log, tmp_path: Path
) -> None:
    async with Members({HONEST: Busy(log)}) as members:
        jump = await Newcomer(log, members, tmp_path / "new").jump()
    assert jump.landmark.position.head_round == 9
    assert len(log.messages) > 12 + 5 * SNAPSHOTS_KEPT, "it would have been gone"
    assert members.bytes_sent == log.size


async def test_a_node_that_has_begun_with_a_snapshot_finishes_it_when_there_are_newer_ones(
    log: Log, tmp_path: Path
) -> None:
    async with Members({LIAR: Server(log.snapshots, ranges=4)}) as members:
        found = await Newcomer(log, members, tmp_path / "new").find()
        assert found is NotFound.INCOMPLETE
    log.snapshots.read(Digest(log.messages[9].snapshot_sha256), 0, 1)
    log.grow(5 * (SNAPSHOTS_TRIED + 2))
    async with Members({HONEST: Server(log.snapshots)}) as members:
        jump = await Newcomer(log, members, tmp_path / "new").jump()
    assert jump.landmark.position.head_round == 9
    assert 0 not in members.servers[HONEST].offsets


async def test_a_snapshot_that_nobody_holds_any_more_is_given_up_for_a_newer_one(
    log: Log, tmp_path: Path
) -> None:
    async with Members({LIAR: Server(log.snapshots, ranges=4)}) as members:
        found = await Newcomer(log, members, tmp_path / "new").find()
        assert found is NotFound.INCOMPLETE
    log.snapshots._read_seconds.clear()  # long ago
    log.grow(15)
    async with Members({HONEST: Server(log.snapshots)}) as members:
        jump = await Newcomer(log, members, tmp_path / "new").jump(26)
    assert jump.landmark.position.head_round == 24


async def test_after_a_snapshot_the_log_comes_first_however_far_it_has_gone_on(
    log: Log, tmp_path: Path
) -> None:
    async with Members({HONEST: Server(log.snapshots)}) as members:
        newcomer = Newcomer(log, members, tmp_path / "new")
        jump, catch_up = await newcomer.jump(), newcomer.catch_up
    reached = jump.landmark.position.next_round
    catch_up.follow(reached, 1000)
    assert not catch_up.too_far_behind(reached, 1000), "members keep the payloads after it"
    catch_up.follow(999, 1000)
    assert not catch_up.too_far_behind(999, 1000)
    assert catch_up.too_far_behind(999, 2000), "behind again, another day"


# ---- whole nodes


@pytest.mark.parametrize("counts_rounds", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_newcomer_joins_after_the_log_was_pruned_and_ends_equal(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    counts_rounds: bool,
) -> None:
    if (
        not counts_rounds
    ):  # then it asks for the payloads, and hears from every member that it has none
        monkeypatch.setattr(CatchUp, "too_far_behind", lambda *_: False)
    caplog.set_level(logging.INFO, "lockstep.node")
    data = tiny_corpus(tmp_path / "data")
    spec = tiny_spec(steps=60).model_copy(
        update={"retention": RetentionSpec(log_rounds=5, snapshot_every=5)}
    )
    async with coordinator_of(spec, tmp_path / "coordinator") as coordinator:
        old, other, new = (
            NodeTask(coordinator.address, tmp_path, data, number) for number in range(3)
        )
        async with old, other:
            await until(lambda: coordinator.status()["steps"]["committed"] >= 14)
            assert not (tmp_path / "node-0" / "payloads" / "0").exists()
            async with new:
                for node in (old, other, new):
                    await node.ended()
                await asyncio.wait_for(coordinator.finished(), PATIENCE_SECONDS)
                digests = {node.process.status()["state_digest"] for node in (old, other, new)}
                status, counted = coordinator.status(), new.process.status()["rounds"]["counted"]
    why = "rounds behind" if counts_rounds else "no member keeps payload"
    looked = [record for record in caplog.records if record.message == "looks for a snapshot"]
    assert any(why in vars(record)["reason"] for record in looked)
    assert "snapshot adopted" in caplog.messages
    assert status["digests"]["agreed"]
    assert digests == {status["digests"]["last"]}
    assert counted > 0, "it contributed"
    kept = {path.name for path in (tmp_path / "node-2" / "snapshots").iterdir()}
    elsewhere = {path.name for path in (tmp_path / "node-0" / "snapshots").iterdir()}
    assert kept <= elsewhere
    assert len(elsewhere) <= SNAPSHOTS_KEPT + SNAPSHOTS_HELD_MAX, (
        "the one that was fetched stays a minute longer"
    )


# ---- a state that survives


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


class SavedStage(Stage):
    """A stage whose trainer saves to a file, and begins with what is in the file."""

    def __init__(self, corpus: Path, overlap: int, path: Path, save_every: int) -> None:
        super().__init__(corpus, overlap)
        position = self.replica.load(path)
        if position:
            self.decisions.resume(position)
        self.change(save=lambda position: self.replica.save(path, position), save_every=save_every)

    def follow(self, earlier: "SavedStage") -> None:
        """The coordinator and the neighbours are those of an earlier process."""
        self.swarm, self.head = earlier.swarm, earlier.head
        self.commits, self.decided = earlier.commits, earlier.decided
        self.change(swarm=self.swarm)


@asynccontextmanager
async def undisturbed_and_killed(
    corpus: Path, overlap: int, directory: Path, save_every: int
) -> AsyncIterator[
    tuple[tuple[SavedStage, "asyncio.Task[str]"], tuple[SavedStage, "asyncio.Task[str]"]]
]:
    """Two nodes that have announced round 1; the second is a new process since, which knows only
    its file.
    """
    twin, victim = (
        SavedStage(corpus, overlap, directory / name, save_every) for name in ("twin", "victim")
    )
    async with playing(twin) as task:
        async with playing(victim):
            for each in (twin, victim):
                each.welcome()
                each.open(0)
                first = await each.announced(1)
                if not overlap:
                    each.commit(0, [first.digest])
                each.open(1)
                await each.announced(2)
        again = SavedStage(corpus, overlap, directory / "victim", save_every)
        again.follow(victim)
        async with playing(again) as task_again:
            again.welcome()
            yield (twin, task), (again, task_again)


async def has_taken(stage: SavedStage, round: int) -> None:
    """Its replica stands behind this round: a round that opens earlier may be trained first."""
    await until(lambda: stage.trainer.position.next_round > round)


@pytest.mark.parametrize("save_every", [1, 1000])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("fate", ["committed", "skipped", "left out"])
async def test_a_killed_node_waits_for_nothing_and_takes_what_the_log_says(
    corpus: Path, tmp_path: Path, overlap: int, fate: str, save_every: int
) -> None:
    """Also for what it has announced itself, with a file that knows nothing of it or none at
    all.
    """
    async with undisturbed_and_killed(corpus, overlap, tmp_path, save_every) as (
        (twin, task),
        (again, task_again),
    ):
        first, second = twin.swarm.blobs
        await until(lambda: again.client.of_kind("ready"))
        assert again.client.of_kind("announced") == []
        assert not again.replica.engine.entries.any(), "it begins with nothing to say"
        for each in (twin, again):
            if overlap:
                each.commit(0, [first])
            if fate == "skipped":
                each.skip(1)
            else:
                each.commit(1, [second if fate == "committed" else first])
            await has_taken(each, 1)
            each.open(2)
        await asyncio.gather(twin.announced(3), again.announced(1))
        assert [said.round for said in again.client.of_kind("announced")] == [2]
        for each, each_task in ((twin, task), (again, task_again)):
            each.skip(2)
            await ended(each, each_task)
    assert twin.replica.digest == again.replica.digest
    assert twin.status.work.rounds_counted == 1 + (fate == "committed")
    assert (again.status.work.rounds_counted, again.status.work.rounds_left_out) == (0, 1)


@pytest.mark.parametrize("part", ["parameter", "own"])
async def test_a_saved_state_with_one_flipped_bit_is_not_used_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    path = tmp_path / "state"
    algorithm = DEMO if part == "parameter" else AlgorithmSpec(name="gossip-adam")
    spec = tiny_spec(overlap=0, algorithm=algorithm)
    replica, fresh = (replica_for(spec, RUN, torch.device("cpu"), 1, AUTHOR) for _ in range(2))
    genesis = replica.digest
    own = replica.engine.tensors() if part == "own" else replica.committed
    tensor = next(each for each in own.values() if each.numel() > 8)
    tensor.view(-1)[:8] = 3.0
    replica.digest = state_digest(replica.committed)
    replica.save(path, GENESIS)
    blob = bytearray(path.read_bytes())
    at = blob.index(torch.full((8,), 3.0).numpy().tobytes())
    blob[at] ^= 1
    path.write_bytes(blob)
    assert fresh.load(path) is None
    assert fresh.digest == genesis
    assert "saved state cannot be used, starts from genesis" in caplog.text


def test_a_state_of_another_version_is_refused_in_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_spec(overlap=0, algorithm=DEMO)
    older, fresh = (replica_for(spec, RUN, torch.device("cpu"), 1) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(replica_module, "STATE_VERSION", STATE_VERSION - 1)
        older.save(tmp_path / "state", GENESIS)
    assert fresh.load(tmp_path / "state") is None
    assert f"expected version {STATE_VERSION}, got {STATE_VERSION - 1}" in caplog.text
