"""A step by the results of summers: the same bits on every node, and what is no result moves
nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from protocol.codec.commits import Commit
from protocol.codec.payload import Header, encode
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.runfile import AlgorithmSpec
from protocol.schedule import float32_bits
from protocol.sums.ranges import ranges_of
from tests.node.links.net import RUN
from tests.support.summed import SummedRound, summed
from tests.support.tiny import tiny_spec
from tests.support.votes import signs, two_scales

AUTHORS = [PeerId(f"{number:032x}") for number in range(1, 4)]
ROUND = 3
RATE_BITS = (float32_bits(0.01), float32_bits(0.99))


def replica(device: str = "cpu", **algorithm: Any) -> Replica:
    fields = {"top_k": 24, "local_samples": 1, **algorithm}
    spec = tiny_spec(overlap=0).model_copy(update={"algorithm": AlgorithmSpec(**fields)})
    return replica_for(spec, RUN, torch.device(device), 1)


def a_round(node: Replica, authors: Sequence[PeerId] = AUTHORS, **options: Any) -> SummedRound:
    """A round in which everybody says something else."""
    algorithm, shape = node._spec.algorithm, node.shape
    say = two_scales if algorithm.value_bits == 2 else signs
    payloads = {
        author: encode(
            Header(RUN, ROUND, author), say(shape.chunks, shape.top_k, int(author, 16)), shape
        )
        for author in authors
    }
    return summed(RUN, ROUND, payloads, shape, algorithm, RATE_BITS, **options)


def moved_by(node: Replica, commit: Commit, blobs: Sequence[bytes]) -> Tensor:
    """float32 [chunks, 64, 64]: how far a commit moves the parameters, beside their decay."""
    node.reset()
    before = node.layout.gather({name: 0.99 * each for name, each in node.committed.items()})
    node.apply(commit, blobs)
    return node.layout.gather(dict(node.committed)) - before


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize(("strip_chunks", "flat"), [(1, False), (2, True), (128, True)])
def test_strips_and_the_way_of_a_device_change_no_bit_of_a_step_by_results(
    bits: int, strip_chunks: int, flat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = replica(value_bits=bits, gain=3.0), replica(value_bits=bits, gain=3.0)
    made = a_round(one)
    expected = one.apply(made.commit, made.results)
    module = "node.exact.local_steps.aggregate"
    monkeypatch.setattr(f"{module}.is_accelerator", lambda _: flat)
    for name in ("STRIP_CHUNKS_PER_THREAD", "STRIP_CHUNKS_MAX"):
        monkeypatch.setattr(f"{module}.{name}", strip_chunks)
    assert other.apply(made.commit, made.results) == expected != replica().digest


@pytest.mark.parametrize("bits", [1, 2])
def test_results_move_about_as_the_payloads_do(bits: int) -> None:
    node = replica(value_bits=bits)
    made, shape = a_round(node), node.shape
    by_results = moved_by(node, made.commit, made.results)
    say = two_scales if bits == 2 else signs
    payloads = [
        encode(Header(RUN, ROUND, a), say(shape.chunks, shape.top_k, int(a, 16)), shape)
        for a in AUTHORS
    ]
    by_payloads = moved_by(node, replace(made.commit, sums=None), payloads)
    assert torch.cosine_similarity(by_results.flatten(), by_payloads.flatten(), dim=0) > 0.9
    assert 0.7 < by_results.norm() / by_payloads.norm() < 2, "rounding at most doubles"
    assert node.payloads_ignored == 0


@pytest.mark.parametrize(
    ("blob", "reason"),
    [(b"", "void"), (b"junk", "expected sums, got 4 bytes"), (None, "not added")],
)
def test_a_range_without_a_result_moves_nothing_and_the_others_do(
    blob: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = replica()
    made = a_round(node)
    whole = moved_by(node, made.commit, made.results)
    assert made.commit.sums is not None
    commit, blobs = made.commit, list(made.results)
    if blob is None:
        del blobs[1]
        left = commit.sums.results[0], commit.sums.results[2]
        commit = replace(commit, sums=replace(commit.sums, results=left))
    else:
        blobs[1] = blob
    with caplog.at_level(logging.WARNING, "lockstep.node"):
        found = moved_by(node, commit, blobs)
    first, silent, last = (each.slice for each in ranges_of(node.layout.chunks, 3))
    assert not found[silent].any()
    assert whole[silent].any()
    for part in (first, last):
        assert torch.equal(found[part], whole[part])
    assert node.payloads_ignored == 1
    assert f"sum ignored round=3 range=1 reason={reason}" in caplog.text


def test_an_author_that_is_silent_in_a_range_weighs_all_the_same() -> None:
    node = replica()
    others = moved_by(node, *both(a_round(node, AUTHORS[:2])))
    found = moved_by(node, *both(a_round(node, silent={1: [AUTHORS[2]]})))
    among = ranges_of(node.layout.chunks, 3)[1].slice
    assert found[among].norm() / others[among].norm() == pytest.approx(2 / 3, rel=0.1)


def both(made: SummedRound) -> tuple[Commit, list[bytes]]:
    return made.commit, made.results


def test_what_was_not_said_fades_unless_the_round_had_one_author() -> None:
    node = replica(fade=0.25)
    assert isinstance(node, LocalStepsReplica)
    for authors, fade in ((AUTHORS, 0.25), (AUTHORS[:1], 1.0)):
        node.apply(*both(a_round(node, authors)))
        assert node.engine.fade == fade


@pytest.fixture(scope="module")
def pair() -> tuple[Replica, Replica]:
    return replica(), replica()


@settings(max_examples=50)
@given(st.data())
def test_any_bytes_lead_two_replicas_to_the_same_state(
    pair: tuple[Replica, Replica], data: st.DataObject
) -> None:
    made = a_round(pair[0])
    blobs = []
    for result in made.results:
        blob = bytearray(result)
        for _ in range(data.draw(st.integers(0, 3))):
            blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
        blobs.append(data.draw(st.sampled_from([bytes(blob), bytes(blob[:-1]), b""])))
    assert len({each.apply(made.commit, blobs) for each in pair}) == 1
    for tensor in pair[0].committed.values():
        assert tensor.isfinite().all()


@pytest.mark.parametrize("name", ["demo", "gossip-adam"])
def test_a_replica_of_another_algorithm_refuses_sums(name: str) -> None:
    spec = tiny_spec(overlap=0).model_copy(update={"algorithm": AlgorithmSpec(name=name)})
    node, made = replica_for(spec, RUN, torch.device("cpu"), 1, AUTHORS[0]), a_round(replica())
    before = node.digest
    with pytest.raises(RemoteProtocolError, match=f"without sums in a run of {name}, got round 3"):
        node.apply(made.commit, made.results)
    assert node.digest == before == node.computed_digest()


def test_more_ranges_than_chunks_are_refused() -> None:
    node = replica()
    made = a_round(node)
    assert made.commit.sums is not None
    commit = replace(made.commit, sums=replace(made.commit.sums, ranges=node.layout.chunks + 1))
    before = node.digest
    with pytest.raises(RemoteProtocolError, match=r"expected at most \d+ ranges, as many as there"):
        node.apply(commit, made.results)
    assert node.digest == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bits", [1, 2])
def test_a_card_makes_the_same_step(bits: int) -> None:
    one, other = replica(value_bits=bits, gain=3.0), replica("cuda", value_bits=bits, gain=3.0)
    made = a_round(one)
    assert one.apply(*both(made)) == other.apply(*both(made))
