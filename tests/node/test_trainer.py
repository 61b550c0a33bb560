"""The straight line of a round, with a scripted coordinator and neighbours: what is sent, applied,
lost.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.decisions import DecisionLog
from node.control.members import MemberList
from node.data.corpus import Corpus
from node.links.frames import Part
from node.links.network import BlobRange
from node.replica.digest import state_digest
from node.replica.factory import replica_for
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import Snapshots
from node.round import compute
from node.round.catching_up.catch_up import CatchUp
from node.round.context import RoundContext
from node.round.witness import WitnessReports
from node.status import NodeStatus
from node.trainer import Trainer
from protocol import wire_pb2 as wire
from protocol.codec.chain import Restart, Void, entry_digest, sign_entry
from protocol.codec.commits import (
    Commit,
    Entry,
    SignedCommit,
    commit_digest,
    genesis_digest,
    open_commit,
    sign_commit,
)
from protocol.codec.payload_header import Header
from protocol.errors import DeviceError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.run_info import RunInfo
from protocol.schedule import float32_bits
from protocol.sums.part_list import list_of
from protocol.sums.parts import cut, heard
from protocol.sums.plan import SumPlan
from tests.support.state_requests import NoStateRequests
from tests.support.tiny import tiny_corpus, tiny_spec
from tests.support.waiting import PATIENCE_SECONDS, until

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
RUN = RunId("12" * 16)
OWN = PeerId("34" * 16)
RATE, DECAY = float32_bits(0.01), float32_bits(1.0)


@dataclass
class FakeClient:
    """Records what the node says; its clock stands still before every bell, unless a test moves
    it.
    """

    offline: str = ""
    ms: int = 1000
    sent: list[wire.NodeMessage] = field(default_factory=list)

    def now_ms(self) -> int:
        return self.ms

    def send(self, message: wire.NodeMessage) -> None:
        self.sent.append(message)

    def of_kind(self, kind: str) -> list[Any]:
        return [
            getattr(message, kind) for message in self.sent if message.WhichOneof("kind") == kind
        ]


@dataclass
class FakeParts:
    """Holds every payload that was published in parts, and records who was added."""

    published: dict[int, list[bytes]] = field(default_factory=dict)
    added: list[tuple[int, int, PeerId]] = field(default_factory=list)
    repeated: int = 0

    async def publish(self, round: int, parts: Sequence[bytes], samples: int = 0) -> Digest:
        self.published[round] = list(parts)
        return list_of(parts).root

    def add_summer(self, round: int, number: int, peer: PeerId) -> None:
        self.added.append((round, number, peer))

    def repeat(self) -> None:
        self.repeated += 1


@dataclass
class FakeSummer:
    """Records what it is asked."""

    questions: list[wire.SumsAsked] = field(default_factory=list)
    decided_round: int = -1
    repeated: int = 0

    def asked(self, message: wire.SumsAsked) -> None:
        self.questions.append(message)

    def decided(self, round: int) -> None:
        self.decided_round = round

    def repeat(self) -> None:
        self.repeated += 1


@dataclass
class FakeSwarm:
    """Holds every payload that was published; those of a commit are always at hand. It has no
    peers, so no snapshots.
    """

    blobs: dict[bytes, bytes] = field(default_factory=dict)
    settled: list[tuple[int, list[Digest]]] = field(default_factory=list)
    told: list[dict[PeerId, tuple[str, ...]]] = field(default_factory=list)
    plans: dict[int, SumPlan | None] = field(default_factory=dict)
    peers: list[PeerId] = field(default_factory=list)

    parts: FakeParts = field(default_factory=FakeParts)

    def open(
        self, round: int, near: frozenset[PeerId] | None = None, plan: SumPlan | None = None
    ) -> None:
        self.plans[round] = plan

    def set_members(
        self, members: Mapping[PeerId, tuple[str, ...]], relays: Mapping[PeerId, tuple[str, ...]]
    ) -> None:
        self.told.append(dict(members))

    async def publish(self, round: int, blob: bytes, samples: int = 0) -> Digest:
        self.blobs[sha256(blob)] = blob
        return sha256(blob)

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        return [self.blobs[entry.digest] for entry in commit.entries]

    def holds(self, commit: Commit) -> bool:
        return all(entry.digest in self.blobs for entry in commit.entries)

    def settle(self, round: int, kept: Iterable[Digest]) -> None:
        self.settled.append((round, list(kept)))

    def holding(self, round: int) -> list[Digest]:
        return [sha256(b"another's")]

    def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:
        raise AssertionError("nobody is there")


class Stage:
    """A trainer on a tiny replica, and the coordinator's side of the conversation."""

    def __init__(self, directory: Path, overlap: int) -> None:
        self.spec = tiny_spec(overlap=overlap)
        self.client, self.swarm, self.summer = FakeClient(), FakeSwarm(), FakeSummer()
        self.replica = replica_for(self.spec, RUN, torch.device("cpu"), 2, OWN)
        self.decisions = DecisionLog(RUN, public_bytes(KEY), self.fetch)
        self.status = NodeStatus(OWN, "test")
        self.head, self.commits = genesis_digest(RUN), list[wire.Committed]()
        self.saved: list[Position] = []
        self.decided = -1
        info = RunInfo(self.spec, RUN, public_bytes(KEY))
        # No round of these tests is one of a snapshot: nothing is written below the corpus.
        snapshots = Snapshots(directory / "snapshots")
        self.context = RoundContext(
            info=info,
            own=OWN,
            replica=self.replica,
            corpus=Corpus.open(directory),
            client=self.client,
            decisions=self.decisions,
            swarm=self.swarm,
            status=self.status,
            summer=self.summer,
            witness=WitnessReports(OWN, self.spec.rounds.copies_min, lambda: 2, self.client.send),
            catch_up=CatchUp(
                info, self.replica, snapshots, self.swarm, self.fetch, status=self.status
            ),
            save=self.saved.append,
            save_every=1,
            state_requests=NoStateRequests(),
            heads=SimpleNamespace(greeted=lambda welcome: None),
        )
        self.trainer = Trainer(self.context)

    def change(self, **fields: Any) -> None:
        """Begin again with another context."""
        self.context = dataclasses.replace(self.context, **fields)
        self.trainer = Trainer(self.context)

    def tell(self, **kind: Any) -> None:
        """A message of the coordinator."""
        self.trainer.inbox.received(wire.CoordinatorMessage(**kind))

    def resync(self, number: int) -> None:
        self.tell(resync=wire.Resync(round=0, reason="differs", number=number))

    async def fetch(self, after_round: int) -> wire.Commits:
        return wire.Commits(commits=self.commits, decided_round=self.decided)

    def welcome(self) -> None:
        self.trainer.inbox.welcomed(wire.Welcome(decided_round=self.decided))

    def open(
        self, round: int, *, muted: bool = False, samples: int = 4, plan: SumPlan | None = None
    ) -> None:
        opened = wire.RoundOpened(
            round=round, bell_ms=2000, shares=[wire.Share(first=4 * round, count=samples)],
            learning_rate_bits=RATE, decay_bits=DECAY, muted=muted,
        )  # fmt: skip
        if plan:
            peers, rows = SumPlan.told(plan.summers)
            opened.summers.extend(peers)
            opened.ranges.extend(wire.RangeSummers(places=row) for row in rows)
        self.tell(opened=opened)

    def commit(self, round: int, digests: list[bytes], *, told: bool = True) -> None:
        entries = tuple(
            Entry(OWN, Digest(digest), len(self.swarm.blobs[digest]), 1, 4) for digest in digests
        )
        commit = Commit(RUN, round, len(self.commits), entries, RATE, DECAY, self.head)
        self.head, self.decided = commit_digest(commit), round
        signed = sign_commit(commit, KEY)
        self.commits.append(wire.Committed(body=signed.body, signature=signed.signature))
        holders = [wire.Holders() for _ in entries]
        if told:
            self.tell(committed=wire.RoundCommitted(commit=self.commits[-1], holders=holders))
        else:
            self.decisions.saw_decided(round)

    def skip(self, round: int) -> None:
        self.decided = round
        self.tell(skipped=wire.RoundSkipped(round=round, reason="quorum"))

    async def announced(self, count: int) -> wire.Announced:
        await until(lambda: len(self.client.of_kind("announced")) >= count)
        message: wire.Announced = self.client.of_kind("announced")[-1]
        return message


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@asynccontextmanager
async def playing(stage: Stage) -> AsyncIterator["asyncio.Task[str]"]:
    task = asyncio.create_task(stage.trainer.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(stage: Stage, task: "asyncio.Task[str]") -> str:
    stage.trainer.leave()
    return await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_round_is_trained_announced_applied_and_reported(corpus: Path) -> None:
    stage = Stage(corpus, overlap=0)
    before = state_digest(stage.replica.committed)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.commit(0, [announced.digest])
        await ended(stage, task)
    assert (announced.samples, announced.payload_bytes) == (
        4,
        len(stage.swarm.blobs[announced.digest]),
    )
    [applied] = stage.client.of_kind("applied")
    assert applied.state_digest == state_digest(stage.replica.committed) != before
    assert stage.status.work.rounds_counted == 1
    assert stage.swarm.settled == [(0, [announced.digest])]
    [saved] = stage.saved
    assert saved.next_round == 0, "while its payload was on its way"


async def test_a_device_that_fails_in_a_pass_leaves_a_state_that_is_saved(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(corpus, overlap=0)
    stage.change(save_every=10)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.commit(0, [announced.digest])
        await until(lambda: stage.status.work.rounds_counted == 1)
        before = len(stage.saved)

        def fails(*_: Any) -> bool:
            raise torch.AcceleratorError("CUDA error: unknown error")

        monkeypatch.setattr(compute, "_next", fails)
        stage.open(1)
        with pytest.raises(DeviceError, match="the device failed: CUDA error: unknown error"):
            await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert [position.next_round for position in stage.saved[before:]] == [1]


async def test_where_a_failed_device_gives_nothing_away_the_older_state_stays(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: unknown error")

    stage = Stage(corpus, overlap=0)
    stage.change(save=fails)
    monkeypatch.setattr(compute, "_next", fails)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        with pytest.raises(DeviceError):
            await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert "goes on from an older state" in caplog.text


class LateData:
    """Data whose server has given `batches` micro-batches, and then does not answer."""

    def __init__(self, corpus: Corpus, batches: int) -> None:
        self._corpus, self.batches = corpus, batches
        self.expected: list[tuple[int, int]] = []

    def batch(self, first: int, count: int, sequence_length: int, seed: int) -> Any:
        if self.batches == 0:
            raise UnavailableError("no data to train on: the server is away")
        self.batches -= 1
        return self._corpus.batch(first, count, sequence_length, seed)

    def expect(
        self, spans: Sequence[tuple[int, int]], length: int, seed: int, *, limit_s: float
    ) -> None:
        self.expected += spans


@pytest.mark.parametrize("batches", [0, 1])
async def test_a_round_without_all_of_its_data_is_announced_with_what_was_trained(
    corpus: Path, batches: int
) -> None:
    stage = Stage(corpus, overlap=0)
    late = LateData(Corpus.open(corpus), batches)
    stage.change(corpus=late)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        assert announced.samples == 2 * batches
        assert bool(announced.digest) == bool(batches)
        assert stage.status.note == "no data to train on: the server is away"
        stage.skip(0)
        late.batches = 9
        stage.open(1)
        announced = await stage.announced(2)
        assert announced.samples == 4
        stage.skip(1)
        await ended(stage, task)
    assert late.expected == [(0, 4), (4, 4)]


async def test_ready_comes_before_the_first_round_with_the_genesis_digest(corpus: Path) -> None:
    stage = Stage(corpus, overlap=1)
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        await stage.announced(1)
    first = stage.client.sent[0].ready
    assert (first.round, first.state_digest) == (-1, stage.replica.digest)


@pytest.mark.parametrize("overlap", [0, 1])
async def test_what_a_skipped_round_has_sent_is_not_put_back(corpus: Path, overlap: int) -> None:
    stage = Stage(corpus, overlap)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        await stage.announced(1)
        left = stage.replica.engine.entries.clone()
        stage.skip(0)
        await ended(stage, task)
    assert stage.status.work.rounds_left_out == 1
    assert torch.equal(stage.replica.engine.entries, left)
    assert stage.replica.digest == Stage(corpus, overlap).replica.digest


async def test_a_payload_that_the_commit_leaves_out_is_lost(corpus: Path) -> None:
    stage = Stage(corpus, overlap=0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        first = await stage.announced(1)
        stage.commit(0, [first.digest])
        stage.open(1)
        await stage.announced(2)
        left = stage.replica.engine.entries.clone()
        stage.commit(
            1, [first.digest]
        )  # an older payload in its place: ignored by all, and ours is left out
        await ended(stage, task)
    assert (stage.status.work.rounds_counted, stage.status.work.rounds_left_out) == (1, 1)
    assert torch.equal(stage.replica.engine.entries, left)


@pytest.mark.parametrize("save_every", [1, 2])
async def test_the_state_is_saved_behind_the_announcement_of_every_nth_round(
    corpus: Path, save_every: int
) -> None:
    stage = Stage(corpus, overlap=0)
    announced = list[int]()
    stage.change(
        save_every=save_every,
        save=lambda position: announced.append(len(stage.client.of_kind("announced"))),
    )
    async with playing(stage) as task:
        stage.welcome()
        for round in range(4):
            stage.open(round)
            await stage.announced(round + 1)
            stage.skip(round)
        await until(lambda: stage.trainer.position.next_round == 4)
        await ended(stage, task)
    assert announced == list(range(save_every, 5, save_every))


async def test_with_overlap_the_next_round_is_announced_before_the_last_is_decided(
    corpus: Path,
) -> None:
    stage = Stage(corpus, overlap=1)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        first = await stage.announced(1)
        stage.open(1)
        second = await stage.announced(2)
        assert stage.client.of_kind("applied") == []
        stage.commit(0, [first.digest])
        stage.commit(1, [second.digest])
        await ended(stage, task)
    assert [applied.round for applied in stage.client.of_kind("applied")] == [0, 1]


@pytest.mark.parametrize(
    ("overlap", "samples", "order"),
    [
        (0, 2, ["announced", "applied", "announced"]),
        (0, 4, ["announced", "applied", "announced"]),
        (1, 2, ["announced", "announced", "applied"]),  # one pass
        (1, 4, ["announced", "applied", "announced"]),  # between two passes
    ],
)
async def test_with_overlap_a_round_that_is_open_is_begun_before_the_commit_that_came_first(
    corpus: Path, overlap: int, samples: int, order: list[str]
) -> None:
    stage = Stage(corpus, overlap)
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        first = await stage.announced(1)
        stage.commit(0, [first.digest])
        stage.open(1, samples=samples)
        await until(lambda: len(stage.client.sent) == 4)
    assert [message.WhichOneof("kind") for message in stage.client.sent] == ["ready", *order]


@pytest.mark.parametrize("decided", ["commit", "skip"])
async def test_passes_after_a_word_that_comes_between_two_go_on_from_where_the_log_says(
    corpus: Path, decided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(corpus, overlap=1)
    replica, events = stage.replica, list[str]()
    add_gradients, stand_at = replica.trainee.gradient, replica.stand_at

    def watched(piece: torch.Tensor) -> float:
        events.append("pass")
        return add_gradients(piece)

    def stood() -> None:
        before = distance(replica)
        stand_at()
        events.append("nearer" if distance(replica) < before else "ahead")

    monkeypatch.setattr(replica.trainee, "gradient", watched)
    monkeypatch.setattr(replica, "stand_at", stood)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        first = await stage.announced(1)
        if decided == "commit":
            stage.commit(0, [first.digest])
        else:
            stage.skip(0)
        stage.open(1, samples=6)
        await stage.announced(2)
        stage.skip(1)
        await ended(stage, task)
    assert events == ["pass", "pass", "ahead", "pass", "nearer", "pass", "pass"]
    assert (stage.status.work.samples, stage.status.work.samples_late) == (10, 2)


def distance(replica: Replica) -> float:
    """How far the model stands from the committed parameters."""
    found = replica.trainee.parameters
    return max(
        float((found[name].data - each).abs().max()) for name, each in replica.committed.items()
    )


async def test_a_commit_whose_payloads_are_on_their_way_does_not_hold_up_the_work(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(corpus, overlap=1)
    monkeypatch.setattr(stage.swarm, "holds", lambda _: False)
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        first = await stage.announced(1)
        stage.commit(0, [first.digest])
        stage.open(1)
        await until(lambda: len(stage.client.sent) == 4)
    assert [message.WhichOneof("kind") for message in stage.client.sent] == [
        "ready", "announced", "announced", "applied",
    ]  # fmt: skip
    assert stage.status.work.samples_late == 4


async def test_what_takes_most_of_the_time_that_is_left_is_left_until_after_the_bell(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(corpus, overlap=1)
    apply = stage.replica.apply

    def slow(*arguments: Any) -> int:
        stage.client.ms += 400
        return apply(*arguments)

    monkeypatch.setattr(stage.replica, "apply", slow)
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        stage.commit(0, [(await stage.announced(1)).digest])
        stage.open(1)  # 1000 ms are left
        stage.commit(1, [(await stage.announced(2)).digest])
        stage.open(2)  # 600 ms, of which it would take 400
        await until(lambda: len(stage.client.sent) == 6)
    assert [message.WhichOneof("kind") for message in stage.client.sent] == [
        "ready", "announced", "applied", "announced", "announced", "applied",
    ]  # fmt: skip


async def test_steps_ahead_of_a_decision_never_touch_the_committed_parameters(corpus: Path) -> None:
    stage = Stage(corpus, overlap=1)
    genesis = stage.replica.digest
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        await stage.announced(1)
        stage.open(1)
        await stage.announced(2)
        working = state_digest(
            {name: p.data for name, p in stage.replica.trainee.parameters.items()}
        )
        assert state_digest(stage.replica.committed) == genesis
        assert working != genesis


async def test_a_muted_node_announces_its_work_and_no_payload(corpus: Path) -> None:
    stage = Stage(corpus, overlap=1)
    async with playing(stage):
        stage.welcome()
        stage.open(0, muted=True)
        announced = await stage.announced(1)
    assert (announced.digest, announced.samples) == (b"", 4)
    assert stage.swarm.blobs == {}
    assert stage.replica.engine.entries.count_nonzero() > 0


async def test_a_new_session_hears_again_what_is_announced_and_held_and_then_ready(
    corpus: Path,
) -> None:
    stage = Stage(corpus, overlap=1)
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.client.sent.clear()
        stage.welcome()
        await until(lambda: stage.client.of_kind("ready"))
    assert stage.client.of_kind("announced") == [announced]
    assert [list(held.digests) for held in stage.client.of_kind("holding")] == [
        [sha256(b"another's")]
    ]


async def test_a_session_that_opens_before_the_payload_is_kept_hears_nothing_of_it(
    corpus: Path,
) -> None:
    stage, kept = Stage(corpus, overlap=1), asyncio.Event()
    publish, asked = stage.swarm.publish, list[int]()

    async def slow(round: int, blob: bytes, samples: int = 0) -> Digest:
        asked.append(round)
        await kept.wait()
        return await publish(round, blob)

    stage.swarm.publish = slow  # type: ignore[method-assign]
    async with playing(stage):
        stage.welcome()
        stage.open(0)
        await until(lambda: asked == [0])
        stage.welcome()
        assert stage.client.of_kind("announced") == []
        kept.set()
        assert (await stage.announced(1)).round == 0


async def test_a_resync_replays_the_log_from_genesis_to_the_same_digest(corpus: Path) -> None:
    stage = Stage(corpus, overlap=0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.commit(0, [announced.digest])
        await until(lambda: stage.client.of_kind("applied"))
        expected = stage.replica.digest
        stage.replica.committed[next(iter(stage.replica.committed))].add_(1)  # a bit flip in memory
        stage.resync(number=3)
        await until(lambda: len(stage.client.of_kind("ready")) >= 2)
        await ended(stage, task)
    ready = stage.client.of_kind("ready")[-1]
    assert (ready.round, ready.state_digest, ready.resyncs) == (0, expected, 3)
    assert [applied.state_digest for applied in stage.client.of_kind("applied")] == [
        expected
    ] * 2, "on the way too"
    assert stage.status.resyncs == 1
    assert stage.status.note == "resynced: differs"


@pytest.mark.parametrize("away", [False, True])
async def test_a_state_that_counts_a_payload_which_became_void_is_discarded_and_replayed(
    corpus: Path, away: bool
) -> None:
    """Also by a node that was away when it became void."""
    stage = Stage(corpus, overlap=0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.commit(0, [announced.digest])
        await until(lambda: stage.client.of_kind("applied"))
        counted = stage.replica.digest
        void = Void(RUN, 0, Digest(announced.digest), "nobody has it", stage.head)
        signed = sign_entry(void, KEY)
        entry = wire.ChainEntry(body=signed.body, signature=signed.signature)
        stage.commits[0].voids.append(entry)
        if away:
            stage.trainer.inbox.welcomed(wire.Welcome(decided_round=0, tail=[entry]))
        else:
            stage.tell(chained=entry)
        await until(lambda: len(stage.client.of_kind("ready")) >= 2)
        await ended(stage, task)
    without = replica_for(stage.spec, RUN, torch.device("cpu"), 2, OWN)
    [row] = stage.commits
    commit = open_commit(SignedCommit(row.body, row.signature), public_bytes(KEY))
    without.apply(commit, [b""])
    ready = stage.client.of_kind("ready")[-1]
    assert (ready.round, ready.voids, ready.resyncs) == (0, 1, 0)
    assert ready.state_digest == without.digest != counted
    assert stage.status.resyncs == 1
    assert stage.trainer.position.head == entry_digest(void)


@pytest.mark.parametrize("away", [False, True])
async def test_a_run_that_goes_on_from_a_checkpoint_replaces_the_state_and_keeps_the_momentum(
    corpus: Path, tmp_path: Path, away: bool
) -> None:
    """Also that of a node that was away meanwhile, and that waits for a decision."""
    stage = Stage(corpus, overlap=0)
    snapshots = Snapshots(tmp_path)
    genesis = stage.replica.digest
    sha256_of_genesis = snapshots.write(0, stage.replica.committed)
    info = stage.context.info
    catch_up = CatchUp(
        info, stage.replica, snapshots, stage.swarm, stage.fetch, status=stage.status
    )
    stage.change(catch_up=catch_up)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.commit(0, [announced.digest])
        await until(lambda: stage.client.of_kind("applied"))
        counted = stage.replica.digest
        stage.open(1)
        await stage.announced(2)
        restart = Restart(RUN, 0, sha256_of_genesis, genesis, stage.head)
        signed = sign_entry(restart, KEY)
        entry = wire.ChainEntry(body=signed.body, signature=signed.signature)
        if away:
            stage.decided = 1
            stage.trainer.inbox.welcomed(wire.Welcome(decided_round=1, tail=[entry]))
        else:
            stage.skip(1)
            stage.tell(chained=entry)
        await until(lambda: len(stage.client.of_kind("ready")) >= 2)
        await ended(stage, task)
    ready = stage.client.of_kind("ready")[-1]
    assert (ready.round, ready.voids, ready.resyncs) == (0, 1, 0)
    assert ready.state_digest == genesis != counted
    assert stage.status.work.rounds_left_out == 1, "the round that was skipped"
    assert stage.trainer.position.head == entry_digest(restart)
    assert stage.trainer.position.next_round == 2
    assert stage.status.resyncs == 0


async def test_what_is_discarded_is_discarded_on_disk_before_the_replay_begins(
    corpus: Path,
) -> None:
    stage = Stage(corpus, overlap=0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        stage.commit(0, [announced.digest])
        await until(lambda: stage.client.of_kind("applied"))
        stage.saved.clear()
        stage.resync(number=1)
        await until(lambda: len(stage.client.of_kind("ready")) >= 2)
        await ended(stage, task)
    assert (stage.saved[0].next_round, stage.saved[0].head) == (0, genesis_digest(RUN))


async def test_a_state_that_is_not_the_recorded_one_is_left_to_the_coordinators_judgement(
    corpus: Path,
) -> None:
    stage = Stage(corpus, overlap=0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0)
        announced = await stage.announced(1)
        # no session tells this commit: it is fetched, with its recorded digest
        stage.commit(0, [announced.digest], told=False)
        stage.commits[0].state_digest, stage.commits[0].digest_reports = 666, 1
        await until(lambda: stage.client.of_kind("applied"))
        await ended(stage, task)
    assert stage.status.resyncs == 0
    assert "the record says 000000000000029a" in stage.status.note


async def test_the_swarm_hears_of_every_change_of_the_member_list(corpus: Path) -> None:
    stage, members = Stage(corpus, overlap=0), MemberList()
    one, two = (wire.Member(peer_id=f"{number:032x}", addresses=["h:1"]) for number in (1, 2))
    for told in (wire.Members(members=[one]), wire.Members(members=[two], changes=True)):
        members.update(told)
        stage.trainer.inbox.members_changed(members)
    assert stage.swarm.told == [
        {one.peer_id: ("h:1",)},
        {one.peer_id: ("h:1",), two.peer_id: ("h:1",)},
    ]


# ---- rounds with a plan

PLAN = SumPlan(tuple(frozenset([OWN, PeerId("56" * 16)]) for _ in range(3)))


async def test_in_a_round_with_a_plan_a_payload_goes_out_in_parts_under_their_root(
    corpus: Path,
) -> None:
    stage = Stage(corpus, overlap=0)
    async with playing(stage) as task:
        stage.welcome()
        stage.open(0, plan=PLAN)
        announced = await stage.announced(1)
        parts = stage.swarm.parts.published[0]
        stage.skip(0)
        await ended(stage, task)
    assert stage.swarm.plans == {0: PLAN}
    assert announced.digest == list_of(parts).root
    assert announced.payload_bytes == sum(map(len, parts))
    whole = heard(parts, stage.replica.shape, Header(RUN, 0, OWN))
    assert [*parts] == cut(whole, stage.replica.shape, 3)
    assert not stage.swarm.blobs, "no whole payload"
    assert stage.summer.decided_round == 0


async def test_a_round_with_a_plan_is_open_to_parts_before_and_without_training(
    corpus: Path,
) -> None:
    stage = Stage(corpus, overlap=0)
    stage.open(5, plan=PLAN)
    assert stage.swarm.plans == {5: PLAN}
    stage.tell(summer_added=wire.SummerAdded(round=5, range=2, peer_id=OWN))
    assert stage.swarm.parts.added == [(5, 2, OWN)]
    asked = wire.SumsAsked(round=5, ranges=[wire.RangeAsked(range=1)])
    stage.tell(sums_asked=asked)
    assert stage.summer.questions == [asked]
    stage.welcome()
    assert (stage.swarm.parts.repeated, stage.summer.repeated) == (1, 1)
