"""The least memory and the most disk that a run takes on a node, by arithmetic: no torch.

memory   local steps: parameters, the model's copy that the steps move, gradients, the residual
         with the padding of its chunks, and a momentum of Muon; with overlap a copy of where a
         round began: 20 or 24 bytes a parameter and more, as AdamW has two moments.
         DeMo: parameters, gradients and momentum: 12 bytes.
         Where nodes mix parameters: two moments and the gradients of a window in place of
         momentum, no second copy, and with int8 the newest mean. What a pass needs beside these
         depends on the machine's micro-batch; docs/results/memory.md has it measured
disk     the payload log up to its bound, snapshots, the saved state and the published model,
         each of the last two twice while it is replaced
"""

from dataclasses import dataclass

from protocol.limits import CHUNK_ENTRIES
from protocol.planner.parameters import Size
from protocol.runfile import RunSpec

FLOAT_BYTES = 4

SNAPSHOTS = 5
"""Snapshots on a node's disk: two that stay, two older ones that somebody fetches, and one that is
on its way here."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a run on a node."""

    parameters: int
    memory_bytes: int
    """At least."""
    disk_bytes: int
    """At most, beside the corpus."""


def needs_of(spec: RunSpec, size: Size) -> Needs:
    """The needs of a run whose network has this size."""
    parameters = FLOAT_BYTES * size.parameters
    algorithm, copies = spec.algorithm, 2
    if algorithm.mixes:
        momentum = (3 + algorithm.mixing.differs) * parameters
    else:
        copies += spec.rounds.overlap + algorithm.moves
        momentum = FLOAT_BYTES * size.chunks * CHUNK_ENTRIES + algorithm.moves * parameters
    disk = spec.retention.log_bytes_max + SNAPSHOTS * parameters
    disk += 2 * (parameters + momentum) + 2 * parameters
    return Needs(size.parameters, copies * parameters + momentum, disk)
