"""The run file's section of the algorithm."""

from typing import Final, Literal

from pydantic import Field

from protocol.algorithms import FACTS, AlgorithmFacts, AlgorithmName
from protocol.limits import GAIN_MAX, GAIN_PARTS
from protocol.sections.section import Section

TopologyName = Literal[
    "ring",
    "one-peer-exponential",
    "alternating-exponential-ring",
    "hierarchical",
    "complete",
    "random-matching",
]
"""Names of the rules for the graph of a round: `protocol.mixing.topologies`."""

GROUPED: Final[tuple[TopologyName, ...]] = ("alternating-exponential-ring", "hierarchical")
"""Those whose graph follows from groups of members with fast links among them."""

MIXING_MEMBERS_MAX: Final = 256
"""Members of a run whose nodes mix parameters: in a round of the mean each fetches all of them."""

COMPLETE_MEMBERS_MAX: Final = 64
"""The same where each fetches all of them in every round."""

LATE_ROUNDS: Final = 8
"""Newest rounds whose payloads are kept for others, which are as large as the model."""


class MixingSpec(Section):
    """Gossip Adam alone: the neighbours of nodes, and the form of what they exchange."""

    topology: TopologyName = "one-peer-exponential"
    """Neighbours of a round. "ring" and "one-peer-exponential": one, by turns; "random-matching":
    one, drawn anew; "alternating-exponential-ring" and "hierarchical": by turns members of the
    same group and one of another, groups being those of fast links as the members measure them,
    and pairs where none stand out; "complete": everybody."""

    accumulate: int = Field(default=1, ge=1, le=4096)
    """Number of successive gradients of one node; Adam's moments take their mean, as if the batch
    were that many times larger (AccumAdam). Parameters step on every gradient. 1: plain Adam."""

    exchange: Literal["float16", "float32", "int8"] = "float16"
    """Form of the parameters that neighbours send each other: two or four bytes each; "int8":
    differences to the newest mean of all, of one byte each and a scale for every 256."""

    mean_every: int = Field(default=100, ge=1, le=1_000_000)
    """Steps between two rounds after which every node has the exact mean of all, which travels in
    float32. The last step of a run is always one: the published model is that mean."""

    critical: float = Field(default=0.0, ge=0, le=1000)
    """Distance of nodes from their mean, in sizes of one update, past which the next round only
    mixes: nobody trains in it, though it counts as a step. 0: no round does."""

    @property
    def differs(self) -> bool:
        """Whether neighbours send differences to the newest mean, or to genesis before it."""
        return self.exchange == "int8"

    @property
    def grouped(self) -> bool:
        """Whether fast links make groups of members."""
        return self.topology in GROUPED

    @property
    def members_max(self) -> int:
        """Largest number of members."""
        return COMPLETE_MEMBERS_MAX if self.topology == "complete" else MIXING_MEMBERS_MAX

    def is_mean(self, step: int, steps: int) -> bool:
        """Whether the round of a step takes the mean of all, in a run of this many steps."""
        return (step + 1) % self.mean_every == 0 or step + 1 >= steps


class AlgorithmSpec(Section):
    """The optimizer: how gradients become the update."""

    name: AlgorithmName = "local_steps"
    """The algorithm. "local_steps": a node makes as many steps of an optimizer of its own (Muon and
    AdamW) as fit into a round, and sends what these moved. "demo": a round makes one step, from
    gradients; it wants other values than the defaults, which `lockstep init --algorithm demo`
    writes. "gossip-adam": every node has parameters of its own and mixes them with a few neighbours
    (docs/explain/gossip-adam.md); of this section only `mixing` counts then. Experimental."""

    momentum_decay: float = Field(default=0.999, ge=0, lt=1)
    """beta: the share of the momentum that is left after one round, with the name "demo"."""

    top_k: int = Field(default=192, ge=1, le=4096)
    """k: coefficients sent of the 4096 in a chunk. With "local_steps" about 40 for each step that a
    node makes in a round (docs/results/local-steps.md); with "demo" 32."""

    value_bits: Literal[1, 2, 4, 8] = 1
    """Bits of one sent value. 1 sends signs. With "local_steps" 2 says of each sign which of its
    chunk's two scales it has (docs/results/sums.md), and there is no more. With "demo" 2, 4 and 8
    trained no better (docs/results/knobs.md)."""

    local_samples: int = Field(default=8, ge=1, le=1_000_000)
    """Samples of one local step of a node, with the name "local_steps"."""

    fade: float = Field(default=1.0, ge=0, le=1)
    """Share of a node's residual, which it moved and did not say yet, that is left after one round,
    with the name "local_steps"; 1: all of it, until it is said. A node that was alone in the last
    round keeps all."""

    gain: float = Field(default=1.0, ge=1, le=GAIN_MAX, multiple_of=1 / GAIN_PARTS)
    """Factor on the mean of everybody's movements, with the name "local_steps", in sixteenths:
    movements that hardly agree have a mean shorter than each of them. An author alone is not
    scaled."""

    mixing: MixingSpec = MixingSpec()

    @property
    def facts(self) -> AlgorithmFacts:
        """What is true of the algorithm."""
        return FACTS[self.name]

    def require_one_algorithm(self) -> None:
        """`ValueError` for a field of another algorithm, which counts for nothing and would
        mislead; a written file names all at their defaults.
        """
        fields = type(self).model_fields.keys() - {"name", "mixing"}
        if "mixing" not in self.facts.fields:
            self._require_defaults(self.mixing, sorted(MixingSpec.model_fields), "mixing.")
        self._require_defaults(self, sorted(fields - self.facts.fields), "")

    def _require_defaults(self, section: Section, names: list[str], path: str) -> None:
        fields = type(section).model_fields
        for name in names:
            if (found := getattr(section, name)) != (default := fields[name].default):
                raise ValueError(
                    f"algorithm.{path}{name} counts for nothing with the algorithm {self.name}: "
                    f"expected it left out, or {default!r}, got {found!r}"
                )

    def batch_samples(self, pass_samples: int) -> int:
        """Samples of a batch: those of a local step, or as many as a pass takes."""
        return self.local_samples if self.facts.steps_within_round else pass_samples

    def weight_of(self, samples: int) -> int:
        """The weight in a commit of a node that trained this many samples."""
        return max(1, samples) if self.facts.steps_within_round else 1

    def kept_rounds(self, log_rounds: int, save_every: int) -> int:
        """Rounds of the log whose payloads a node keeps: where replicas differ, those that it takes
        again after a kill, and a few for others that come late.
        """
        return (
            log_rounds if self.facts.replicas_equal else min(log_rounds, save_every + LATE_ROUNDS)
        )

    @property
    def meets_all(self) -> bool:
        """Whether a node takes the payloads of all others in every round."""
        return self.facts.replicas_equal or self.mixing.topology == "complete"
