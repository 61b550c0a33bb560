"""Replicas on the CPU and on the device make the same 50 rounds of the same samples.

The device may round as it likes upstream of the payload, and what permits it holds in the exact
step too:

    cpu              as it is
    device           float32 products of 24 bits, no autocast
    device, TF32     float32 products may be TF32
    device, bf16     autocast to bfloat16 around passes, and around the step

Every round's commit names a payload of each of them. All must have one digest after each. That a
regime reached the gradients shows in its payloads, which are other than the CPU's.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from node.replica.replica import Replica
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
from tests.benchmarks.accelerator.sizes import EQUAL_ROUNDS, Sizes

TOKENS = 64
"""Tokens of a sample."""

PRECISION = "highest"
"""Of torch's float32 products, as torch begins."""

TOLD_EVERY = 5
"""Rounds after which the findings are handed on."""


@dataclass(frozen=True, slots=True)
class Regime:
    """How a replica may round where bits need not be equal."""

    device: str
    precision: str = PRECISION
    """Of torch's float32 products."""
    bfloat16: bool = False

    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        """Set torch to it meanwhile."""
        torch.set_float32_matmul_precision(self.precision)
        try:
            with self.autocast():
                yield
        finally:
            torch.set_float32_matmul_precision(PRECISION)

    def autocast(self) -> torch.autocast:
        """To bfloat16, or none."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.bfloat16)


@dataclass(slots=True)
class Side:
    """One replica under its regime."""

    regime: Regime
    replica: Replica
    digests: list[str] = field(default_factory=list)
    payloads_unlike: int = 0
    """Rounds in which its payload was other than the CPU's."""


def regimes(device: str) -> dict[str, Regime]:
    """By name, the CPU's first."""
    return {
        "cpu": Regime("cpu"),
        "device": Regime(device),
        "device, TF32": Regime(device, precision="high"),
        "device, bf16": Regime(device, bfloat16=True),
    }


def measure(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """For both algorithms, in turns, the digests of all sides by round, and whether they are
    equal.
    """
    specs = {name: spec_of(sizes.equal, name) for name in ("local_steps", "demo")}
    sides = {
        algorithm: {name: _side(regime, spec) for name, regime in regimes(sizes.device).items()}
        for algorithm, spec in specs.items()
    }
    found: Findings = {}
    for round in range(EQUAL_ROUNDS):
        for algorithm, spec in specs.items():
            _make(round, spec, list(sides[algorithm].values()))
            found[algorithm] = _findings(sides[algorithm])
        if (round + 1) % TOLD_EVERY == 0:
            yield found


def _side(regime: Regime, spec: RunSpec) -> Side:
    replica = replica_on(torch.device(regime.device), spec)
    replica.trainee._autocast = regime.autocast  # type: ignore[method-assign]
    return Side(regime, replica)


def _make(round: int, spec: RunSpec, sides: list[Side]) -> None:
    """One round of all sides."""
    batch = tokens_of(spec, round, 1, TOKENS)
    payloads = []
    for number, side in enumerate(sides):
        with side.regime.holds():
            work(side.replica, spec, round, batch)
            extraction = side.replica.extract(round)
            payloads.append(payload_of(side.replica, extraction, round, number))
            as_the_first = payload_of(side.replica, extraction, round, 0)
        side.payloads_unlike += as_the_first != payloads[0]
    commit = commit_of(spec, round, payloads)
    for side in sides:
        with side.regime.holds():
            side.digests.append(f"{side.replica.apply(commit, payloads):016x}")


def _findings(sides: dict[str, Side]) -> Findings:
    digests = {name: side.digests for name, side in sides.items()}
    by_round = zip(*digests.values(), strict=True)
    return {
        "rounds": len(digests["cpu"]),
        "rounds_unequal": [round for round, each in enumerate(by_round) if len(set(each)) > 1],
        "payloads_unlike_the_cpus": {
            name: side.payloads_unlike for name, side in sides.items() if name != "cpu"
        },
        "payloads_ignored": sum(side.replica.payloads_ignored for side in sides.values()),
        "digests": digests,
    }
