"""A replica with parameters of its own: edges move no mean, a mean is equal to the bit, and a kill
leaves no edge half mixed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from node.data.corpus import Corpus
from node.replica.canonical import canonical_bytes
from node.replica.factory import replica_for
from node.replica.gossip_adam import GossipAdamReplica
from node.replica.position import Position
from protocol.codec.commits import Commit, Entry, Mix, genesis_digest
from protocol.codec.payload import Header
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.ids import PeerId, sha256
from protocol.runfile import AlgorithmSpec, RoundsSpec
from protocol.schedule import float32_bits
from tests.node.links.net import RUN
from tests.support.tiny import tiny_corpus, tiny_spec

A, B, C = AUTHORS = [PeerId(f"{number:032x}") for number in range(1, 4)]
RATE_BITS = (float32_bits(0.01), float32_bits(1.0))
HALF_HALF = Mix(mean=False, edges=((0, 1, 2),))
MEAN = Mix(mean=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


def replica(own: PeerId, **mixing: Any) -> GossipAdamReplica:
    algorithm = AlgorithmSpec.model_validate({"name": "gossip-adam", "mixing": mixing})
    spec = tiny_spec().model_copy(update={"algorithm": algorithm})
    found = replica_for(spec, RUN, torch.device("cpu"), 8, own)
    assert isinstance(found, GossipAdamReplica)
    return found


@dataclass
class Nodes:
    """Replicas that train apart, and the payloads of their rounds."""

    corpus: Corpus
    by_peer: dict[PeerId, GossipAdamReplica]
    payloads: dict[tuple[PeerId, int], bytes] = field(default_factory=dict)

    def train(self, round: int, *peers: PeerId, mean: bool = False) -> None:
        """Each makes its step and its payload of the round, and applies nothing yet."""
        for number, peer in enumerate(self.by_peer):
            if peer in (peers or self.by_peer):
                node = self.by_peer[peer]
                first = 50 * number + 8 * round
                passes = node.begin([self.corpus.batch(first, 4, 32, 0)], None, RATE_BITS)
                while passes.next():
                    pass
                passes.finish()
                node.accumulate()
                self.send(peer, round, mean=mean)

    def send(self, peer: PeerId, round: int, *, mean: bool = False) -> None:
        extraction = self.by_peer[peer].extract(round, mean=mean)
        payload, _ = self.by_peer[peer].encoded(Header(RUN, round, peer), extraction)
        self.payloads[peer, round] = payload

    def commit(self, round: int, mix: Mix | None, *authors: PeerId) -> Commit:
        made = [self.payloads[author, round] for author in authors]
        entries = tuple(
            Entry(author, sha256(payload), len(payload), 1, 4)
            for author, payload in zip(authors, made, strict=True)
        )
        return Commit(RUN, round, round, entries, *RATE_BITS, genesis_digest(RUN), mix)

    def apply(self, commit: Commit, *peers: PeerId) -> None:
        for peer in peers or self.by_peer:
            self.by_peer[peer].apply(commit, self.for_peer(commit, peer))

    def for_peer(self, commit: Commit, peer: PeerId) -> list[bytes]:
        """What a node collects of a commit: nothing that it does not need."""
        needed = commit.needed_by(peer)
        return [
            self.payloads[entry.author, commit.round] if entry in needed else b""
            for entry in commit.entries
        ]


def nodes(corpus: Corpus, *peers: PeerId, **mixing: Any) -> Nodes:
    return Nodes(corpus, {peer: replica(peer, **mixing) for peer in peers})


def vector(node: GossipAdamReplica) -> npt.NDArray[np.float64]:
    return np.concatenate(
        [node.committed[name].numpy().ravel().astype(np.float64) for name in sorted(node.committed)]
    )


def mean(replicas: Sequence[GossipAdamReplica] | Mapping[PeerId, GossipAdamReplica]) -> Any:
    listed = list(replicas.values()) if isinstance(replicas, Mapping) else list(replicas)
    return np.mean([vector(node) for node in listed], axis=0)


@pytest.mark.parametrize("exchange", ["float16", "float32"])
def test_an_edge_brings_its_ends_together_and_moves_no_mean(corpus: Corpus, exchange: str) -> None:
    group = nodes(corpus, *AUTHORS, exchange=exchange)
    group.train(0)
    before, third = mean(group.by_peer), vector(group.by_peer[C])
    apart = np.abs(vector(group.by_peer[A]) - vector(group.by_peer[B])).max()
    group.apply(group.commit(0, HALF_HALF, *AUTHORS))
    assert np.abs(mean(group.by_peer) - before).max() < 1e-7, "float32 rounding"
    left = np.abs(vector(group.by_peer[A]) - vector(group.by_peer[B])).max()
    assert left < apart / 20, "what rounding took from the payloads stays with each end"
    assert (vector(group.by_peer[C]) == third).all(), "its edge failed"


def test_a_round_of_the_mean_makes_all_nodes_equal_to_the_bit_even_one_that_sent_nothing(
    corpus: Corpus,
) -> None:
    group = nodes(corpus, *AUTHORS)
    group.train(0, mean=True)
    expected = mean([group.by_peer[A], group.by_peer[B]])
    group.apply(group.commit(0, MEAN, A, B))
    assert len({node.digest for node in group.by_peer.values()}) == 1
    assert np.abs(vector(group.by_peer[C]) - expected).max() < 1e-7


def test_nodes_that_mix_learn(corpus: Corpus) -> None:
    group = nodes(corpus, A, B)
    validation = corpus.batch(700, 8, 32, 0)
    before = group.by_peer[A].trainee.evaluate(validation)
    for round in range(8):
        group.train(round, mean=round == 7)
        group.apply(group.commit(round, MEAN if round == 7 else HALF_HALF, A, B))
    assert group.by_peer[A].trainee.evaluate(validation) < before - 0.3
    assert group.by_peer[A].digest == group.by_peer[B].digest


def test_a_killed_node_mixes_every_edge_that_was_committed_and_loses_no_step_that_it_sent(
    corpus: Corpus, tmp_path: Path
) -> None:
    """It is saved in round 0, and killed when it has announced round 2."""
    group = nodes(corpus, A, B)
    group.train(0)
    node = group.by_peer[A]
    node.save(tmp_path / "state", Position(0, genesis_digest(RUN), -1))
    commits = []
    for round in range(3):
        if round:
            group.train(round)
        commits.append(group.commit(round, HALF_HALF, A, B))
        group.apply(commits[-1], *([A, B] if round < 2 else [B]))
    after = vector(group.by_peer[B])
    again = replica(A)
    assert again.load(tmp_path / "state") is not None
    for commit in commits:
        again.apply(commit, group.for_peer(commit, A))
    node.apply(commits[2], group.for_peer(commits[2], A))
    assert np.abs(vector(again) - vector(node)).max() < 1e-3, "float16 took the rest"
    assert np.abs(vector(again) - after).max() < 1e-3, "both ends took half of each other"


def test_moments_go_on_after_a_restart(corpus: Corpus, tmp_path: Path) -> None:
    group = nodes(corpus, A, accumulate=2)
    for round in range(3):
        group.train(round)
    group.by_peer[A].save(tmp_path / "state", Position(3, genesis_digest(RUN), 2))
    again = Nodes(corpus, {A: replica(A, accumulate=2)})
    assert again.by_peer[A].load(tmp_path / "state") is not None
    for each in (group, again):
        each.train(3)
    assert again.by_peer[A].digest == group.by_peer[A].digest


def test_a_payload_that_does_not_decode_counts_for_nothing_at_either_end(corpus: Corpus) -> None:
    group = nodes(corpus, A, B)
    group.train(0)
    group.payloads[B, 0] = group.payloads[B, 0][:-2] + b"\x00\x7c"  # infinity
    before = {peer: vector(node) for peer, node in group.by_peer.items()}
    group.apply(group.commit(0, HALF_HALF, A, B))
    for peer, node in group.by_peer.items():
        assert np.abs(vector(node) - before[peer]).max() < 1e-7
        assert node.payloads_ignored == 1
    with pytest.raises(RemoteProtocolError, match="finite"):
        group.by_peer[A].header_of(0, group.payloads[B, 0])


def test_a_payload_of_another_round_is_none(corpus: Corpus) -> None:
    group = nodes(corpus, A)
    group.train(0)
    with pytest.raises(RemoteProtocolError, match="round 1"):
        group.by_peer[A].header_of(1, group.payloads[A, 0])


def test_a_round_that_only_mixes_brings_nodes_together_and_leaves_their_moments(
    corpus: Corpus,
) -> None:
    group = nodes(corpus, A, B, C, exchange="float32")
    chain = (Mix(mean=False, edges=((0, 1, 3), (1, 2, 3))), *AUTHORS)
    group.train(0)
    group.apply(group.commit(0, *chain))
    update = group.by_peer[A].own_report()["update"]
    moments = {name: each.clone() for name, each in group.by_peer[A].engine.tensors().items()}
    before, apart_by = mean(group.by_peer), spread(group)
    for round in (1, 2, 3):
        for peer in AUTHORS:
            group.send(peer, round)
        group.apply(group.commit(round, *chain))
    assert spread(group) < apart_by / 3
    assert np.abs(mean(group.by_peer) - before).max() < 1e-6
    for name, each in group.by_peer[A].engine.tensors().items():
        assert torch.equal(each, moments[name])
    assert group.by_peer[A].own_report()["update"] == update > 0


def spread(group: Nodes) -> float:
    """Root mean square distance of the nodes from their mean."""
    apart = [vector(node) - mean(group.by_peer) for node in group.by_peer.values()]
    return float(np.sqrt(np.mean([each @ each for each in apart])))


def test_the_size_of_an_update_is_that_of_the_step(corpus: Corpus) -> None:
    group = nodes(corpus, A)
    before = vector(group.by_peer[A])
    group.train(0)
    moved = float(np.linalg.norm(vector(group.by_peer[A]) - before))
    assert group.by_peer[A].own_report()["update"] == pytest.approx(moved, rel=1e-3)


# ---- differences to the newest mean


def apart(group: Nodes, scale: float = 0.05) -> None:
    """Every node somewhere else."""
    generator = torch.Generator().manual_seed(1)
    for node in group.by_peer.values():
        for tensor in node.committed.values():
            tensor.add_(scale * torch.randn(tensor.shape, generator=generator))


def test_differences_of_one_byte_move_no_mean_and_bring_both_ends_together(
    corpus: Corpus,
) -> None:
    group = nodes(corpus, A, B, exchange="int8")
    apart(group)
    before, distance = mean(group.by_peer), np.abs(vector(group.by_peer[A]) - mean(group.by_peer))
    for round in range(4):
        for peer in (A, B):
            group.send(peer, round)
        group.apply(group.commit(round, HALF_HALF, A, B))
    assert np.abs(mean(group.by_peer) - before).max() < 1e-6, "rounding moves no mean"
    left = np.abs(vector(group.by_peer[A]) - before).max()
    assert left < distance.max() / 20
    whole = nodes(corpus, A)
    whole.send(A, 0)
    assert len(group.payloads[A, 0]) < 0.53 * len(whole.payloads[A, 0]), "float16 has two bytes"


def test_what_rounding_left_out_is_in_the_next_difference(corpus: Corpus) -> None:
    """A change far below a level is heard of once it has added up."""
    group = nodes(corpus, A, exchange="int8")
    node = group.by_peer[A]
    next(iter(node.committed.values())).view(-1)[0] += 1.0  # a level of its block is 1 / 127
    heard = []
    for round in range(6):
        next(iter(node.committed.values())).view(-1)[1] += 0.001
        sent = node.extract(round).values
        place = next(first for name, _, first, _ in node._places() if name == first_name(node))
        heard.append(float(sent.values(place + 1, place + 2)[0]))
    assert heard[0] == 0.0
    assert heard[-1] == pytest.approx(1 / 127)


def first_name(node: GossipAdamReplica) -> str:
    return next(iter(node.committed))


def test_a_mean_is_the_base_of_what_comes_after_it(corpus: Corpus) -> None:
    group = nodes(corpus, A, B, exchange="int8")
    apart(group)
    for round, mix in ((0, HALF_HALF), (1, MEAN), (2, HALF_HALF)):
        for peer in (A, B):
            group.send(peer, round, mean=mix is MEAN)
        group.apply(group.commit(round, mix, A, B))
        if mix is MEAN:
            assert group.by_peer[A].digest == group.by_peer[B].digest
    assert np.abs(vector(group.by_peer[A]) - vector(group.by_peer[B])).max() == 0.0
    assert group.by_peer[A].payloads_ignored == 0


def test_an_edge_between_two_bases_fails_at_both_ends(corpus: Corpus) -> None:
    group = nodes(corpus, A, B, exchange="int8")
    apart(group)
    group.by_peer[B]._take_base()
    before = {peer: vector(node) for peer, node in group.by_peer.items()}
    for peer in (A, B):
        group.send(peer, 0)
    group.apply(group.commit(0, HALF_HALF, A, B))
    for peer, node in group.by_peer.items():
        assert (vector(node) == before[peer]).all()


def test_whole_parameters_where_differences_belong_count_for_nothing(corpus: Corpus) -> None:
    group = nodes(corpus, A, B, exchange="int8")
    apart(group)
    before = mean(group.by_peer)
    group.send(A, 0)
    group.send(B, 0, mean=True)
    group.apply(group.commit(0, HALF_HALF, A, B))
    assert [node.payloads_ignored for node in group.by_peer.values()] == [1, 1]
    assert np.abs(mean(group.by_peer) - before).max() < 1e-7
    whole = nodes(corpus, A)
    with pytest.raises(RemoteProtocolError, match="got differences"):
        whole.by_peer[A].header_of(0, group.payloads[A, 0])


def test_a_killed_node_goes_on_with_its_base_over_a_mean(corpus: Corpus, tmp_path: Path) -> None:
    """Saved before the mean, killed after a further edge was committed."""
    group = nodes(corpus, A, B, exchange="int8")
    apart(group)
    for peer in (A, B):
        group.send(peer, 0)
    node = group.by_peer[A]
    node.digest = node.apply(replace(group.commit(0, None, A, B), entries=()), [])
    node.save(tmp_path / "state", Position(0, genesis_digest(RUN), -1))
    commits = []
    for round, mix in ((0, HALF_HALF), (1, MEAN), (2, HALF_HALF)):
        if round:
            for peer in (A, B):
                group.send(peer, round, mean=mix is MEAN)
        commits.append(group.commit(round, mix, A, B))
        group.apply(commits[-1])
    again = replica(A, exchange="int8")
    assert again.load(tmp_path / "state") is not None
    for commit in commits:
        again.apply(commit, group.for_peer(commit, A))
    assert again.digest == group.by_peer[A].digest
    for each in (again, group.by_peer[A]):
        each.extract(3)
    fresh, old = again.extract(3).values, group.by_peer[A].extract(3).values
    assert fresh.equals(old), "the base is the same, to the bit"


def test_a_newcomer_with_the_snapshot_of_the_mean_reads_a_members_differences(
    corpus: Corpus, tmp_path: Path
) -> None:
    group = nodes(corpus, A, B, exchange="int8")
    apart(group)
    for round, mix in ((0, MEAN), (1, HALF_HALF)):
        for peer in (A, B):
            group.send(peer, round, mean=mix is MEAN)
        group.apply(group.commit(round, mix, A, B))
        if mix is MEAN:
            base = write_snapshot(tmp_path / "base", group.by_peer[A])
            apart(group)
    late = replica(C, exchange="int8")
    with pytest.raises(RemoteProtocolError, match="differences to the state"):
        late.parameters_in(1, group.payloads[A, 1])
    found = late.parameters_in(1, group.payloads[A, 1], base)
    sent = group.by_peer[A].parameters_in(1, group.payloads[A, 1])
    assert all(torch.equal(found[name], sent[name]) for name in sent)
    late.adopt(base, base)
    assert late.base_digest == group.by_peer[A].base_digest


def write_snapshot(path: Path, node: GossipAdamReplica) -> Path:
    path.write_bytes(b"".join(bytes(piece) for piece in canonical_bytes(node.committed)))
    return path


# ---- what others take


def test_a_newcomer_takes_the_parameters_in_a_payload(corpus: Corpus) -> None:
    group = nodes(corpus, A, exchange="float32")
    group.train(0)
    found = group.by_peer[A].parameters_in(0, group.payloads[A, 0])
    for name, tensor in group.by_peer[A].committed.items():
        assert torch.equal(found[name], tensor)


def test_the_report_tells_the_distance_between_nodes(corpus: Corpus) -> None:
    group = nodes(corpus, A, B)
    group.train(0)
    reports = [np.array(node.own_report()["projection"]) for node in group.by_peer.values()]
    true = np.linalg.norm(vector(group.by_peer[A]) - vector(group.by_peer[B]))
    assert 0.5 * true < np.linalg.norm(reports[0] - reports[1]) < 1.5 * true


def test_a_model_that_the_run_file_has_no_room_for_is_refused() -> None:
    algorithm = AlgorithmSpec(name="gossip-adam")
    spec = tiny_spec().model_copy(
        update={"algorithm": algorithm, "rounds": RoundsSpec(payload_bytes_max=2048)}
    )
    with pytest.raises(SettingsError, match="payload_bytes_max"):
        replica_for(spec, RUN, torch.device("cpu"), 8, A)


def test_nobody_else_replays_a_node() -> None:
    spec = tiny_spec().model_copy(update={"algorithm": AlgorithmSpec(name="gossip-adam")})
    with pytest.raises(SettingsError, match="another algorithm to audit"):
        replica_for(spec, RUN, torch.device("cpu"), 8)


def test_a_commit_without_edges_changes_nothing(corpus: Corpus) -> None:
    group = nodes(corpus, A, B)
    group.train(0)
    before = vector(group.by_peer[A])
    group.apply(group.commit(0, Mix(mean=False), A, B))
    group.apply(replace(group.commit(0, Mix(mean=False), A, B), mix=None), A)
    assert (vector(group.by_peer[A]) == before).all()
