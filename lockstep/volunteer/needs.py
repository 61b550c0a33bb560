"""The needs of a run on this machine, judged before anything that its run file says is obeyed.

The numbers come from the run file by arithmetic. For a type of model whose sizes are not written
down here, torch counts parameters that have no memory.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.console import bytes_text
from protocol.errors import SettingsError
from protocol.planner.needs import COMPILER_BYTES, Needs, needs_of
from protocol.planner.parameters import Size, has_layout, size_of
from protocol.planner.payload_bytes import mean_bytes, payload_bytes
from protocol.planner.sums import round_bytes
from protocol.runfile import RunSpec
from protocol.words import quantity

if TYPE_CHECKING:
    from node.rehearsal import Rehearsal

SEEN = "everyone who reaches the coordinator can see this node's name, hardware and IP address"
"""The facts that a volunteer gives away by joining."""


def judged(spec: RunSpec, memory_bytes: int, disk_bytes: int, place: Path) -> list[str]:
    """The needs of the run, in words. `memory_bytes` and `disk_bytes` are the owner's limits, 0 for
    none; the run's directory will be at `place`.

    Raises `SettingsError` for a run that needs more than the limits.
    """
    if not (memory_bytes or disk_bytes or has_layout(spec.model)):
        return []  # the count would be made twice: the node makes it before it builds the model
    needs = needs_of(spec, sized(spec))
    _require(needs.memory_bytes, memory_bytes, f"{needs.parameters:,} parameters, without a pass,")
    if disk_bytes and needs.disk_bytes > disk_bytes:
        raise SettingsError(
            f"this run may take {bytes_text(needs.disk_bytes)} of disk, "
            f"{bytes_text(spec.retention.log_bytes_max)} of them for payloads: more than the "
            f"{bytes_text(disk_bytes)} of --disk; nothing was written"
        )
    free, words = _free(place), needs_text(needs)
    return [f"{words}; {bytes_text(free)} are free" if free < needs.disk_bytes else words]


def needs_text(needs: Needs) -> str:
    """The memory and the disk of a node, in words."""
    disk = bytes_text(needs.disk_bytes)
    return f"this run takes {memory_text(needs)}; at most {disk} of disk here"


def memory_text(needs: Needs) -> str:
    """The memory of a node before its first pass, in words."""
    total, fixed = bytes_text(needs.memory_bytes), bytes_text(needs.fixed_bytes)
    one = f"about {bytes_text(needs.pass_bytes)} for" if needs.pass_bytes else "that of"
    sample = " of one sample" if needs.pass_bytes else ""
    return f"{total} of memory on a CPU ({fixed} for Python and torch), and {one} a pass{sample}"


def peak_text(spec: RunSpec, size: Size, found: "Rehearsal") -> str:
    """The memory of a node with the passes that were measured, in words."""
    if found.device == "cpu":
        return f"up to {bytes_text(_peak_bytes(spec, size, found))} with such passes"
    needs = needs_of(spec, size, light=found.is_light)
    apart_bytes = needs.kept_bytes * found.is_apart
    device = bytes_text(_device_bytes(needs, found) - apart_bytes)
    host = bytes_text(needs.fixed_bytes + apart_bytes)
    return f"up to {device} of the GPU with such passes; of the host {host}, and CUDA's own"


def require_within(spec: RunSpec, found: "Rehearsal", memory_bytes: int) -> None:
    """Raises `SettingsError` where a node with the passes that were measured takes more than its
    owner's limit, 0 for none. That of a GPU has a limit of its own.
    """
    if memory_bytes and found.device == "cpu":
        needed, samples = _peak_bytes(spec, sized(spec), found), found.samples
        _require(needed, memory_bytes, f"a pass of {quantity(samples, 'sample')}")


def _peak_bytes(spec: RunSpec, size: Size, found: "Rehearsal") -> int:
    """Most memory of a node on a CPU."""
    needs = needs_of(spec, size, light=found.is_light)
    fixed = needs.fixed_bytes + COMPILER_BYTES * found.recomputes
    return fixed + _device_bytes(needs, found)


def _device_bytes(needs: Needs, found: "Rehearsal") -> int:
    """Most memory that the replica and a round take on the device."""
    return needs.held_bytes + max(needs.worked_bytes, found.pass_bytes)


def _require(needed_bytes: int, memory_bytes: int, taker: str) -> None:
    if memory_bytes and needed_bytes > memory_bytes:
        raise SettingsError(
            f"--memory: a node of this run with {taker} takes {bytes_text(needed_bytes)}: expected "
            f"at least {needed_bytes:,} bytes, got {memory_bytes:,}; nothing was started"
        )


def exchange_text(spec: RunSpec, size: Size, rounds: float, period: str, members: int = 0) -> str:
    """The bytes that a node sends and receives in these rounds, which are a `period`, in words, in
    a run of this many members, or of as many as it begins with.
    """
    mixing, members = spec.algorithm.mixing, max(members, spec.membership.start_members, 2)
    if 0 < spec.rounds.sums <= members:
        both = bytes_text(2 * rounds * round_bytes(spec, size, members))
        return (
            f"about {both} {period}, half of it up, with {members:,} members, whose payloads are "
            "added for all; little more with further ones"
        )
    sent = rounds * payload_bytes(spec.algorithm, size)
    means = ""
    if not spec.algorithm.facts.replicas_equal:
        mean = bytes_text(mean_bytes(size.parameters))
        means = f"; at every {mixing.mean_every}th step {mean} to and from each other member"
    if not spec.algorithm.meets_all:
        return (
            f"about {bytes_text(2 * sent)} {period}, half of it up, however many take part{means}"
        )
    return (
        f"about {bytes_text(2 * (members - 1) * sent)} {period}, half of it up, with {members:,} "
        f"members; {bytes_text(2 * sent)} more with each further one{means}"
    )


def sized(spec: RunSpec) -> Size:
    """The size of a run's network; torch counts where no arithmetic does."""
    if has_layout(spec.model):
        return size_of(spec.model)
    from node.model.check import count_parameters

    return size_of(spec.model, count_parameters(spec))


def _free(place: Path) -> int:
    """Free bytes on the disk of a directory that need not exist yet."""
    present = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
    return shutil.disk_usage(present).free
