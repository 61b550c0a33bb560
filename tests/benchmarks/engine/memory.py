"""Memory of a replica in each part of a round: `python -m tests.benchmarks.engine.memory`.

For each size of model, with and without overlap, a fresh process makes three rounds of local steps,
each of one short sample, with the classes of a node, and prints the most anonymous memory of each
part in bytes a parameter: memory that a file backs, such as a saved state that is read, can be
given back and is not counted. What torch, transformers and the kernels take before is subtracted:
two rounds of a small model and the kernels' compilation come first.

    start    the network built and filled from the seed, residual made
    pass     forward and backward pass of one sample of 64 tokens
    sum      what was moved, summed into the residual
    send     coefficients taken out of the residual, and encoded
    apply    R payloads decoded, and their step made
    ahead    the round begun: with overlap from where the one before left the model
    save     the state written to disk
    load     the state read back
    held     after all that

Beside them stand the bytes that `lockstep init` and `join` tell of, and what torch itself counts of
the working half of a replica, which is what a device holds whose host keeps the rest:

    held     weights, gradients and the optimizer's state
    step     what a local step takes beside that, at most
    pass     what a pass of that sample takes beside that, at most
"""

import argparse
import contextlib
import gc
import json
import mmap
import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from border.memory import give_back_freed_memory
from lockstep.presets import run_of
from node.exact.backend import exact_kernels
from node.model.precision import gradient_of
from node.replica.factory import replica_for
from node.replica.local_steps import LocalStepsReplica
from node.replica.position import Position
from node.replica.replica import Replica
from node.system.malloc import keep_freed_memory
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.codec.payload import Header
from protocol.ids import PeerId, RunId, sha256
from protocol.planner.needs import needs_of
from protocol.planner.parameters import size_of
from protocol.runfile import ModelSpec, RunSpec
from protocol.schedule import scalars
from tests.benchmarks.engine.footprint import peak_of
from tests.support.allocations import peak_allocated_bytes

RUN = RunId("0" * 32)
ROUNDS = 3
TOKENS = 64


def _llama(width: int, inner: int, layers: int, vocabulary: int) -> ModelSpec:
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
    }
    return ModelSpec(config={**ModelSpec().config, **sizes})


TINY = _llama(128, 344, 2, 257)
MODELS = {"llama-20m": _llama(384, 1024, 8, 16384)}
LARGE = {"gpt2-124m": ModelSpec(type="gpt2", config={"vocab_size": 50257})}


class Meter:
    """The most anonymous memory of this process during each of several parts, in bytes above what
    it held when the meter was made.
    """

    def __init__(self) -> None:
        gc.collect()
        give_back_freed_memory()
        self._before = _anonymous_bytes()
        self.peaks: dict[str, int] = {}

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Watch the memory meanwhile."""
        with peak_of(_anonymous_bytes) as peak:
            yield
        self.peaks[part] = max(peak.bytes - self._before, self.peaks.get(part, 0))


def spec_of(model: ModelSpec, overlap: int) -> RunSpec:
    """A run of the defaults with this network."""
    spec = run_of("local_steps", rounds={"overlap": overlap})
    return spec.model_copy(update={"model": model})


def peaks(spec: RunSpec, payloads: int, directory: Path, meter: Meter) -> Replica:
    """Make the rounds under the meter; returns the replica."""
    with meter.during("start"):
        replica = replica_for(spec, RUN, torch.device("cpu"), 1)
    generator = torch.Generator().manual_seed(0)
    undecided: list[tuple[wire.Announced, list[bytes]]] = []
    for round in range(ROUNDS):
        pending = undecided[0][0] if undecided else None
        rates = scalars(spec.schedule, round)
        vocabulary = int(spec.model.config["vocab_size"])
        sample = torch.randint(0, vocabulary, (1, TOKENS + 1), generator=generator)
        with meter.during("ahead"):
            passes = replica.begin([sample], pending, rates)
        with meter.during("pass"):
            passes.next()
            passes.finish()
        with meter.during("sum"):
            replica.accumulate()
        with meter.during("send"):
            sent = _sent(replica, round, payloads)
        undecided.append((wire.Announced(round=round, digest=sha256(sent[0])), sent))
        while len(undecided) > spec.rounds.overlap:
            commit = _commit(round + 1 - len(undecided), undecided[0][1], spec)
            with meter.during("apply"):
                replica.apply(commit, undecided.pop(0)[1])
    position = Position(ROUNDS, genesis_digest(RUN), -1)
    with meter.during("save"):
        replica.save(directory / "state", position)
    with meter.during("load"):
        assert replica.load(directory / "state") == position, "the state was not taken over"
    gc.collect()
    with meter.during("held"):
        pass
    return replica


def _sent(replica: Replica, round: int, payloads: int) -> list[bytes]:
    """The payload that each of several authors would make of what is extracted."""
    extraction = replica.extract(round)
    return [
        replica.encoded(Header(RUN, round, author), extraction)[0] for author in _authors(payloads)
    ]


def _authors(count: int) -> Iterator[PeerId]:
    return (PeerId(f"{author:032x}") for author in range(count))


def _commit(round: int, payloads: list[bytes], spec: RunSpec) -> Commit:
    entries = tuple(
        Entry(author, sha256(payload), len(payload), 1, 1)
        for author, payload in zip(_authors(len(payloads)), payloads, strict=True)
    )
    return Commit(RUN, round, round, entries, *scalars(spec.schedule, round), genesis_digest(RUN))


def row(model: ModelSpec, overlap: int, payloads: int) -> dict[str, Any]:
    """Bytes a parameter of each part, in this process."""
    keep_freed_memory()  # as nodes do
    torch.set_num_threads(1)
    exact_kernels()
    with tempfile.TemporaryDirectory() as directory:
        peaks(spec_of(TINY, overlap), payloads, Path(directory), Meter())
        spec, meter = spec_of(model, overlap), Meter()
        replica = peaks(spec, payloads, Path(directory), meter)
    assert isinstance(replica, LocalStepsReplica)
    count = replica.layout.parameters
    tokens = torch.randint(0, int(model.config["vocab_size"]), (1, TOKENS + 1))
    counted = by_torch(replica, tokens)
    light = replica.trainee.dtype == torch.bfloat16
    told = needs_of(spec, size_of(spec.model), light=light).held_bytes
    return {
        "parameters": count,
        "overlap": overlap,
        "payloads": payloads,
        "told_bytes_per_parameter": told / count,
        "peak_bytes_per_parameter": round(max(meter.peaks.values()) / count, 2),
        "by_torch": {part: round(size / count, 2) for part, size in counted.items()},
        "parts": {part: round(peak / count, 2) for part, peak in meter.peaks.items()},
    }


def by_torch(replica: LocalStepsReplica, tokens: torch.Tensor) -> dict[str, int]:
    """Bytes of tensors of the working half, as above; makes a step of rate 0. tokens: int64
    [samples, length + 1].
    """
    trainee, optimizer = replica.trainee, replica._optimizer
    trainee.zero_gradients()
    passed = peak_allocated_bytes(lambda: trainee.gradient(tokens))
    held = [*trainee.parameters.values(), *map(gradient_of, trainee.parameters.values())]
    held += [tensor for state in optimizer._state.values() for tensor in state.values()]
    held_bytes = sum(tensor.nbytes for tensor in held)
    step = peak_allocated_bytes(lambda: optimizer.step(0.0))
    return {"held": held_bytes, "step": step, "pass": passed}


def _anonymous_bytes() -> int:
    """Resident memory of this process that no file backs."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * mmap.PAGESIZE


def main() -> None:
    """Print a row for each size of model, without and with overlap."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.engine.memory")
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--large", action="store_true", help="124 million parameters too")
    parser.add_argument("--payloads", type=int, default=8, help="payloads of a commit")
    arguments = parser.parse_args()
    rows = []
    for name, model in {**MODELS, **(LARGE if arguments.large else {})}.items():
        for overlap in (0, 1):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(row, (model, overlap, arguments.payloads))
            rows.append({"model": name, **found})
    text = json.dumps(rows, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
