"""The memory and the most disk that a run takes on a node, by arithmetic: no torch.

    memory = fixed + held + worked + a pass

fixed    Python, torch and the other libraries, before there is a network
held     local steps: parameters, the model's copy that the steps move, gradients, the residual
         with the padding of its chunks, and a momentum of Muon; with overlap a copy of where a
         round began. Residual, gradients and momentum are bfloat16, and so are the model's copy
         and start where a device multiplies bfloat16 quickly: 12 or 14 bytes a parameter there, 14
         or 18 elsewhere. DeMo: parameters, gradients and momentum: 12. Where nodes mix parameters:
         two moments and the gradients of a window in place of momentum, no second copy, and with
         int8 the newest mean
worked   for an instant of each round: with local steps strips in float32, what a table was moved
         by, and freed memory of other sizes that does not fit; else a second gradient at most
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

FIXED_BYTES = 540_000_000
"""Memory of a node without a network, on a CPU, once it has trained some rounds: of four nodes with
0.8 million parameters 520 to 545 MB resident beside model and pass, of them 170 of files that other
programs may share; 470 before the first round. Linux on x86-64, Python 3.11, torch 2.13 of the CPU
build. CUDA has its own on the host, some gigabytes with its libraries."""

KERNELS_BYTES = 130_000_000
"""Memory of the compiled kernels and of numba, in a model large enough for them."""

COMPILER_BYTES = 80_000_000
"""Memory of torch's compiler, which torch imports to compute activations again."""

KERNEL_CHUNKS_MIN = 1024
"""Chunks from which on a CPU uses the kernels: four million parameters. To load them takes most of
a second, and some ten the first time on a machine."""

WORKED_BYTES = 80_000_000
"""Memory of the strips in float32 in which local steps and the residual are worked on, at most."""

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
    kept_bytes: int = 0
    """Memory of the replica that is touched once a round, and may lie in the host's memory."""

    @property
    def memory_bytes(self) -> int:
        """All memory but that of a pass, where a CPU trains."""
        return self.fixed_bytes + self.held_bytes + self.worked_bytes


def state_bytes(algorithm: AlgorithmSpec, size: Size) -> int:
    """Bytes of the state that a node saves."""
    own = 3 + algorithm.mixing.differs if algorithm.facts.sends_parameters else 0
    return FLOAT_BYTES * size.parameters * (1 + own)


def needs_of(spec: RunSpec, size: Size, *, light: bool = False) -> Needs:
    """The needs of a run whose network has this size. `light`: on a device that trains it with
    local steps in bfloat16.
    """
    algorithm, parameters = spec.algorithm, FLOAT_BYTES * size.parameters
    weights = parameters // 2 if light else parameters
    kept, worked = 0, parameters
    if algorithm.facts.steps_within_round:
        kept = parameters + FLOAT_BYTES // 2 * size.chunks * CHUNK_ENTRIES
        kept += spec.rounds.overlap * weights
        held = kept + weights + parameters
        worked = parameters // 2 + min(WORKED_BYTES, 2 * parameters)
    elif algorithm.facts.sends_parameters:
        held = parameters + state_bytes(algorithm, size)
    else:
        held = 2 * parameters + FLOAT_BYTES * size.chunks * CHUNK_ENTRIES
    disk = spec.retention.log_bytes_max + SNAPSHOTS * parameters
    disk += 2 * state_bytes(algorithm, size) + 2 * parameters
    fixed = FIXED_BYTES + KERNELS_BYTES * (size.chunks >= KERNEL_CHUNKS_MIN)
    one = pass_bytes(spec.model, 1, spec.data.sequence_length)
    return Needs(size.parameters, fixed, held, worked, disk, one, kept)


def has_room(needs: Needs, free_bytes: int | None) -> bool:
    """Whether a device with this memory free holds all of a replica, and as much is left for its
    passes; else what is touched once a round goes to the host's memory.
    """
    return free_bytes is None or 2 * needs.held_bytes <= free_bytes
