"""A node that comes late goes on from a member's parameters; one that was away for a moment keeps
its own.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.gossip.collector import NotRetainedError
from node.links.frames import Part
from node.links.network import BlobRange, NotHeldError
from node.replica.canonical import canonical_bytes
from node.replica.factory import replica_for
from node.replica.gossip_adam import GossipAdamReplica
from node.replica.position import Position
from node.replica.snapshot import Snapshots
from node.round.catching_up.catch_up import NotFound
from node.round.catching_up.landmarks import SnapshotJump
from node.round.catching_up.neighbour_start import AWAY_ROUNDS, NeighbourStart
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, Mix, commit_digest, genesis_digest, sign_commit
from protocol.codec.payload import Header
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, sha256
from protocol.run_info import RunInfo
from protocol.runfile import AlgorithmSpec, RunSpec
from tests.node.links.net import RUN
from tests.support.tiny import tiny_spec

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
A, B, OWN = (PeerId(f"{number:032x}") for number in range(1, 4))
GENESIS = Position(0, genesis_digest(RUN), -1)
SPEC = tiny_spec().model_copy(
    update={
        "algorithm": AlgorithmSpec.model_validate(
            {"name": "gossip-adam", "mixing": {"mean_every": 20}}
        )
    }
)


DIFFERS = SPEC.model_copy(
    update={
        "algorithm": AlgorithmSpec.model_validate(
            {"name": "gossip-adam", "mixing": {"mean_every": 20, "exchange": "int8"}}
        )
    }
)
"""The same with differences to the newest mean."""


def replica(own: PeerId, spec: RunSpec = SPEC) -> GossipAdamReplica:
    found = replica_for(spec, RUN, torch.device("cpu"), 8, own)
    assert isinstance(found, GossipAdamReplica)
    return found


@dataclass
class Members:
    """The log of a run and the members that keep its payloads: `held` by digest."""

    commits: list[wire.Committed] = field(default_factory=list)
    held: dict[Digest, bytes] = field(default_factory=dict)
    settled: list[int] = field(default_factory=list)
    peers: list[PeerId] = field(default_factory=list)

    def run(self, rounds: int, made: GossipAdamReplica) -> None:
        """Both members send the same parameters, changed a little in each round."""
        head = genesis_digest(RUN)
        for round in range(rounds):
            for tensor in made.committed.values():
                tensor.add_(0.01)
            entries = []
            for author in (A, B):
                extraction = made.extract(round, mean=True)
                payload, _ = made.encoded(Header(RUN, round, author), extraction)
                self.held[sha256(payload)] = payload
                entries.append(Entry(author, sha256(payload), len(payload), 1, 4))
            mix = Mix(mean=False, edges=((0, 1, 2),))
            commit = Commit(RUN, round, round, tuple(entries), 1, 2, head, mix)
            head, signed = commit_digest(commit), sign_commit(commit, KEY)
            self.commits.append(wire.Committed(body=signed.body, signature=signed.signature))

    async def fetch(self, after_round: int) -> wire.Commits:
        decided = len(self.commits) - 1
        return wire.Commits(commits=self.commits[after_round + 1 :][:64], decided_round=decided)

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        assert [[entry.author] for entry in commit.entries] == holders
        for entry in commit.entries:
            if entry.digest not in self.held:
                raise NotRetainedError("no member keeps it any more", entry.digest)
        return [self.held[entry.digest] for entry in commit.entries]

    def settle(self, round: int, kept: object) -> None:
        self.settled.append(round)


@dataclass
class Anchored(Members):
    """Members that send differences, and serve the snapshots of their means."""

    snapshots: dict[Digest, bytes] = field(default_factory=dict)
    peers: list[PeerId] = field(default_factory=lambda: [A, B])

    def add(self, made: GossipAdamReplica, directory: Path, *, mean: bool, says: bool) -> None:
        """A round in which both members send the same parameters, which then are their mean."""
        round, entries, store = len(self.commits), [], Snapshots(directory / "members")
        for author in (A, B):
            payload, _ = made.encoded(Header(RUN, round, author), made.extract(round, mean=mean))
            self.held[sha256(payload)] = payload
            entries.append(Entry(author, sha256(payload), len(payload), 1, 4))
        before = self.commits[-1].body if self.commits else None
        head = sha256(before) if before else genesis_digest(RUN)
        mix = Mix(mean=mean, edges=() if mean else ((0, 1, 2),))
        commit = Commit(RUN, round, round, tuple(entries), 1, 2, head, mix)
        signed, digest = sign_commit(commit, KEY), made.apply(commit, self.of(commit))
        row = wire.Committed(body=signed.body, signature=signed.signature)
        if mean and says:
            name = store.write(round, made.committed)
            self.snapshots[name] = b"".join(map(bytes, canonical_bytes(made.committed)))
            row.state_digest, row.digest_reports, row.snapshot_sha256 = digest, 2, name
        self.commits.append(row)

    def of(self, commit: Commit) -> list[bytes]:
        return [self.held[entry.digest] for entry in commit.entries]

    async def commits_after(self, after_round: int) -> wire.Commits:
        return await Members.fetch(self, after_round)

    async def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:  # type: ignore[override]
        whole = self.snapshots.get(blob.digest)
        if whole is None:
            raise NotHeldError("not here")
        data = whole[blob.offset : blob.end(len(whole))]
        yield Part(0, blob.offset, len(whole), data)


def start_of(members: Members, own: GossipAdamReplica, directory: Path) -> NeighbourStart:
    if isinstance(members, Anchored):
        info = RunInfo(DIFFERS, RUN, public_bytes(KEY))
        anchored = info, own, Snapshots(directory), members, members.commits_after
        status = NodeStatus(OWN, "own")
        return NeighbourStart(*anchored, status=status)  # type: ignore[arg-type]
    info = RunInfo(SPEC, RUN, public_bytes(KEY))
    parts = info, own, Snapshots(directory), members, members.fetch
    status = NodeStatus(OWN, "own")
    return NeighbourStart(*parts, status=status)  # type: ignore[arg-type]


async def test_a_newcomer_takes_a_members_newest_parameters_and_the_place_behind_them(
    tmp_path: Path,
) -> None:
    members, made, own = Members(), replica(A), replica(OWN)
    members.run(70, made)
    start = start_of(members, own, tmp_path)
    assert start.too_far_behind(0, 69)
    found = await start.find(GENESIS, 69, {5})
    assert isinstance(found, SnapshotJump)
    assert own.adopt(found.path) == found.landmark.state_digest == made_digest(made)
    assert (found.landmark.position.next_round, found.landmark.position.head_round) == (70, 69)
    assert len(found.passed[5].kept) == 2
    assert members.settled == [69]


def made_digest(made: GossipAdamReplica) -> int:
    made.apply(Commit(RUN, 0, 0, (), 1, 2, genesis_digest(RUN)), [])
    return made.digest


async def test_a_payload_that_nobody_keeps_or_that_is_none_is_passed_over(tmp_path: Path) -> None:
    members, own = Members(), replica(OWN)
    members.run(4, replica(A))
    digests = list(members.held)
    for digest in digests[-2:]:
        del members.held[digest]
    members.held[digests[-3]] = b"no payload"
    members.held[digests[-4]] = b"no payload"
    found = await start_of(members, own, tmp_path).find(GENESIS, 3, set())
    assert isinstance(found, SnapshotJump)
    assert found.landmark.position.head_round == 1


async def test_without_any_payload_the_node_looks_again_later(tmp_path: Path) -> None:
    members, own = Members(), replica(OWN)
    members.run(3, replica(A))
    members.held.clear()
    start = start_of(members, own, tmp_path)
    assert await start.find(GENESIS, 2, set()) is NotFound.NOT_HELD
    assert start.too_far_behind(0, 2)


async def test_before_the_first_commit_genesis_is_the_newest_state(tmp_path: Path) -> None:
    start = start_of(Members(), replica(OWN), tmp_path)
    assert start.too_far_behind(0, 1)
    assert await start.find(GENESIS, -1, set()) is NotFound.NOT_RECORDED
    members = Members()
    start = start_of(members, replica(OWN), tmp_path)
    assert not start.too_far_behind(0, -1)


async def test_a_node_that_has_made_a_step_goes_on_with_its_parameters(tmp_path: Path) -> None:
    own, path = replica(OWN), tmp_path / "state"
    assert start_of(Members(), own, tmp_path).too_far_behind(0, 1)
    for parameter in own.trainee.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    own.accumulate()
    assert not start_of(Members(), own, tmp_path).too_far_behind(0, 1)
    own.extract(0)
    own.save(path, GENESIS)
    again = replica(OWN)
    again.load(path)
    assert not start_of(Members(), again, tmp_path).too_far_behind(0, 1)


@pytest.mark.parametrize(("behind", "starts_over"), [(AWAY_ROUNDS - 1, False), (AWAY_ROUNDS, True)])
def test_only_a_long_absence_gives_up_a_nodes_own_parameters(
    tmp_path: Path, behind: int, starts_over: bool
) -> None:
    own = replica(OWN)
    start = start_of(Members(), own, tmp_path)
    assert start.too_far_behind(3, 3 + behind) is starts_over


# ---- differences to the newest mean


def members_with_a_mean(directory: Path, *kinds: str) -> tuple[Anchored, GossipAdamReplica]:
    """Rounds of these kinds: "edges", "mean", or "silent", a mean whose snapshot nobody knows."""
    members, made = Anchored(), replica(A, DIFFERS)
    for kind in kinds:
        for tensor in made.committed.values():
            tensor.add_(0.01)
        members.add(made, directory, mean=kind != "edges", says=kind != "silent")
    return members, made


async def test_a_newcomer_fetches_the_newest_mean_and_reads_differences_to_it(
    tmp_path: Path,
) -> None:
    members, made = members_with_a_mean(tmp_path, "mean", "edges", "mean", "edges", "edges")
    own = replica(OWN, DIFFERS)
    found = await start_of(members, own, tmp_path / "own").find(GENESIS, 4, set())
    assert isinstance(found, SnapshotJump)
    assert own.adopt(found.path, found.base) == found.landmark.state_digest
    assert found.landmark.position.next_round == 5
    assert own.extract(5).values.base == made.extract(5).values.base
    close = [(own.committed[name] - made.committed[name]).abs().max() for name in made.committed]
    assert max(close) < 1e-3


async def test_the_mean_itself_is_taken_where_it_is_the_newest_state(tmp_path: Path) -> None:
    members, made = members_with_a_mean(tmp_path, "edges", "mean")
    own = replica(OWN, DIFFERS)
    found = await start_of(members, own, tmp_path / "own").find(GENESIS, 1, set())
    assert isinstance(found, SnapshotJump)
    assert own.adopt(found.path, found.base) == made.digest


async def test_a_mean_that_is_not_agreed_on_yet_is_replayed(tmp_path: Path) -> None:
    members, _ = members_with_a_mean(tmp_path, "edges", "silent")
    own = replica(OWN, DIFFERS)
    found = await start_of(members, own, tmp_path / "own").find(GENESIS, 1, set())
    assert isinstance(found, SnapshotJump)
    assert found.landmark.position.next_round == 1, "the mean is a commit like any other"
    assert found.base is None


async def test_without_the_snapshot_of_the_mean_the_node_looks_again_later(tmp_path: Path) -> None:
    members, _ = members_with_a_mean(tmp_path, "mean", *["edges"] * 4)
    members.snapshots.clear()
    own = replica(OWN, DIFFERS)
    start = start_of(members, own, tmp_path / "own")
    assert await start.find(GENESIS, 4, set()) is NotFound.NOT_HELD


async def test_a_mean_is_written_for_others_and_no_other_state(tmp_path: Path) -> None:
    own = replica(OWN, DIFFERS)
    start = start_of(Anchored(), own, tmp_path)
    commit = Commit(RUN, 3, 3, (), 1, 2, genesis_digest(RUN), Mix(mean=False))
    assert start.write(commit) == b""
    written = start.write(replace(commit, mix=Mix(mean=True)))
    assert Snapshots(tmp_path).path(Digest(written)) is not None
    whole = start_of(Members(), replica(OWN), tmp_path)
    assert whole.write(replace(commit, mix=Mix(mean=True))) == b""
