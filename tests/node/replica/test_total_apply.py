"""Apply is total: whatever bytes a commit names, every replica makes the same step and goes on."""

import struct
from collections.abc import Sequence
from dataclasses import replace

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.replica.factory import replica_for
from node.replica.replica import Replica
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Coefficients, Header, encode
from protocol.ids import PeerId, sha256
from protocol.runfile import AlgorithmSpec, ScheduleSpec
from protocol.schedule import float32_bits, scalars
from tests.node.links.net import RUN
from tests.support.tiny import tiny_spec

AUTHORS = [PeerId(f"{number:032x}") for number in range(1, 4)]
ROUND = 3

VERSION_2 = b"LSP1\x02\x00\x91\x02"
"""Eight bytes: magic, a header of two bytes, and in it the version of a later release."""


def replica(name: str) -> Replica:
    algorithm = AlgorithmSpec(name=name, top_k=4)  # type: ignore[arg-type]
    spec = tiny_spec(overlap=0).model_copy(update={"algorithm": algorithm})
    return replica_for(spec, RUN, torch.device("cpu"), 1)


ALGORITHMS = ("demo", "local_steps")


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Replica, Replica]]:
    return {name: (replica(name), replica(name)) for name in ALGORITHMS}


def honest(replica: Replica, author: PeerId, round: int = ROUND) -> bytes:
    """A payload with one coefficient in every chunk."""
    shape = replica.shape
    ones = torch.ones(shape.chunks, dtype=torch.int16).numpy()
    places = torch.arange(shape.chunks, dtype=torch.int32).remainder(4096).numpy()
    scales = places.astype("u1") if shape.scaled else None
    coefficients = Coefficients(ones.astype("u2"), places.astype("u2"), ones, scales)
    return encode(Header(RUN, round, author), coefficients, shape)


def commit_of(payloads: Sequence[bytes]) -> Commit:
    """A commit that names these payloads, whatever they are."""
    entries = tuple(
        Entry(author, sha256(payload), max(1, len(payload)), 1, 1)
        for author, payload in zip(AUTHORS, payloads, strict=False)
    )
    rates = scalars(ScheduleSpec(), 100)
    return Commit(RUN, ROUND, ROUND, entries, *rates, genesis_digest(RUN))


def framed(header: bytes) -> bytes:
    return struct.pack("<4sH", b"LSP1", len(header)) + header


headers = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
).map(lambda value: framed(msgpack.packb(value)))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """An honest payload of either algorithm with some bytes changed, cut or added."""
    sample = draw(st.sampled_from(_SAMPLES))
    blob = bytearray(honest(sample, draw(st.sampled_from(AUTHORS)), draw(st.integers(2, 4))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(blob) - 1))
        blob[place] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(blob)))
    tail = draw(st.binary(max_size=8))
    return bytes(blob[:cut] if draw(st.booleans()) else blob) + tail


_SAMPLES = [replica(name) for name in ALGORITHMS]

hostile = st.one_of(st.binary(max_size=200), headers, mutated(), st.just(VERSION_2))


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=200)
@given(st.lists(hostile, min_size=1, max_size=3))
def test_any_bytes_lead_two_replicas_to_the_same_state(
    pairs: dict[str, tuple[Replica, Replica]], name: str, payloads: list[bytes]
) -> None:
    commit = commit_of(payloads)
    digests = {replica.apply(commit, payloads) for replica in pairs[name]}
    assert len(digests) == 1


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("junk", [b"", VERSION_2, b"LSP1\xff\xff", framed(b"\x91" * 250)])
def test_a_payload_that_does_not_decode_leaves_the_step_of_the_others(
    pairs: dict[str, tuple[Replica, Replica]], name: str, junk: bytes
) -> None:
    first, second = pairs[name]
    good = honest(first, AUTHORS[0])
    mixed, alone = [good, junk], [good]
    assert first.apply(commit_of(mixed), mixed) == second.apply(commit_of(alone), alone)


def test_a_payload_of_the_other_algorithm_counts_for_nothing() -> None:
    for name, other in (ALGORITHMS, ALGORITHMS[::-1]):
        ours, alone = replica(name), replica(name)
        good, foreign = honest(ours, AUTHORS[0]), honest(replica(other), AUTHORS[1])
        assert ours.apply(commit_of([good, foreign]), [good, foreign]) == alone.apply(
            commit_of([good]), [good]
        )


@pytest.mark.parametrize("weight", [1, 2**24 - 4])
@pytest.mark.parametrize("rate", [0.0, 3.0e38])
def test_movements_of_any_commit_leave_replicas_equal(weight: int, rate: float) -> None:
    ours, other = replica("local_steps"), replica("local_steps")
    payloads = [honest(ours, author) for author in AUTHORS]
    commit = commit_of(payloads)
    entries = (replace(commit.entries[0], weight=weight), *commit.entries[1:])
    odd = replace(commit, entries=entries, learning_rate_bits=float32_bits(rate))
    assert ours.apply(odd, payloads) == other.apply(odd, payloads)
