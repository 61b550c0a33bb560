"""A network of a thousand million parameters within the memory of a home card: the process is held
to 10 GB, parameters and residual are in the host's memory, and a round of one sample a step is made
with activations computed again, and kept.

Bytes are those of torch's allocator: what stays, and the most since the row before. A CPU tries the
program with a small network, whose bytes are not told.
"""

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

from lockstep.volunteer.needs import sized
from node.model.precision import weights_dtype
from node.replica import local_steps
from node.replica.replica import Replica
from protocol.planner.activations import pass_bytes
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

MOST_BYTES = 10_000_000_000
"""Of the card, that the process may take."""

AUTHORS = 2
"""Payloads of a commit."""


def measure(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """What is told, and a row for each part of two rounds."""
    device, spec = torch.device(sizes.device), spec_of(sizes.large)
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, MOST_BYTES / whole), device)
    size, length = sized(spec), sizes.sequence_length
    needs = needs_of(spec, size, light=weights_dtype(device, size.chunks) == torch.bfloat16)
    found: Findings = {
        "parameters": needs.parameters,
        "told_on_the_card_bytes": needs.held_bytes - needs.kept_bytes,
        "told_bytes_of_a_pass_in_float32": {
            "kept": pass_bytes(spec.model, 1, length),
            "recomputed": pass_bytes(spec.model, 1, length, recomputes=True),
        },
        "rows": [],
    }
    yield found
    made: list[Replica] = []
    with mock.patch.object(local_steps, "has_room", return_value=False):
        found["rows"].append(_row("genesis", lambda: made.append(replica_on(device, spec)), device))
        yield found
    for name, part in _parts(made[0], spec, length):
        found["rows"].append(_row(name, part, device))
        yield found


def _parts(
    replica: Replica, spec: RunSpec, length: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The parts of two rounds, by name."""
    for round, again in enumerate((True, False)):
        replica.trainee.recompute(again)
        how = "computed again" if again else "kept"
        for number in range(2):  # at the second step there is an optimizer's state
            batch = tokens_of(spec, number, 1, length)
            yield f"step {number}, {how}", lambda r=round, b=batch: work(replica, spec, r, b)
    extraction = replica.extract(1)
    payloads = [payload_of(replica, extraction, 1, number) for number in range(AUTHORS)]
    yield "apply", lambda: replica.apply(commit_of(spec, 1, payloads), payloads)


def _row(name: str, part: Callable[[], object], device: torch.device) -> Findings:
    is_card, began = device.type == "cuda", time.perf_counter()
    if is_card:
        torch.cuda.reset_peak_memory_stats(device)
    part()
    if is_card:
        torch.cuda.synchronize(device)
    return {
        "part": name,
        "seconds": round(time.perf_counter() - began, 3),
        "stays_bytes": torch.cuda.memory_allocated(device) if is_card else None,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if is_card else None,
        "host_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
