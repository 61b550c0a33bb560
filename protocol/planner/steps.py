"""Rounds to a fixed loss, where a study measured them: a round of one method is not worth one of
another.

docs/results/wan.md: a llama of 20 million parameters, a global batch of eight samples, validation
loss 2.2 nats per byte. Other networks and losses give other figures; what is not here is not known.
"""

from typing import Final

from protocol.planner.methods import MethodName
from protocol.runfile import AlgorithmSpec

STUDY: Final = "docs/results/wan.md: 20 million parameters, 2.2 nats per byte"

ALL_REDUCE: Final = 140
"""Rounds of AdamW."""

DEMO: Final[dict[int, int]] = {32: 390}
"""Rounds of DeMo by k."""


def rounds_to_loss(method: MethodName, algorithm: AlgorithmSpec) -> int | None:
    """Rounds of a method to the study's loss; None if no study says."""
    match method:
        case "all-reduce":
            return ALL_REDUCE
        case "demo":
            return None if algorithm.moves else DEMO.get(algorithm.top_k)
        case "demo-overlap" | "gossip-adam" | "diloco":
            return None
