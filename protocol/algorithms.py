"""What is true of each algorithm, in one place. Pure.

Whatever is not the algorithm itself (round, coordinator, planner, auditor, command) asks here for
the one thing that it has to know, and never for the name.

local_steps   nodes are equal; a round is many steps, and what they moved is sent as scaled signs
demo          nodes are equal; a round is one step, by votes that are taken out of a momentum
gossip-adam   nodes are alike; each sends its parameters, and mixes them with those of neighbours
"""

from dataclasses import dataclass
from typing import Final, Literal

from protocol.audit.thresholds import DEMO, LOCAL_STEPS, Thresholds

AlgorithmName = Literal["demo", "local_steps", "gossip-adam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmFacts:
    """Those of one algorithm; by default, of local steps."""

    fields: frozenset[str]
    """Fields of the run file's section that count, beside the name."""

    replicas_equal: bool = True
    """Whether every node has the same parameters after a commit, so that states are compared, logs
    replayed and work audited. Else a commit names who mixes with whom."""

    sends_parameters: bool = False
    """Whether payloads hold a node's parameters, and no coefficients of what it learned."""

    steps_within_round: bool = True
    """Whether a node makes steps of its own in a round: each of a batch, and the more the more
    samples it has."""

    scaled: bool = True
    """Whether a payload has a scale for the signs of each chunk, so that signs weigh unlike."""

    overlaps: bool = True
    """Whether a node can train while the round in front is undecided."""

    rate_by_width: bool = True
    """Whether the best learning rate falls with the width of the network."""

    thresholds: Thresholds = LOCAL_STEPS
    """What separates honest work from other work."""


_OF_EXTRACTION = frozenset({"momentum_decay", "top_k", "value_bits", "local_samples"})

FACTS: Final[dict[AlgorithmName, AlgorithmFacts]] = {
    "local_steps": AlgorithmFacts(fields=_OF_EXTRACTION | {"fade", "gain"}),
    "demo": AlgorithmFacts(
        fields=_OF_EXTRACTION,
        steps_within_round=False,
        scaled=False,
        overlaps=False,
        thresholds=DEMO,
    ),
    "gossip-adam": AlgorithmFacts(
        fields=frozenset({"mixing"}),
        replicas_equal=False,
        sends_parameters=True,
        steps_within_round=False,
        scaled=False,
        rate_by_width=False,
        thresholds=DEMO,  # never asked: evidence is refused where nodes differ
    ),
}
"""By the name in the run file."""
