"""What ranks own together is, to the bit, what one rank owns alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from node.data.tokenizer import ByteTokenizer
from node.exact.engine import GradientError
from node.model.check import check_model
from node.model.checkpoint import save_checkpoint
from node.model.training import TrainingModel
from node.own_replica import try_model
from node.ranks.crew import Crew
from node.ranks.replica import SharedReplica, replica_of
from node.ranks.sharded import held_of
from node.replica.digest import canonical_sha256
from node.replica.factory import replica_for
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import Snapshots
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Header, decode, encode
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId, sha256
from protocol.planner.needs import Needs
from protocol.runfile import AlgorithmSpec, ModelSpec
from protocol.schedule import float32_bits
from tests.support.crew import CPU
from tests.support.payloads import signs_of
from tests.support.summed import summed
from tests.support.tiny import CONFIG, tiny_spec

RUN, OWN, OTHER = RunId("a" * 32), PeerId("b" * 32), PeerId("c" * 32)
SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128}
"""Of whole chunks, which have few equal entries: of those any may be sent."""
SPECS = {
    bits: tiny_spec(
        overlap=1, algorithm=AlgorithmSpec(top_k=16, local_samples=2, value_bits=bits)
    ).model_copy(update={"model": ModelSpec(config=CONFIG | SIZES)})
    for bits in (1, 2)
}
"""By the bits of a value."""
pytestmark = pytest.mark.usefixtures("alike")
RATE_BITS = float32_bits(0.01), float32_bits(0.99)


@pytest.fixture(autouse=True)
def _one_order(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 makes all passes, with one thread: gradients are summed in one order."""
    torch.set_num_threads(1)
    monkeypatch.setattr("node.ranks.crew.dealt", lambda n, *_: (n, *[0] * (crew.count - 1)))


@pytest.fixture(params=[("float32", 1), ("bfloat16", 1), ("float32", 2)], ids=str)
def replicas(
    request: pytest.FixtureRequest, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> tuple[Replica, SharedReplica]:
    """One of a rank alone, and one of all ranks."""
    weights, spec = getattr(torch, request.param[0]), SPECS[request.param[1]]
    for module in ("node.replica.local_steps", "node.ranks.crew"):
        monkeypatch.setattr(f"{module}.weights_dtype", lambda *_: weights)
    parts = spec, RUN, CPU, 1, OWN
    many = replica_of(crew, *parts)
    assert isinstance(many, SharedReplica)
    return replica_for(*parts), many


def work(replica: Replica, round: int, pending: wire.Announced | None = None) -> bytes:
    """The payload of a round of three local steps of a sample each."""
    tokens = np.random.default_rng(round).integers(0, 256, (3, 1, 33))
    passes = replica.begin([*tokens], pending, RATE_BITS)
    while passes.next():
        pass
    passes.finish()
    replica.accumulate()
    return replica.encoded(Header(RUN, round, OWN), replica.extract(round))[0]


def commit(round: int, *payloads: bytes) -> tuple[Commit, list[bytes]]:
    """The first one is by this node, and others that are the same by another one."""
    entries = [
        Entry(author, sha256(payload), len(payload), 3, 3)
        for author, payload in zip((OWN, OTHER), payloads, strict=False)
    ]
    return Commit(RUN, round, round, tuple(entries), *RATE_BITS, genesis_digest(RUN)), [*payloads]


def theirs(payload: bytes, replica: Replica, round: int) -> bytes:
    """The payload as another author's."""
    _, coefficients = decode(payload, replica.shape)
    return encode(Header(RUN, round, OTHER), coefficients, replica.shape)


def alike(one: bytes, other: bytes, replica: Replica) -> float:
    """Part of the signs in which two payloads agree, at the places that both have: most, though
    bfloat16 chooses some otherwise, 9 % even on one rank that makes its loss by pieces.
    """
    signs, more = (signs_of(decode(payload, replica.shape)[1]) for payload in (one, other))
    both = signs.keys() & more.keys()
    assert len(both) >= 0.8 * len(signs)
    return sum(signs[place] == more[place] for place in both) / len(both)


def test_payloads_and_digests_do_not_know_the_ranks(
    replicas: tuple[Replica, SharedReplica],
) -> None:
    """With overlap: rounds go on ahead of commits, which come between two of them."""
    pending: wire.Announced | None = None
    digests = []
    for round in range(3):
        one, many = (work(each, round, pending) for each in replicas)
        assert alike(one, many, replicas[0]) >= 0.99
        pending = wire.Announced(round=round, digest=sha256(one), samples=3)
        for each in replicas:
            each.apply(*commit(round, one, theirs(one, each, round)))
            each.stand_at()
        assert replicas[0].digest == replicas[1].digest
        digests.append(replicas[0].digest)
    assert len(set(digests)) == 3
    for each in replicas:
        each.apply(*commit(3))
    assert replicas[0].digest == replicas[1].digest, "a commit that nobody contributed to"
    replicas[1].reset()
    replicas[0].reset()
    assert alike(work(replicas[1], 0), work(replicas[0], 0), replicas[0]) >= 0.99
    assert replicas[0].digest == replicas[1].digest


def test_a_step_by_results_does_not_know_the_ranks(
    replicas: tuple[Replica, SharedReplica],
) -> None:
    alone, many = replicas
    payload = work(alone, 0)
    payloads = {OWN: payload, OTHER: theirs(payload, alone, 0)}
    spec = alone._spec.algorithm
    for authors in ((OWN, OTHER), (OWN,)):
        said = {author: payloads[author] for author in authors}
        made = summed(RUN, 0, said, alone.shape, spec, RATE_BITS, ranges=5)
        for blobs in (made.results, [*made.results[:3], b"", b"junk"]):
            before = alone.digest
            for each in replicas:
                each.apply(made.commit, blobs)
                each.stand_at()
            assert before != alone.digest == many.digest
        assert alone.engine.fade == many._part.engine.fade


def test_each_rank_owns_its_part_and_one_largest_parameter_at_most(
    crew: Crew, replicas: tuple[Replica, SharedReplica]
) -> None:
    alone, many = replicas
    sizes = {name: tensor.numel() for name, tensor in alone.committed.items()}
    owned = [
        sum(sizes[name] for name, owner in many._part.share.owners.items() if owner == rank)
        for rank in range(crew.count)
    ]
    assert sum(owned) == sum(sizes.values())
    assert max(owned) <= sum(sizes.values()) / crew.count + max(sizes.values())
    assert min(owned) > 0
    assert sum(each.numel() for each in many._part.committed.values()) == owned[0]
    assert many._part.engine.entries.shape[0] == many._part.share.layout.chunks


def test_each_rank_has_its_rows_of_the_network_between_two_passes(
    crew: Crew, replicas: tuple[Replica, SharedReplica]
) -> None:
    """Beside them are the working weights that it owns, and gradients in its rows alone."""
    alone, many = replicas
    batch = np.zeros((crew.count + 1, 33), np.int64)  # a sample more than a pass has
    passes = many.begin([batch], None, RATE_BITS)
    assert passes.next()
    held = dict[int, int]()
    for name, whole in alone.trainee.parameters.items():
        rows = many._part.network.trainee.parameters[name]
        for tensor in (rows.data, rows.grad):
            local = held_of(tensor)
            assert len(local) == min(len(whole), -(-len(whole) // crew.count))
            storage = local.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
        is_own = name in many._part.share.names
        assert many.trainee.parameters[name].numel() == (whole.numel() if is_own else 0)
    weights = sum(each.nbytes for each in alone.trainee.parameters.values())
    assert sum(held.values()) <= 1.05 * 2 * weights / crew.count, "weights and gradients"


def test_what_is_saved_and_published_does_not_know_the_ranks(
    replicas: tuple[Replica, SharedReplica], tmp_path: Path
) -> None:
    alone, many = replicas
    genesis = alone.digest
    payload = work(alone, 0)
    work(many, 0)
    position = Position(1, genesis_digest(RUN), 0)
    for each, name in ((alone, "one"), (many, "many")):
        each.apply(*commit(0, payload))
        each.save(tmp_path / name, position)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    digest = alone.digest
    for each in replicas:
        each.reset()
        assert each.digest == genesis
        assert each.load(tmp_path / ("many" if each is alone else "one")) == position
        assert each.digest == digest
    sha256_of_both = {canonical_sha256(each.committed) for each in replicas}
    assert len(sha256_of_both) == 1
    snapshots = Snapshots(tmp_path / "snapshots")
    kept = snapshots.path(snapshots.write(0, many.committed))
    assert kept is not None
    for each in replicas:
        each.reset()
        assert each.adopt(kept) == digest
        assert canonical_sha256(each.committed) in sha256_of_both


def test_a_checkpoint_is_that_of_one_rank(
    replicas: tuple[Replica, SharedReplica], tmp_path: Path
) -> None:
    payload = work(replicas[0], 0)
    for number, each in enumerate(replicas):
        each.apply(*commit(0, payload))
        parts = each.trainee.model, each.committed, ByteTokenizer(), {}
        save_checkpoint(tmp_path / str(number), *parts)
    for path in (tmp_path / "0").iterdir():
        assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes()


def test_a_state_is_measured_by_all_ranks_whatever_is_trained_meanwhile(
    replicas: tuple[Replica, SharedReplica],
) -> None:
    """A kept state is that of its round, in float32, in the middle of a batch of a later one."""
    tokens, losses = np.random.default_rng(7).integers(0, 256, (5, 33)), []
    payload = work(replicas[0], 0)
    for each in replicas:
        each.apply(*commit(0, payload))
        kept = each.kept()
        each.apply(*commit(1, theirs(payload, each, 1)))
        passes = each.begin([tokens], None, RATE_BITS)
        assert passes.next()
        losses.append(kept.nats(tokens))
        assert losses[-1] == kept.nats(tokens)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_measurement_changes_no_bit_of_training(replicas: tuple[Replica, SharedReplica]) -> None:
    _, many = replicas
    found = []
    for measures in (False, True):
        many.reset()
        payloads = [work(many, 0)]
        many.apply(*commit(0, payloads[0]))
        tokens = np.random.default_rng(1).integers(0, 256, (2, 2, 33))
        kept = many.kept() if measures else None
        passes = many.begin([*tokens], None, RATE_BITS)
        while passes.next():
            if kept:
                kept.nats(tokens[0])
        passes.finish()
        many.accumulate()
        payloads.append(many.encoded(Header(RUN, 1, OWN), many.extract(1))[0])
        many.apply(*commit(1, payloads[1]))
        found.append((payloads, many.digest))
    assert found[0] == found[1]


def test_a_kept_state_is_rows_on_each_rank_until_nobody_has_it(
    crew: Crew, replicas: tuple[Replica, SharedReplica]
) -> None:
    alone, many = replicas
    kept = many.kept()
    part = crew._own_part
    for round in (0, 1):
        work(many, round)
        assert part._kept is not None
        held = {
            local.data_ptr(): local.nbytes
            for local in map(held_of, part._kept.trainee.parameters.values())
        }
        whole = 4 * sum(each.numel() for each in alone.committed.values())
        assert sum(held.values()) <= 1.05 * whole / crew.count
        kept.nats(np.zeros((1, 33), np.int64))
    del kept
    work(many, 2)
    assert part._kept is None


@pytest.mark.parametrize("replicas", [("float32", 1)], indirect=True)
def test_a_state_that_has_no_room_is_not_kept_and_one_that_ran_out_of_it_is_measured_in_parts(
    crew: Crew, replicas: tuple[Replica, SharedReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between two passes of a batch, whose gradients stay."""
    tokens = np.random.default_rng(7).integers(0, 256, (4 * crew.count, 33))
    payloads, enough = [], TrainingModel.nats

    def nats(self: TrainingModel, piece: torch.Tensor) -> torch.Tensor:
        if len(piece) > crew.count:
            raise torch.OutOfMemoryError("too much for this one")
        return enough(self, piece)

    for disturbed in (False, True):
        many = replica_of(crew, SPECS[1], RUN, CPU, 2, OWN)
        passes = many.begin([tokens], None, RATE_BITS)
        kept = many.kept()
        expected = kept.nats(tokens)
        assert passes.next()
        if disturbed:
            with monkeypatch.context() as patch:
                patch.setattr("node.replica.kept_state.free_memory_bytes", lambda _: 1000)
                with pytest.raises(torch.OutOfMemoryError, match="and 1,000 are free"):
                    many.kept()
            kept = many.kept()
            with monkeypatch.context() as patch:
                patch.setattr(TrainingModel, "nats", nats)
                assert kept.nats(tokens) == pytest.approx(expected, rel=1e-6)
            assert many.trainee.micro_batch_max == 1
        many.trainee.micro_batch_max = 2
        while passes.next():
            pass
        passes.finish()
        many.accumulate()
        payloads.append(many.encoded(Header(RUN, 0, OWN), many.extract(0))[0])
    assert payloads[0] == payloads[1]


@pytest.mark.parametrize("replicas", [("float32", 1)], indirect=True)
def test_a_run_that_begins_at_published_weights_begins_there_on_every_rank(
    replicas: tuple[Replica, SharedReplica], crew: Crew, tmp_path: Path
) -> None:
    alone, _ = replicas
    alone.apply(*commit(0, work(alone, 0)))
    snapshots = Snapshots(tmp_path)
    genesis = snapshots.path(snapshots.write(0, alone.committed))
    many = replica_of(crew, SPECS[1], RUN, CPU, 1, OWN, genesis=genesis)
    assert many.digest == alone.digest


@pytest.mark.parametrize("replicas", [("float32", 1)], indirect=True)
def test_gradients_without_bounds_are_found_by_their_owner(
    replicas: tuple[Replica, SharedReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, many = replicas
    owners = many._part.share.owners
    foreign = next(name for name, owner in owners.items() if owner)
    honest = TrainingModel.gradient

    def gradient(self: TrainingModel, piece: torch.Tensor) -> torch.Tensor:
        nats = honest(self, piece)
        held_of(self.parameters[foreign].grad)[:1] = float("nan")
        return nats

    with monkeypatch.context() as patch:
        patch.setattr(TrainingModel, "gradient", gradient)
        passes = many.begin([np.zeros((2, 33), np.int64)], None, RATE_BITS)
        while passes.next():
            pass
        with pytest.raises(GradientError, match=rf"{foreign} with entries NaN"):
            passes.finish()
    work(many, 0)


def test_a_rank_needs_room_for_its_share_of_the_model_alone(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Needs]()

    def has_room(needs: Needs, _: int | None) -> bool:
        asked.append(needs)
        return True

    monkeypatch.setattr("node.replica.local_steps.is_accelerator", lambda _: True)
    monkeypatch.setattr("node.replica.local_steps.has_room", has_room)
    many = replica_of(crew, SPECS[1], RUN, CPU, 1, OWN)
    assert isinstance(many, SharedReplica)
    own = sum(tensor.numel() for tensor in many._part.committed.values())
    assert 0 < own < many.layout.parameters
    assert [needs.parameters for needs in asked] == [own]
    asked.clear()
    replica_for(SPECS[1], RUN, CPU, 1, OWN)
    assert [needs.parameters for needs in asked] == [many.layout.parameters]


def test_a_model_that_one_device_can_hold_is_tried_before_ranks_share_it(crew: Crew) -> None:
    assert try_model(SPECS[1], CPU, crew) == check_model(SPECS[1])
    reads_later_tokens = {name: CONFIG[name] for name in CONFIG if name != "num_key_value_heads"}
    model = ModelSpec(type="roberta", config={**reads_later_tokens, "vocab_size": 256})
    with pytest.raises(SettingsError, match="is_decoder"):
        try_model(SPECS[1].model_copy(update={"model": model}), CPU, crew)
