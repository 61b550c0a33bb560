"""Apply is total: two replicas that compute in different ways make the same step of any payload.

apply demo           any bytes, as the payload of one of two authors
apply local steps    the same with local steps
apply movements      bytes that say counts, scales, places, signs and samples of two authors,
                     beside a third that is honest: whatever can be sent in the right form
apply results        any bytes, as the result of one of two ranges
"""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch

from node.exact.contributions import Contribution
from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.results import apply_results
from node.exact.plain import Plain
from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from node.replica.replica import Replica
from protocol.codec.commit_sums import AuthorSet
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode
from protocol.codec.scales import CODE_MAX
from protocol.ids import PeerId, sha256
from protocol.limits import CHUNK_ENTRIES
from protocol.runfile import AlgorithmSpec, ScheduleSpec
from protocol.schedule import scalars
from protocol.sums.ranges import ranges_of
from protocol.sums.results import read_results
from tests.fuzz.summing import sums_for
from tests.fuzz.targets import PEER, RUN, Target, payload_for
from tests.support.tiny import tiny_spec

ROUND = 3
AUTHORS = (PEER, PeerId("ef" * 16), PeerId("ee" * 16))
DEMO = AlgorithmSpec(name="demo", top_k=4)
LOCAL_STEPS = AlgorithmSpec(top_k=4, local_samples=2, gain=2.5)

WEIGHT_BYTES = 3
"""Bytes of a number of samples, at least 1."""


class OtherWay(LocalStepsReplica):
    """A replica that steps as an accelerator does, three chunks at a time, last author first."""

    def _step(self, contributions: Sequence[Contribution], rates: tuple[float, float]) -> None:
        learning_rate, decay = rates
        movements = self.movements(contributions, learning_rate)[::-1]
        gain = self._spec.algorithm.gain
        apply(self.layout, self.committed, movements, decay, gain=gain, strip_chunks=3, flat=True)


@cache
def replicas(algorithm: AlgorithmSpec) -> tuple[Replica, Replica]:
    """One with the fastest way of this machine, and one with another."""
    spec = tiny_spec(overlap=0).model_copy(update={"algorithm": algorithm})
    ours = replica_for(spec, RUN, torch.device("cpu"), 1)
    if algorithm.facts.scaled:
        return ours, OtherWay(spec, RUN, torch.device("cpu"), 1)
    plain = replica_for(spec, RUN, torch.device("cpu"), 1)
    plain.engine.backend = Plain(plain.layout)
    return ours, plain


def judge_apply(blob: bytes, algorithm: AlgorithmSpec) -> None:
    """A commit of any bytes and of an honest payload."""
    ours, _ = replicas(algorithm)
    judge_step([blob or b"\0", payload_for(ours.shape, ROUND, AUTHORS[1], 1)], [1, 1], algorithm)


def judge_movements(blob: bytes) -> None:
    """A commit of two payloads that the bytes say and of an honest one."""
    ours, _ = replicas(LOCAL_STEPS)
    said = np.resize(np.frombuffer(blob or b"\0", np.uint8), 2 * _said_bytes(ours.shape))
    sent, samples = list[bytes](), list[int]()
    for author, part in zip(AUTHORS, np.split(said, 2), strict=False):
        samples.append(1 + int.from_bytes(part[:WEIGHT_BYTES].tobytes()))
        header = Header(RUN, ROUND, author)
        sent.append(encode(header, _said(part[WEIGHT_BYTES:], ours.shape), ours.shape))
    sent.append(payload_for(ours.shape, ROUND, AUTHORS[2], 1))
    judge_step(sent, [*samples, 8], LOCAL_STEPS)


def judge_step(sent: Sequence[bytes], samples: Sequence[int], algorithm: AlgorithmSpec) -> None:
    """Both replicas come to one state, of numbers."""
    ours, other = replicas(algorithm)
    entries = tuple(
        Entry(author, sha256(payload), len(payload), trained, trained)
        for author, payload, trained in zip(AUTHORS, sent, samples, strict=False)
    )
    commit = Commit(RUN, ROUND, ROUND, entries, *scalars(ScheduleSpec(), 100), genesis_digest(RUN))
    assert ours.apply(commit, sent) == other.apply(commit, sent), "two states"
    assert all(tensor.isfinite().all() for tensor in ours.committed.values()), "no numbers"


def judge_results(blob: bytes) -> None:
    """Two ways to step by a result that says anything, and by another, end at the same numbers."""
    layout, authors = replicas(LOCAL_STEPS)[0].layout, AuthorSet(3, 3, 40, CODE_MAX)
    ranges = ranges_of(layout.chunks, 2)
    levels, refused = read_results([blob, sums_for(ranges[1].chunks)[2]], ranges)
    both = [{name: torch.ones(shape) for name, shape in layout.shapes.items()} for _ in range(2)]
    for found, flat in zip(both, (False, True), strict=True):
        apply_results(layout, found, levels, authors, 1.0, top_k=4, gain=64.0, flat=flat)
    for name, tensor in both[0].items():
        assert torch.equal(tensor, both[1][name]), "two states"
        assert tensor.isfinite().all(), "no numbers"
    if refused:
        raise refused[0]


def _said_bytes(shape: PayloadShape) -> int:
    """Bytes that say the payload of one author: samples, and of each chunk a count, a scale, a
    distance between places, and the signs.
    """
    return WEIGHT_BYTES + shape.chunks * (3 + shape.top_k)


def _said(numbers: np.ndarray[tuple[int], np.dtype[np.uint8]], shape: PayloadShape) -> Coefficients:
    rows = numbers.reshape(shape.chunks, 3 + shape.top_k)
    counts = (rows[:, 0] % (shape.top_k + 1)).astype(np.uint16)
    scales = np.where(counts > 0, rows[:, 1], 0).astype(np.uint8)
    distances = rows[:, 2].astype(np.int64) % (CHUNK_ENTRIES // shape.top_k) + 1
    places = distances[:, None] * np.arange(1, shape.top_k + 1) - 1
    there = np.arange(shape.top_k) < counts[:, None]
    signs = np.where(rows[:, 3:] % 2, 1, -1).astype(np.int16)
    return Coefficients(counts, places[there].astype(np.uint16), signs[there], scales)


def targets() -> dict[str, Target]:
    """The readers that make steps."""
    found = dict[str, Target]()
    for name, algorithm in (("apply demo", DEMO), ("apply local steps", LOCAL_STEPS)):
        shape = replicas(algorithm)[0].shape
        seeds = tuple(payload_for(shape, ROUND, AUTHORS[0], number) for number in range(4))
        judge = partial(judge_apply, algorithm=algorithm)
        found[name] = Target(judge, seeds, share=1)
    said = 2 * _said_bytes(replicas(LOCAL_STEPS)[0].shape)
    chance = np.random.default_rng(0)
    movements = (bytes(said), b"\xff" * said, chance.bytes(said))
    chunks = ranges_of(replicas(LOCAL_STEPS)[0].layout.chunks, 2)[0].chunks
    return found | {
        "apply movements": Target(judge_movements, movements, share=1),
        "apply results": Target(judge_results, sums_for(chunks), share=1),
    }
