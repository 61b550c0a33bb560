"""The cost of a round on this machine, measured before it joins: the samples in a pass, its time.

A replica is built as a node builds it, on all its ranks, makes two rounds of one pass over random
tokens, up to the payload, and is thrown away. After the first round it holds all that it ever does,
an optimizer's state too: what is left of the memory is for passes. The second one is measured.
Nothing is written and nothing is sent. How many samples a pass has is decided by
`node.model.pass_size`.
"""

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.model.pass_size import PASS_PARTS, TRIALS_S, Room, Step, Trial, best, next_step
from node.model.training import TrainingModel
from node.own_replica import compile_on_card
from node.ranks.crew import Crew
from node.ranks.replica import replica_of
from node.replica.factory import replica_for
from node.replica.replica import Replica
from node.settings import NodeSettings
from node.system.device import (
    choose_devices,
    device_errors,
    free_memory_bytes,
    give_back_memory,
    limit_memory,
    resident_bytes,
    use_threads,
)
from protocol.ids import PeerId
from protocol.planner.needs import COMPILER_BYTES
from protocol.run_info import RunInfo
from protocol.schedule import scalars

MEMORY_SHARE = 0.8
"""Part of the free memory that passes may take: payloads and commits need some as well."""

TIMED_S = 0.1
"""Time for the timed passes of one trial: a short one is made more than once, and the quickest
counts, as other programs only ever slow a pass."""

_PEAK_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A round of this machine, as it was measured."""

    micro_batch: int
    """Samples in a pass of each rank."""
    samples: int
    """Samples in a pass of all ranks together, which are taken to be as quick as this one."""
    pass_s: float
    round_s: float
    """Seconds of all the work of a round with one pass."""
    reason: str
    """Why no larger pass was tried, in words; empty where its size was given."""
    pass_bytes: int = 0
    """Most memory of the device that the round took beside what a replica holds; 0: it could
    not be told."""
    device: str = "cpu"
    """Type of the device."""
    recomputes: bool = False
    """Whether blocks are computed again on the way back."""
    is_light: bool = False
    """Whether weights are bfloat16."""
    is_apart: bool = False
    """Whether the host keeps what is touched once a round, as a GPU has no room for it."""


def rehearse(
    settings: NodeSettings,
    info: RunInfo,
    memory_bytes: int = 0,
    crew: Crew | None = None,
    *,
    finds: bool,
) -> Rehearsal:
    """The time of a round here, with passes of the size that is quickest if it `finds` that, else
    with that of the settings. `memory_bytes` is the memory that this process may take, 0: all that
    is free. Without the `crew` of a node of several ranks its first device is measured, alone.
    Blocks for some seconds.

    Raises `SettingsError` when the run cannot be trained here, `DeviceError` when a device fails.
    """
    use_threads(settings.threads * (crew.here if crew else 1))
    device, *others = choose_devices(settings.device)
    settings = replace(settings, ranks=max(settings.ranks, 1 + len(others)))
    limit_memory(device, settings.gpu_memory)
    try:
        with device_errors():
            return _rehearsed(settings, info, device, memory_bytes if finds else None, crew)
    finally:
        if crew:
            crew.rest()
        give_back_memory()


def _rehearsed(
    settings: NodeSettings,
    info: RunInfo,
    device: torch.device,
    memory_bytes: int | None,
    crew: Crew | None,
) -> Rehearsal:
    """`memory_bytes` None: the size of a pass is that of the settings."""
    first = settings.micro_batch if memory_bytes is None else 1
    parts = info.spec, info.run_id, device, first, PeerId("0" * 32)
    if crew and settings.gpu_memory < 100:
        crew.limit(settings.gpu_memory)
    replica = replica_of(crew, *parts) if crew else replica_for(*parts)
    if settings.recomputes:
        replica.trainee.recompute()
    _round(replica, info, 0)
    give_back_memory()
    reason = ""
    if memory_bytes is not None:
        compute_s = info.spec.rounds.compute_ms / 1000 * settings.duty_cycle / 100
        room = Room(
            max(1, _pass_samples_max(info) // settings.ranks),
            compute_s / PASS_PARTS,
            _room_bytes(device, memory_bytes, crew.here if crew else settings.ranks),
        )
        reason = _found(replica.trainee, info, room)
        give_back_memory()
    compile_on_card(replica.trainee, settings, info.spec)
    before_bytes = _begin_peak(device)
    samples, pass_s, round_s = _round(replica, info, 1)
    pass_bytes = max(0, _peak_bytes(device) - before_bytes)
    trainee = replica.trainee  # with smaller passes than were asked for where memory has run out
    return Rehearsal(
        trainee.micro_batch_max,
        min(samples * (1 if crew else settings.ranks), _pass_samples_max(info)),
        pass_s,
        round_s,
        reason,
        pass_bytes,
        device.type,
        trainee.recomputes,
        is_light=trainee.dtype == torch.bfloat16,
        is_apart=replica.store.type != device.type,
    )


def _pass_samples_max(info: RunInfo) -> int:
    """Most samples of a pass: a local step is made of a batch, and passes end with it."""
    most = info.spec.rounds.batch_samples_max
    return min(most, info.spec.algorithm.batch_samples(most))


def _found(trainee: TrainingModel, info: RunInfo, room: Room) -> str:
    """Gives passes the size that is quickest; why no larger one was tried. Where memory ends the
    trials they are made again with blocks that are computed again.
    """
    trials, last = _search(trainee, info, room)
    if last.is_short and not trainee.recomputes and trainee.recompute():
        if room.memory_bytes is not None and trainee.device.type == "cpu":
            room = replace(room, memory_bytes=max(0, room.memory_bytes - COMPILER_BYTES))
        more, last = _search(trainee, info, room)
        trials += more
    chosen = best(trials, room.memory_bytes)
    trainee.micro_batch_max = chosen.samples
    if chosen.recomputes != trainee.recomputes:
        trainee.recompute(chosen.recomputes)
        return f"{last.reason}; computing activations again is no quicker"
    return last.reason


def _search(trainee: TrainingModel, info: RunInfo, room: Room) -> tuple[list[Trial], Step]:
    """All trials, and why there are no more."""
    began_s = time.monotonic()
    trials: list[Trial] = []
    while (step := next_step(trials, room, time.monotonic() - began_s)).samples:
        trial = _tried(trainee, info, step.samples)
        if trial is None:
            reason = f"{step.samples} do not fit the memory of {trainee.device}"
            return trials, Step(0, reason, is_short=True)
        trials.append(trial)
    return trials, step


def _tried(trainee: TrainingModel, info: RunInfo, samples: int) -> Trial | None:
    """A pass with `samples` for each rank; None when it does not fit the device's memory.

    Raises what `TrainingModel.in_memory` raises when not even one sample fits.
    """
    trainee.micro_batch_max = samples
    tokens = _tokens(trainee, info, trainee.at_once)
    trainee.model.train()
    if not trainee.crew:  # which begins them anew
        trainee.zero_gradients()
    give_back_memory()  # of the trial before, which this one would use unseen
    before_bytes = _begin_peak(trainee.device)
    pass_s = _quickest(trainee, tokens)
    if pass_s is None:
        return None
    taken_bytes = max(0, _peak_bytes(trainee.device) - before_bytes)
    return Trial(samples, pass_s, taken_bytes, trainee.recomputes)


def _quickest(trainee: TrainingModel, tokens: Any) -> float | None:
    """Seconds of the quickest of some passes over the same tokens; None when one does not fit. The
    first, which compiles, counts only where it is too long to be made again.
    """
    pass_s = _timed(trainee, tokens)
    if pass_s is None or pass_s > TRIALS_S / 2:
        return pass_s
    found_s, spent_s = math.inf, 0.0
    while spent_s < TIMED_S:
        if (pass_s := _timed(trainee, tokens)) is None:
            return None
        found_s, spent_s = min(found_s, pass_s), spent_s + pass_s
    return found_s


def _timed(trainee: TrainingModel, tokens: Any) -> float | None:
    """Seconds of one pass; None when it does not fit the device's memory."""
    began_s = time.monotonic()
    try:
        if trainee.micro_batch_max == 1:
            trainee.in_memory(lambda: trainee.try_pass(tokens))
        else:
            trainee.try_pass(tokens)
        return time.monotonic() - began_s
    except torch.OutOfMemoryError:
        pass
    # Out here the error is gone, whose traceback held on to the tensors of the failed pass.
    if trainee.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def _round(replica: Replica, info: RunInfo, round: int) -> tuple[int, float, float]:
    """(Samples of a pass, its seconds, seconds of a round with one pass). With local steps the pass
    is the first one of a batch, as in a node: it makes the step too only where it is all of it.
    """
    trainee = replica.trainee
    samples = info.spec.algorithm.batch_samples(trainee.at_once)
    tokens = _tokens(trainee, info, samples)
    began_s = time.monotonic()
    passes = replica.begin([tokens], None, scalars(info.spec.schedule, round))
    pass_began_s = time.monotonic()
    passes.next()
    trainee.queue.wait()
    pass_s, samples = time.monotonic() - pass_began_s, passes.samples
    passes.finish()
    replica.accumulate()
    replica.extract(round)
    return samples, pass_s, time.monotonic() - began_s


def _tokens(trainee: TrainingModel, info: RunInfo, samples: int) -> Any:
    """Random samples: int64 [samples, sequence_length + 1]."""
    vocabulary = trainee.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    shape = (samples, info.spec.data.sequence_length + 1)
    return np.random.default_rng(0).integers(0, vocabulary, shape)


# ---- memory


def _room_bytes(device: torch.device, allowed_bytes: int, ranks: int) -> int | None:
    """Memory that passes may take beside this process with its replica; None where that cannot be
    told. What is allowed counts where the CPU trains: the memory of a GPU has a limit of its own.
    Ranks on the CPUs of a machine share it.
    """
    free_bytes = free_memory_bytes(device)
    if allowed_bytes and device.type == "cpu":
        left_bytes = max(0, allowed_bytes - resident_bytes("VmRSS"))
        free_bytes = left_bytes if free_bytes is None else min(free_bytes, left_bytes)
    if free_bytes is None:
        return None
    return int(MEMORY_SHARE * free_bytes) // (ranks if device.type == "cpu" else 1)


def _begin_peak(device: torch.device) -> int:
    """Begins to watch the peak of memory; returns the bytes that are taken now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):  # the peak of before counts then, and the room is judged too small
        _PEAK_RESET.write_text("5", encoding="ascii")
    return resident_bytes("VmRSS")


def _peak_bytes(device: torch.device) -> int:
    """Most bytes that were taken since `_begin_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_bytes("VmHWM")
