"""The cost of one round on a machine without any network: seconds of each part, and how they vary.

Measured parts are better than estimated ones. Where only the pass is known, the rest follows from
the machine's speed: a pass over one token is 2 operations per parameter forward and 4 backward, and
the optimizers below take a fixed number of operations per parameter and round.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

from protocol.errors import SettingsError

FORWARD_OPERATIONS: Final = 2
"""Operations per parameter and token of a forward pass."""

PASS_OPERATIONS: Final = 6
"""Operations per parameter and token of a forward and a backward pass."""

ADAM_OPERATIONS: Final = 120
"""Operations per parameter of a step of AdamW, in units of a machine that multiplies matrices: it
moves memory. Measured: 53 ms of a core of 52 GFLOP/s for 20.45 million parameters
(docs/results/data/wan.csv, ddp), rounded."""

DEMO_OPERATIONS: Final[dict[str, int]] = {"votes": 900, "movements": 1000}
"""Operations per parameter of extract, decode and apply, with eight authors: of votes, and of the
movements of local steps. Measured likewise: 0.31 to 0.49 s for votes; movements, with k = 192, take
a tenth more (docs/results/notes/local-steps-first.md). The steps of a node's own optimizer are not
in it."""

EXTRACT_SHARE: Final = 0.4
"""Share of that which comes before the payload is announced."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds of one round on one machine; `SettingsError` for less than none."""

    forward_s: float
    backward_s: float

    optimizer_s: float = 0.0
    """A step of AdamW, for methods other than DeMo."""

    extract_s: float = 0.0
    """DeMo's transform, top-k and encoding."""

    apply_s: float = 0.0
    """DeMo's decoding, aggregation and update."""

    jitter: float = 0.0
    """Standard deviation of a round's compute over its mean. Draws are lognormal."""

    slower: tuple[float, ...] = ()
    """Factor by which each node is slower than these figures, the nodes in turn; empty: 1."""

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "optimizer_s", "extract_s", "apply_s", "jitter"):
            if not 0 <= getattr(self, name) < 1e9:
                raise SettingsError(f"{name}: expected 0 or more, got {getattr(self, name)!r}")
        for factor in self.slower:
            if not 0 < factor < 1e9:
                raise SettingsError(f"slower: expected factors above 0, got {factor!r}")

    @property
    def pass_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def adam_s(self) -> float:
        """A round of a method that steps with AdamW."""
        return self.pass_s + self.optimizer_s

    @property
    def demo_s(self) -> float:
        """A round of DeMo."""
        return self.pass_s + self.extract_s + self.apply_s

    def factors(self, nodes: int) -> tuple[float, ...]:
        """`slower` for each node."""
        slower = self.slower or (1.0,)
        return tuple(slower[node % len(slower)] for node in range(nodes))


def pass_of(seconds: float) -> Compute:
    """Compute of a pass alone that takes this long: a third forward, the rest backward."""
    forward_s = seconds * FORWARD_OPERATIONS / PASS_OPERATIONS
    return Compute(forward_s, seconds - forward_s)


def estimated(
    pass_s: float | None, flops: float | None, parameters: int, tokens: int, what: str
) -> Compute:
    """Compute from the seconds of a pass over `tokens` tokens, or from operations per second; with
    both, the pass is as given and the optimizers follow from the operations. `what` is sent: a key
    of `DEMO_OPERATIONS`. `SettingsError` for neither.
    """
    operations = PASS_OPERATIONS * parameters * tokens
    if pass_s is None:
        if flops is None:
            raise SettingsError("expected seconds of a pass, or operations a second, got neither")
        pass_s = operations / flops
    elif flops is None:
        flops = operations / pass_s if pass_s else inf
    base = pass_of(pass_s)
    demo_s = DEMO_OPERATIONS[what] * parameters / flops
    return replace(
        base,
        optimizer_s=ADAM_OPERATIONS * parameters / flops,
        extract_s=EXTRACT_SHARE * demo_s,
        apply_s=(1 - EXTRACT_SHARE) * demo_s,
    )
