"""The memory and the most disk that a run takes on a node, by arithmetic: no torch.

    memory = fixed + held + worked + a pass

fixed    Python, torch and the other libraries, before there is a network
held     local steps: parameters, the model's copy that the steps move, gradients, the residual
         with the padding of its chunks, and a momentum of Muon; with overlap a copy of where a
         round began: 20 or 24 bytes a parameter. DeMo: parameters, gradients and momentum: 12.
         Where nodes mix parameters: two moments and the gradients of a window in place of
         momentum, no second copy, and with int8 the newest mean
worked   for an instant of each round: the head's part of an embedding's gradient; with local
         steps AdamW's second moment of the tables and the temporaries of a step too
a pass   activations and logits of a micro-batch: by `protocol.planner.activations` of one sample.
         The size of a micro-batch is found by trying, and what it takes is measured then
         (`node.rehearsal`)
disk     the payload log up to its bound, snapshots, the saved state (parameters and, where nodes
         mix them, moments and mean) and the published model, each of the last two twice while it
         is replaced

docs/results/memory.md has it measured.
"""

from dataclasses import dataclass

from protocol.limits import CHUNK_ENTRIES
from protocol.planner.activations import FLOAT_BYTES, pass_bytes
from protocol.planner.parameters import Size
from protocol.runfile import AlgorithmSpec, RunSpec

FIXED_BYTES = 470_000_000
"""Memory of a node without a network, on a CPU: 470 MB resident, of them 155 of files that other
programs may share, seen with 36 thousand parameters, Linux on x86-64, Python 3.11 and torch 2.13 of
the CPU build. CUDA has its own on the host, some gigabytes with its libraries."""

KERNELS_BYTES = 130_000_000
"""Memory of the compiled kernels and of numba, in a model large enough for them."""

COMPILER_BYTES = 80_000_000
"""Memory of torch's compiler, which torch imports to compute activations again."""

KERNEL_CHUNKS_MIN = 1024
"""Chunks from which on a CPU uses the kernels: four million parameters. To load them takes most of
a second, and some ten the first time on a machine."""

SNAPSHOTS = 5
"""Snapshots on a node's disk: two that stay, two older ones that somebody fetches, and one that is
on its way here."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a run on a node."""

    parameters: int
    fixed_bytes: int
    """Memory of the process without a network, on a CPU."""
    held_bytes: int
    """Memory of the replica, on the device that trains."""
    worked_bytes: int
    """Memory that a round takes there beside it, apart from its passes."""
    disk_bytes: int
    """At most, beside the corpus."""
    pass_bytes: int = 0
    """Memory of a pass of one sample in float32, beside the others; 0: not known."""

    @property
    def memory_bytes(self) -> int:
        """All memory but that of a pass, where a CPU trains."""
        return self.fixed_bytes + self.held_bytes + self.worked_bytes


def state_bytes(algorithm: AlgorithmSpec, size: Size) -> int:
    """Bytes of the state that a node saves."""
    own = 3 + algorithm.mixing.differs if algorithm.mixes else 0
    return FLOAT_BYTES * size.parameters * (1 + own)


def needs_of(spec: RunSpec, size: Size) -> Needs:
    """The needs of a run whose network has this size."""
    parameters = FLOAT_BYTES * size.parameters
    algorithm, copies = spec.algorithm, 2
    if algorithm.mixes:
        momentum = state_bytes(algorithm, size) - parameters
    else:
        copies += spec.rounds.overlap + algorithm.moves
        momentum = FLOAT_BYTES * size.chunks * CHUNK_ENTRIES + algorithm.moves * parameters
    disk = spec.retention.log_bytes_max + SNAPSHOTS * parameters
    disk += 2 * state_bytes(algorithm, size) + 2 * parameters
    fixed = FIXED_BYTES + KERNELS_BYTES * (size.chunks >= KERNEL_CHUNKS_MIN)
    worked = (1 + algorithm.moves) * parameters
    held, one = copies * parameters + momentum, pass_bytes(spec.model, 1, spec.data.sequence_length)
    return Needs(size.parameters, fixed, held, worked, disk, one)
