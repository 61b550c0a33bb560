"""The needs of a run on this machine, judged before anything that its run file says is obeyed.

The numbers come from the run file by arithmetic. For a type of model whose sizes are not written
down here, torch counts parameters that have no memory.
"""

import shutil
from pathlib import Path

from lockstep.console import bytes_text
from protocol.errors import SettingsError
from protocol.planner.needs import needs_of
from protocol.planner.parameters import Size, has_layout, size_of
from protocol.planner.payload_bytes import mean_bytes, payload_bytes
from protocol.runfile import RunSpec

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
    memory, disk = bytes_text(needs.memory_bytes), bytes_text(needs.disk_bytes)
    if memory_bytes and needs.memory_bytes > memory_bytes:
        raise SettingsError(
            f"this run's model has {needs.parameters:,} parameters and needs at least {memory} of "
            f"memory: more than the {bytes_text(memory_bytes)} of --memory; nothing was built"
        )
    if disk_bytes and needs.disk_bytes > disk_bytes:
        raise SettingsError(
            f"this run may take {disk} of disk, {bytes_text(spec.retention.log_bytes_max)} of them "
            f"for payloads: more than the {bytes_text(disk_bytes)} of --disk; nothing was written"
        )
    words = f"this run takes at least {memory} of memory and at most {disk} of disk here"
    free = _free(place)
    return [f"{words}; {bytes_text(free)} are free" if free < needs.disk_bytes else words]


def exchange_text(spec: RunSpec, size: Size, rounds: float, period: str) -> str:
    """The bytes that a node sends and receives in these rounds, which are a `period`, in words."""
    mixing = spec.algorithm.mixing
    sent = bytes_text(rounds * payload_bytes(spec.algorithm, size))
    if not spec.algorithm.mixes:
        return f"about {sent} {period} up to each other member, and as much down from each"
    mean = bytes_text(mean_bytes(size.parameters))
    means = f"; at every {mixing.mean_every}th step {mean} to and from each other member"
    if mixing.topology == "complete":
        return f"about {sent} {period} up to each other member, and as much down from each{means}"
    return f"about {sent} {period} up and as much down, however many take part{means}"


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
