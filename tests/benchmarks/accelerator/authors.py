"""Replicas in one process: the work of each in a round, and the commit that names it all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.presets import run_of
from node.exact.engine import Extraction
from node.replica.factory import replica_for
from node.replica.replica import Replica
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Header
from protocol.ids import PeerId, RunId, sha256
from protocol.runfile import ModelSpec, RunSpec
from protocol.schedule import scalars

RUN = RunId("0" * 32)


def spec_of(model: ModelSpec, algorithm: str = "local_steps", overlap: int = 0) -> RunSpec:
    """A run of the algorithm's defaults with this network."""
    spec = run_of(algorithm, rounds={"overlap": overlap})
    return spec.model_copy(update={"model": model})


def replica_on(device: torch.device, spec: RunSpec) -> Replica:
    """A replica at genesis."""
    return replica_for(spec, RUN, device, 8)


def tokens_of(spec: RunSpec, seed: int, samples: int, length: int) -> Tensor:
    """Random tokens, int64 [samples, length + 1], on the host."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = int(spec.model.config["vocab_size"])
    return torch.randint(0, vocabulary, (samples, length + 1), generator=generator)


def author(number: int) -> PeerId:
    """The name of an author in commits."""
    return PeerId(f"{number:032x}")


def work(replica: Replica, spec: RunSpec, round: int, batch: Tensor) -> None:
    """A round's passes over one batch; what they made goes into the momentum or the residual."""
    passes = replica.begin([batch], None, scalars(spec.schedule, round))
    while passes.next():
        pass
    passes.finish()
    replica.accumulate()


def payload_of(replica: Replica, extraction: Extraction, round: int, number: int) -> bytes:
    """What an author of this number sends of an extraction in a round."""
    return replica.encoded(Header(RUN, round, author(number)), extraction)[0]


def commit_of(spec: RunSpec, round: int, payloads: Sequence[bytes]) -> Commit:
    """A commit of the payloads of authors 0, 1, ..., one sample each."""
    entries = tuple(
        Entry(author(number), sha256(payload), len(payload), 1, 1)
        for number, payload in enumerate(payloads)
    )
    return Commit(RUN, round, round, entries, *scalars(spec.schedule, round), genesis_digest(RUN))
