"""The most memory of the device in rounds of local steps, beside what `lockstep init` and `join`
tell of, and beside the card's own.

On a card the peak is that of torch's allocator, and `reserved` is what it took from the driver;
libraries take some hundred megabytes besides. On a CPU it is the process's resident memory.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import torch

from border.memory import give_back_freed_memory
from lockstep.volunteer.needs import judged, sized
from node.model.precision import weights_dtype
from node.system.device import free_memory_bytes
from node.system.malloc import keep_freed_memory
from protocol.planner.needs import needs_of
from protocol.runfile import RunSpec
from tests.benchmarks.accelerator.authors import (
    commit_of,
    payload_of,
    replica_on,
    spec_of,
    tokens_of,
    work,
)
from tests.benchmarks.accelerator.parts import Findings
from tests.benchmarks.accelerator.sizes import Sizes
from tests.benchmarks.engine.footprint import peak_extra_bytes
from tests.support.tiny import tiny_spec

ROUNDS = 3
AUTHORS = 8
"""Payloads of a commit."""


def measure(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """A row without overlap and one with it."""
    keep_freed_memory()  # as nodes do
    device, rows = torch.device(sizes.device), []
    _rounds(device, tiny_spec(overlap=0), 32)  # libraries and kernels take their memory here
    for overlap in (0, 1):
        rows.append(_row(device, spec_of(sizes.timed, overlap=overlap), sizes, directory))
        yield {"rows": rows}


def _row(device: torch.device, spec: RunSpec, sizes: Sizes, directory: Path) -> Findings:
    gc.collect()
    give_back_freed_memory()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    free = free_memory_bytes(device)
    peak = peak_extra_bytes(lambda: _rounds(device, spec, sizes.sequence_length), device)
    reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    size = sized(spec)
    is_light = weights_dtype(device, size.chunks) == torch.bfloat16
    needs = needs_of(spec, size, light=is_light)
    return {
        "overlap": spec.rounds.overlap,
        "parameters": needs.parameters,
        "tokens_of_a_pass": sizes.sequence_length,
        "told": judged(spec, 0, 0, directory),
        "told_bytes": needs.held_bytes,
        "peak_bytes": peak,
        "peak_over_told": peak and round(peak / needs.held_bytes, 3),
        "peak_bytes_per_parameter": peak and round(peak / needs.parameters, 2),
        "reserved_bytes": reserved,
        "free_bytes_before": free,
    }


def _rounds(device: torch.device, spec: RunSpec, length: int) -> None:
    """A replica from genesis, and some rounds of it."""
    replica = replica_on(device, spec)
    for round in range(ROUNDS):
        work(replica, spec, round, tokens_of(spec, round, 1, length))
        extraction = replica.extract(round)
        payloads = [payload_of(replica, extraction, round, number) for number in range(AUTHORS)]
        replica.apply(commit_of(spec, round, payloads), payloads)
