"""Time of a local step, an extraction and an apply, beside the optimizers of torch.

    pass         forward and backward of one sample
    local step   the node's own optimizer: Muon for matrices, AdamW for embeddings and the rest
    extraction   what was moved into the residual, signs and scales out of it, packed to bytes
    apply        eight payloads decoded, the exact step, the digest of the state
    Muon         torch.optim.Muon for the matrices, torch.optim.AdamW for the rest
    AdamW        torch.optim.AdamW for all

All of one model, in turns in one process. A round of five local steps makes one extraction and one
apply: `exchange` is what these two add to the five steps of Muon or AdamW.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch.nn import Parameter

from node.exact.local_steps.optimizer import ADAM_DECAYS, MUON_MOMENTUM, tables_of
from node.replica.local_steps import LocalStepsReplica
from node.system.malloc import keep_freed_memory
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
from tests.benchmarks.engine.steps import seconds as seconds_of
from tests.benchmarks.spread import spread

AUTHORS = 8
"""Payloads of a commit."""

STEPS = 5
"""Local steps of a round, as the defaults make them."""

RATE = 1e-6
"""Small, so that steps that are made again and again leave the parameters finite."""

OURS, TORCHS = ("local step", "extraction", "apply"), ("Muon", "AdamW")


def measure(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """Seconds of each, and ratios within each repeat: medians with least and most."""
    keep_freed_memory()  # as nodes do
    device, spec = torch.device(sizes.device), spec_of(sizes.timed)
    replica = replica_on(device, spec)
    assert isinstance(replica, LocalStepsReplica)
    works = _works(replica, spec, sizes.sequence_length)
    about = {"parameters": replica.layout.parameters, "payloads": AUTHORS}
    laps: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(sizes.repeats + 1):
        for name, each in works.items():
            lap = seconds_of(each, device)
            if repeat:  # the first one compiles
                laps[name].append(lap)
        if repeat:
            yield {**about, **_findings(laps)}


def _works(
    replica: LocalStepsReplica, spec: RunSpec, length: int
) -> dict[str, Callable[[], object]]:
    """What is timed, by name; each may be made again and again, in this order."""
    batch = tokens_of(spec, 0, 1, length)
    work(replica, spec, 0, batch)
    payloads = [_noise(replica, number) for number in range(AUTHORS)]
    commit = commit_of(spec, 0, payloads)
    tables = tables_of(replica.trainee.model)

    def passed() -> None:
        passes = replica.trainee.passes([batch])
        passes.next()
        passes.finish()

    def extracted() -> None:
        replica.accumulate()
        payload_of(replica, replica.extract(0), 0, 0)

    def is_matrix(parameter: Parameter) -> bool:
        return parameter.ndim == 2 and id(parameter) not in tables

    return {
        "pass": passed,
        "local step": lambda: replica._optimizer.step(RATE),
        "extraction": extracted,
        "apply": lambda: replica.apply(commit, payloads),
        "Muon": _steps(replica, is_matrix),
        "AdamW": _steps(replica, lambda _: False),
    }


def _noise(replica: LocalStepsReplica, number: int) -> bytes:
    """An author's payload of a residual of noise."""
    residual = replica.engine.entries
    residual.normal_(0, 1e-3, generator=torch.Generator(residual.device).manual_seed(number))
    return payload_of(replica, replica.extract(0), 0, number)


def _steps(
    replica: LocalStepsReplica, by_muon: Callable[[Parameter], bool]
) -> Callable[[], object]:
    """The step of torch's own optimizers for copies of the parameters, with gradients of noise."""
    groups: dict[bool, list[Parameter]] = {True: [], False: []}
    for parameter in replica.trainee.parameters.values():
        copied = Parameter(parameter.detach().float().clone())
        copied.grad = torch.randn_like(copied)
        groups[by_muon(parameter)].append(copied)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups[False], RATE, ADAM_DECAYS, weight_decay=0.0)
    ]
    if groups[True]:
        optimizers.append(
            torch.optim.Muon(groups[True], RATE, momentum=MUON_MOMENTUM, weight_decay=0.0)
        )
    return lambda: [optimizer.step() for optimizer in optimizers]


def _findings(laps: Mapping[str, list[float]]) -> Findings:
    repeats = [dict(zip(laps, each, strict=True)) for each in zip(*laps.values(), strict=True)]
    ratios = {
        theirs: {
            **{ours: spread([each[ours] / each[theirs] for each in repeats], 4) for ours in OURS},
            "exchange": spread(
                [(each["extraction"] + each["apply"]) / (STEPS * each[theirs]) for each in repeats],
                4,
            ),
        }
        for theirs in TORCHS
    }
    return {
        "repeats": len(repeats),
        "seconds": {name: spread(each, 6) for name, each in laps.items()},
        "ratio_to": ratios,
    }
