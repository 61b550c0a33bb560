"""In place of a neural network: samples themselves. Exact, cheap, and nothing in it can be lost
unseen.

    gradient of a sample   its position in the data order
    payload                the positions that its author trained in the round, in the real container
                           (chunk = position / 4096, index = the rest, value 1; with local steps a
                           scale, see `movements`)
    parameters             one bit per position that a commit has applied, the sums of votes of the
                           last step, and the digest and round of that commit

So a position that is twice anywhere was counted twice, and the digest of the parameters is a
function of the commits. What a real node did not say yet is soft state and promises nothing: here
there is none of it. `Replica` is a `TrainableReplica` of `node.round.context`. The `Auditor` judges
each of its changes at once.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from node.exact.contributions import Contribution
from node.model.passes import RoundWork
from node.model.queue import AtOnce
from node.replica.position import Position
from node.replica.snapshot import read_snapshot
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, commit_digest, genesis_digest
from protocol.codec.payload import (
    Body,
    Coefficients,
    Header,
    PayloadShape,
    body_of,
    decode,
    sealed,
)
from protocol.errors import StorageError
from protocol.ids import Digest, PeerId, RunId
from protocol.runfile import RunSpec
from protocol.schedule import float32_value
from tests.simulation.auditor import Auditor
from tests.simulation.checkers import Violation
from tests.simulation.disk import Disk
from tests.simulation.movements import Work, digest_of_movements, digest_of_results
from tests.simulation.world import Process

CHUNKS = 4
POSITIONS_MAX = CHUNKS * 4096
STATE_FILE = "state"
_HEAD_BYTES = 40  # digest and round of the last commit
_SUMS_BYTES = 32  # digest of the sums of votes that made its step
_BITS_BYTES = POSITIONS_MAX // 8
_BYTES = _BITS_BYTES + _SUMS_BYTES + _HEAD_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Extraction:
    """The positions that a payload holds."""

    positions: tuple[int, ...]
    scale_code: int | None = None
    """With local steps: the code of every chunk's scale."""

    def body(self, shape: PayloadShape) -> Body:
        """The body of the payload, packed."""
        places = np.array(self.positions, np.int64)
        counts = np.bincount(places // 4096, minlength=CHUNKS).astype(np.uint16)
        indices, values = (places % 4096).astype(np.uint16), np.ones(len(places), np.int16)
        scales = None
        if self.scale_code is not None:
            scales = np.where(counts > 0, self.scale_code, 0).astype(np.uint8)
        return body_of(Coefficients(counts, indices, values, scales), shape)


class Corpus:
    """Samples that are their own positions."""

    def batch(self, first: int, count: int, sequence_length: int, seed: int) -> range:
        """Positions from `first` on."""
        return range(first, first + count)

    def expect(
        self, spans: Sequence[tuple[int, int]], length: int, seed: int, *, limit_s: float
    ) -> None:
        """Nothing to fetch."""


class TrainingModel:
    """Trains at `sample_ms` milliseconds per sample."""

    queue = AtOnce()

    def __init__(self, process: Process, sample_ms: int, micro_batch_max: int) -> None:
        self.micro_batch_max = micro_batch_max
        self.sample_ms = sample_ms
        self.done: list[int] = []
        self._process = process

    def passes(self, batches: Iterable[range]) -> "GradientAccumulation":
        """Begin the passes of a round."""
        return GradientAccumulation(self, self._process, iter(batches))


class GradientAccumulation:
    """A round's work, micro-batch by micro-batch."""

    def __init__(self, trainee: TrainingModel, process: Process, batches: Iterator[range]) -> None:
        self._trainee, self._process, self._batches = trainee, process, batches
        trainee.done = []

    @property
    def samples(self) -> int:
        """Samples trained so far."""
        return len(self._trainee.done)

    def next(self) -> bool:
        """Train a micro-batch; False when there is none left."""
        batch = next(self._batches, range(0))
        self._trainee.done += batch
        self._process.busy(len(batch) * self._trainee.sample_ms)
        return bool(batch)

    def finish(self) -> RoundWork:
        """The work that was done."""
        return RoundWork(self.samples, 2.0, 8 * self.samples)


class Replica:
    """Parameters and digest of one node in one life."""

    applies_beside = False

    def __init__(
        self, peer: PeerId, run_id: RunId, spec: RunSpec, trainee: TrainingModel, auditor: Auditor
    ) -> None:
        self.peer, self.run_id, self.trainee = peer, run_id, trainee
        self._algorithm, self._auditor = spec.algorithm, auditor
        self._has_sums = spec.rounds.sums > 0
        self.payload_bytes_max = self.shape.bytes_max
        self._raw = np.zeros(_BYTES, np.uint8)
        self.committed = {"state": torch.from_numpy(self._raw.view(np.float32))}
        self._rate = 0.0
        self.reset()

    @property
    def shape(self) -> PayloadShape:
        """The shape of every payload."""
        return PayloadShape.of(self._algorithm, CHUNKS)

    # ---- for the trainer

    def reset(self) -> None:
        """Genesis."""
        self._raw[:] = 0
        self._stands_at, self._is_adopted = -1, False
        self._set_head(genesis_digest(self.run_id), -1)
        self.void_count = 0
        self.faulty = False
        self.digest = self._digest()
        self._auditor.digests.setdefault((-1, 0), self.digest)

    def begin(
        self, batches: Iterable[range], pending: wire.Announced | None, rate_bits: tuple[int, int]
    ) -> "GradientAccumulation":
        """Begin the passes of a round."""
        self._rate = float32_value(rate_bits[0])
        return self.trainee.passes(batches)

    def stand_at(self) -> None:
        """Nothing to do: gradients do not depend on parameters."""

    def accumulate(self) -> None:
        """Nothing to do: `extract` takes what was trained."""

    def extract(self, round: int, *, mean: bool = False) -> Any:
        """What was trained in the round. The type is not the product's: the trainer only hands an
        extraction on.
        """
        positions = tuple(self.trainee.done)
        self._auditor.trained[self.peer, round] = positions
        if not self._algorithm.facts.scaled:
            return Extraction(tuple(sorted(positions)))
        code = self._scale_code(round)
        if code < 0:
            self._auditor.silent.add((self.peer, round))
            return Extraction((), 0)
        return Extraction(tuple(sorted(positions)), code)

    def _scale_code(self, round: int) -> int:
        """The scale of this round's work, of which the auditor is told."""
        work = Work(len(self.trainee.done), self._rate)
        self._auditor.works[self.peer, round] = work
        return work.code_max(self._algorithm, self.shape.top_k)

    def encoded(self, header: Header, extraction: Any) -> tuple[bytes, int]:
        """The payload of an extraction, and the number of its values."""
        shape = self.shape
        body = extraction.body(shape)
        payload = sealed(header, body, shape)
        if self._has_sums:
            self._auditor.made(payload, shape)
        return payload, body.values

    def own_report(self) -> dict[str, Any]:
        """Nothing: all replicas are equal."""
        return {}

    def apply(self, commit: Commit, payloads: Sequence[bytes]) -> int:
        """Make the commit's step; judged by the auditor."""
        self._auditor.follows(self.peer, commit.round, self.head, self.run_id, digest=self.digest)
        digest = self._summed(commit, payloads) if commit.sums else self._voted(commit, payloads)
        self._raw[_BITS_BYTES:-_HEAD_BYTES] = np.frombuffer(digest, np.uint8)
        self._set_head(commit_digest(commit), commit.round)
        self.digest = self._digest()
        self._auditor.applied(self.peer, commit, self.digest, self.void_count, faulty=self.faulty)
        return self.digest

    def _voted(self, commit: Commit, payloads: Sequence[bytes]) -> bytes:
        """Count the payloads of a commit; returns the digest of their sums."""
        contributions = []
        for place, (entry, payload) in enumerate(zip(commit.entries, payloads, strict=True)):
            if not payload:
                self._auditor.passes_over(self.peer, commit.round, entry)
                self.void_count += 1
                continue
            if Digest(hashlib.sha256(payload).digest()) != entry.digest:
                raise Violation(f"{self.peer} applies other bytes than round {commit.round} names")
            sent = self._count(commit, place, payload)
            contributions.append(Contribution(entry.weight, sent.coefficients))
        if self._algorithm.facts.scaled:
            rate = float32_value(commit.learning_rate_bits)
            return digest_of_movements(contributions, self._algorithm, rate, self.shape.top_k)
        return _digest_of_votes(contributions)

    def _summed(self, commit: Commit, blobs: Sequence[bytes]) -> bytes:
        """Take the results of a commit, and count what its authors made; returns the digest of what
        the results say.
        """
        listed = self._auditor.decided(self.peer, commit)
        assert listed.sums is not None, "the caller has looked"
        for place, entry in enumerate(listed.entries):
            self._count(listed, place, self._auditor.payload_behind(entry.digest))
        for result, blob in zip(listed.sums.results, blobs, strict=True):
            if not blob:
                self._auditor.passes_over(self.peer, commit.round, result)
                self.void_count += 1
            elif Digest(hashlib.sha256(blob).digest()) != result.digest:
                raise Violation(f"{self.peer} applies other bytes than round {commit.round} names")
            else:
                self._auditor.sums(listed, result, blob, self._algorithm)
        return digest_of_results(listed.sums, blobs, self._algorithm)

    def _count(self, commit: Commit, place: int, payload: bytes) -> "Sent":
        """Count the samples in the payload of an entry."""
        entry, sent = commit.entries[place], _decoded(payload, self.shape)
        if (sent.author, sent.round) != (entry.author, commit.round):
            raise Violation(
                f"round {commit.round} names a payload of {sent.author} in round {sent.round}"
            )
        self._auditor.counts(commit, place, sent.positions)
        if self._algorithm.facts.scaled:
            top_k = self.shape.top_k
            self._auditor.weighs(entry, commit.round, self._algorithm, top_k, sent.coefficients)
        for position in sent.positions:
            if self.has_applied(position) and not self.faulty:
                raise Violation(
                    f"round {commit.round} counts sample {position} of {sent.author} a second time"
                )
            self._raw[position >> 3] |= 1 << (position & 7)
        return sent

    def adopt(self, snapshot: Any, base: Any = None) -> int:
        """Take over a snapshot's parameters."""
        read_snapshot(snapshot, self.committed)
        self.digest, self._stands_at, self._is_adopted = self._digest(), -1, True
        self.void_count = self._auditor.adopted(self.peer, self.head_round, self.digest)
        return self.digest

    # ---- on disk

    def save(self, disk: Disk, position: Position) -> None:
        """Write the parameters and their place in the log."""
        where = (position.next_round, position.head, position.head_round)
        if self._is_adopted and position.void_count in self._auditor.passed_by(self.digest):
            # it is the checkpoint of a restart, and stands behind the commit before that
            self.void_count, self._stands_at = position.void_count, position.head_round
        self._is_adopted = False
        if position.void_count != self.void_count:
            raise Violation(
                f"{self.peer} saves {position.void_count} voids of {self.void_count} passed over"
            )
        ahead = sorted(position.voids)
        fields = (self._raw.tobytes(), self.faulty, where, self.void_count, ahead)
        body = msgspec.msgpack.encode(fields)
        disk.store_whole(STATE_FILE, hashlib.sha256(body).digest() + body)

    def load(self, disk: Disk) -> Position | None:
        """The saved state, or None and genesis."""
        path = disk.path(STATE_FILE)
        if not path.is_file():
            return None
        saved = saved_state(path.read_bytes())
        self._raw[:] = np.frombuffer(saved.raw, np.uint8)
        self.faulty = saved.faulty
        self.digest = self._digest()
        next_round, head, head_round = saved.where
        if saved.void_count in self._auditor.passed_by(self.digest):
            self._stands_at = head_round
        if head_round != self.head_round:
            raise Violation(
                f"{self.peer} saved the state of round {self.head_round} as that of {head_round}"
            )
        self.void_count = saved.void_count
        ahead = frozenset((round, Digest(digest)) for round, digest in saved.voids_ahead)
        return Position(next_round, Digest(head), head_round, ahead, saved.void_count)

    # ---- the bits

    @property
    def head(self) -> Digest:
        """Digest of the last commit applied."""
        return Digest(self._raw[-_HEAD_BYTES:-8].tobytes())

    @property
    def head_round(self) -> int:
        """Round of the last commit applied; -1 at genesis. At a checkpoint from which the run goes
        on: of the commit before the restart.
        """
        round = int.from_bytes(self._raw[-8:].tobytes(), "big", signed=True)
        return max(round, self._stands_at)

    def has_applied(self, position: int) -> bool:
        """Whether a commit has counted this sample."""
        return bool(self._raw[position >> 3] >> (position & 7) & 1)

    @property
    def applied_positions(self) -> list[int]:
        """All samples that commits have counted."""
        return applied_positions(self._raw.tobytes())

    def flip(self, position: int) -> None:
        """A bit of the memory changes: this machine computes wrong results until it resyncs."""
        self._raw[position >> 3] ^= 1 << (position & 7)
        self.faulty, self.digest = True, self._digest()

    def _set_head(self, head: Digest, round: int) -> None:
        self._raw[-_HEAD_BYTES:] = np.frombuffer(
            head + round.to_bytes(8, "big", signed=True), np.uint8
        )

    def _digest(self) -> int:
        return int.from_bytes(hashlib.sha256(self._raw.tobytes()).digest()[:8], "big")


class SavedState(msgspec.Struct, array_like=True, frozen=True):
    """The fields of the state file."""

    raw: bytes
    faulty: bool
    where: tuple[int, bytes, int]
    void_count: int
    voids_ahead: list[tuple[int, bytes]]


def applied_positions(raw: bytes) -> list[int]:
    """Positions that are in parameters."""
    bits = np.unpackbits(np.frombuffer(raw, np.uint8)[:_BITS_BYTES], bitorder="little")
    return [int(place) for place in np.flatnonzero(bits)]


def saved_state(blob: bytes) -> SavedState:
    """The state in a file's bytes; `StorageError` when they are damaged."""
    digest, body = blob[:32], blob[32:]
    if hashlib.sha256(body).digest() != digest:
        raise StorageError("the state file is damaged")
    return msgspec.msgpack.decode(body, type=SavedState)


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """The content of a payload."""

    author: PeerId
    round: int
    positions: tuple[int, ...]
    coefficients: Coefficients


def _digest_of_votes(contributions: Iterable[Contribution]) -> bytes:
    """Digest of the sums of a step's votes, in whatever order they come."""
    sums = np.zeros(POSITIONS_MAX, np.int32)
    for contribution in contributions:
        coefficients = contribution.coefficients
        sums[_places(coefficients)] += contribution.weight * coefficients.values
    return hashlib.sha256(sums.tobytes()).digest()


@functools.lru_cache(maxsize=512)
def _decoded(payload: bytes, shape: PayloadShape) -> Sent:
    """A function of a payload's bytes, computed once for all nodes."""
    header, coefficients = decode(payload, shape)
    return Sent(header.author, header.round, tuple(_places(coefficients).tolist()), coefficients)


def _places(coefficients: Coefficients) -> npt.NDArray[np.int64]:
    """int64 [values]: the position of each."""
    return np.repeat(np.arange(CHUNKS) * 4096, coefficients.counts) + coefficients.indices
