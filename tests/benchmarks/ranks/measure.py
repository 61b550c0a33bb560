"""Rounds of a node of many ranks, timed."""

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from node.ranks.line import RankPatience, loopback_only
from node.ranks.replica import replica_of
from node.replica.factory import replica_for
from node.replica.replica import Replica
from node.system.device import held_bytes_max
from node.system.malloc import keep_freed_memory
from protocol.ids import PeerId, RunId
from protocol.runfile import AlgorithmSpec, DataSpec, ModelSpec, RunSpec
from protocol.schedule import scalars
from tests.benchmarks.passes.models import MODELS
from tests.support.crew import CPU, crew_of

SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}

NETWORKS = {
    "1M": ModelSpec(config=SMALL),
    "51M": MODELS["llama of 51 M"][0],
    "355M": MODELS["GPT-2 of 355 M"][0],
}

LENGTH = 128
"""Tokens of a sample."""


@dataclass(frozen=True)
class Work:
    """What a round computes."""

    samples: int
    """Samples of a local step."""
    steps: int
    """Local steps of a round."""
    micro_batch: int
    """Samples of a rank's pass."""


WORK, WORK_OF_LARGE = Work(16, 2, 4), Work(4, 1, 1)
"""The large network is there for its memory: what grows with a pass is kept small beside what ranks
divide, and a step of Muon takes minutes."""

PATIENCE = RankPatience(silence_s=60.0, order_s=3600.0)
"""Two cores take minutes for a step of 355 million parameters."""


def measured(ranks: int, rounds: int, model: str) -> dict[str, Any]:
    """Memory of each rank at its peak, in bytes, and the median time of a round, in seconds."""
    work = WORK_OF_LARGE if model == "355M" else WORK
    spec = RunSpec(
        name="ranks",
        model=NETWORKS[model],
        data=DataSpec(corpus="none", sequence_length=LENGTH),
        algorithm=AlgorithmSpec(local_samples=work.samples),
    )
    keep_freed_memory()
    threads = max(1, (os.cpu_count() or 1) // ranks)
    loopback_only()
    torch.set_num_threads(threads * ranks)
    parts = spec, RunId("a" * 32), CPU, work.micro_batch, PeerId("b" * 32)
    if ranks == 1:
        replica = replica_for(*parts)
        times = [_round(replica, spec, work, round) for round in range(rounds)]
        memory = [held_bytes_max(CPU)]
    else:
        with crew_of(ranks, threads, patience=PATIENCE) as crew:
            replica = replica_of(crew, *parts)
            times = [_round(replica, spec, work, round) for round in range(rounds)]
            memory = [each["memory_bytes"] for each in crew.document()]
    round_s = statistics.median(times[1:] or times)
    return {
        "ranks": ranks,
        "threads": threads,
        "parameters": replica.layout.parameters,
        "memory_bytes": memory,
        "round_s": round_s,
        "samples_per_s": work.steps * work.samples / round_s,
    }


def _round(replica: Replica, spec: RunSpec, work: Work, round: int) -> float:
    """Seconds of one round."""
    vocabulary = int(spec.model.config["vocab_size"])
    batches = np.random.default_rng(round).integers(
        0, vocabulary, (work.steps, work.samples, LENGTH + 1)
    )
    began_s = time.monotonic()
    passes = replica.begin([*batches], None, scalars(spec.schedule, round))
    while passes.next():
        pass
    passes.finish()
    replica.accumulate()
    replica.extract(round)
    return time.monotonic() - began_s
