"""The measurements of the first start of a run: the samples in a pass, and the time of a round. The
owner is told whether that makes the bell before being asked, and the size of a pass is remembered.

    <directory of the run>/measured.json

It is measured again where the device, the threads or the memory that it may take are others, and
after a start in which passes turned out quite another time than they had taken when it was found:
the machine was busy then, or is another one.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.volunteer.bell import Verdict, counted_words, judge_bell, limit_trouble
from lockstep.volunteer.limits import Limits
from lockstep.volunteer.needs import peak_text, sized
from node.settings import NodeSettings
from node.system.run_notes import RunNote, read_note, write_note
from protocol.errors import SettingsError
from protocol.ids import RunId
from protocol.planner.parameters import has_layout, size_of
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec
from protocol.words import quantity

if TYPE_CHECKING:
    from node.ranks.crew import Crew
    from node.rehearsal import Rehearsal

log = logging.getLogger("lockstep.join")

MEASURED_NAME = "measured.json"
"""Name of the file in the directory of a run."""

QUITE_ANOTHER = 2.0
"""Ratio of two times of the same pass from which on they were not of the same machine, or not as
free: sizes are tried by factors of two."""

PASSES_MIN = 16
"""Passes of which the quickest is believed: the first ones compile."""


class Measured(RunNote):
    """The size of a pass that is quickest on this machine, and where that was found."""

    micro_batch: int = 0
    """Samples in a pass of each rank; 0: it is to be measured."""
    device: str = ""
    threads: int = 0
    gpu_memory: int = 100
    memory_bytes: int = 0
    """Memory that the run may take; 0: the machine's."""
    ranks: int = 1
    samples: int = 0
    """Samples in a pass of all ranks together."""
    pass_s: float = 0.0
    recomputes: bool = False
    """Whether blocks are computed again on the way back."""


@dataclass(frozen=True, slots=True)
class FirstLook:
    """A round of this machine; without one the reason why there is none."""

    rehearsal: "Rehearsal | None"
    trouble: str = ""


def look(
    settings: NodeSettings,
    info: RunInfo,
    memory_bytes: int,
    crew: "Crew | None" = None,
    *,
    finds: bool,
) -> FirstLook:
    """Measures a round on this machine, by all ranks of its `crew` if it has several, with a pass
    of the size that is quickest if it `finds` that, else with the settings'. Builds nothing that
    the memory cannot hold. Blocks for seconds.
    """
    from node.own_replica import try_model
    from node.rehearsal import rehearse
    from node.system.device import choose_devices

    try:
        try_model(info.spec, choose_devices(settings.device)[0], crew)
        return FirstLook(rehearse(settings, info, memory_bytes, crew, finds=finds))
    except SettingsError as error:
        return FirstLook(None, str(error))


def remembered(
    place: Path, run_id: RunId, settings: NodeSettings, memory_bytes: int
) -> NodeSettings | None:
    """The settings with passes as an earlier start has found them for the same ones; None if none
    has.

    Raises `StorageError` for a file that is there and cannot be read.
    """
    note = read_note(
        place / MEASURED_NAME, Measured(run_id), log, "measures again: its file is damaged"
    )
    wanted = _note(run_id, settings, memory_bytes)
    found = {"micro_batch": 0, "samples": 0, "pass_s": 0.0, "recomputes": False}
    if note.micro_batch < 1 or wanted != msgspec.structs.replace(note, **found):
        return None
    return replace(settings, micro_batch=note.micro_batch, recomputes=note.recomputes)


def with_passes(settings: NodeSettings, found: "Rehearsal") -> NodeSettings:
    """The settings with passes as they were measured."""
    return replace(settings, micro_batch=found.micro_batch, recomputes=found.recomputes)


def remember(
    place: Path, run_id: RunId, settings: NodeSettings, memory_bytes: int, found: "Rehearsal"
) -> None:
    """Keeps the size of a pass, and how it is made, for the next start."""
    note = _note(run_id, settings, memory_bytes)
    note.micro_batch, note.samples, note.pass_s = found.micro_batch, found.samples, found.pass_s
    note.recomputes = found.recomputes
    write_note(place / MEASURED_NAME, note)


def reconsider(place: Path, run_id: RunId, status: Mapping[str, Any]) -> None:
    """Has the next start measure the size of a pass again, if the passes of a node that has ended,
    by its status, took quite another time than the remembered size had.
    """
    note = read_note(
        place / MEASURED_NAME, Measured(run_id), log, "measures again: its file is damaged"
    )
    made = status.get("passes", {})
    if note.micro_batch < 1 or made.get("samples") != note.samples:
        return
    if reason := turned_out_otherwise(note.pass_s, made["quickest_s"], made["made"]):
        note.micro_batch = 0
        write_note(place / MEASURED_NAME, note)
        log.info("the next start measures the size of a pass again", extra={"reason": reason})


def turned_out_otherwise(measured_s: float, quickest_s: float, made: int) -> str:
    """Why a size that was found by a pass of `measured_s` may be wrong, where the quickest of
    `made` passes took `quickest_s`, in words; empty where it need not be. Pure.
    """
    ratio = max(measured_s, quickest_s) / max(min(measured_s, quickest_s), 1e-6)
    if made < PASSES_MIN or ratio < QUITE_ANOTHER or not measured_s:
        return ""
    word = "a busy machine, then" if quickest_s < measured_s else "a busy machine, now"
    return (
        f"a pass took {measured_s:.2g} s when it was measured, the quickest of {made:,} since took "
        f"{quickest_s:.2g} s: {word}"
    )


def pass_words(found: "Rehearsal") -> str:
    """The size of a pass and why it is not larger."""
    number = quantity(found.micro_batch, "sample")
    if found.recomputes:
        number += ", activations computed again to take less memory"
    return f"{number}: {found.reason}" if found.reason else f"{number}, as you chose"


def bell_of(found: "Rehearsal", spec: RunSpec, duty_cycle: int) -> Verdict:
    """Whether a round as it was measured makes the bell."""
    return judge_bell(found.pass_s, found.round_s, found.samples, spec, duty_cycle)


def bell_lines(
    seen: FirstLook, settings: NodeSettings, spec: RunSpec, status: Mapping[str, Any]
) -> list[str]:
    """Whether this machine makes the bell and when it will count, for the question at a first join.
    `status` is the coordinator's document, empty where it could not be had.
    """
    size = size_of(spec.model) if has_layout(spec.model) else None
    lines = []
    if seen.rehearsal is None:
        lines.append(f"speed: none, because this machine cannot train the run: {seen.trouble}")
    else:
        verdict = bell_of(seen.rehearsal, spec, settings.duty_cycle)
        remedy = f"; {verdict.remedy}" if verdict.remedy else ""
        lines.append(f"pass: {pass_words(seen.rehearsal)}")
        lines.append(f"memory: {peak_text(spec, sized(spec), seen.rehearsal)}")
        lines.append(f"speed: {verdict.words}{remedy}")
    lines.append(f"counted: {counted_words(spec, status, size)}")
    trouble = judged_limits(spec, _rates(settings), members_after(status))
    return [*lines, f"limits: {trouble}"] if trouble else lines


def members_after(status: Mapping[str, Any]) -> int:
    """Members of the run once this machine has joined, by the coordinator's document."""
    members = status.get("members")
    return 1 + len(members) if isinstance(members, list) else 0


def steps_of(status: Mapping[str, Any]) -> int:
    """The length of the run now, by the coordinator's document: an operator may have changed it. 0
    where it does not tell.
    """
    steps = status.get("steps")
    total = steps.get("total") if isinstance(steps, Mapping) else None
    return total if isinstance(total, int) and total > 0 else 0


def judged_limits(spec: RunSpec, limits: Limits, members: int) -> str:
    """Why limits are too low for a run with this number of members, in words; empty where they
    will do, or where the size of the model is not known without torch.
    """
    if not has_layout(spec.model):
        return ""
    rates = {"upload": limits.upload_limit, "download": limits.download_limit}
    return limit_trouble(spec, size_of(spec.model), members=members, **rates)


def _rates(settings: NodeSettings) -> Limits:
    return Limits(upload_limit=settings.upload_limit, download_limit=settings.download_limit)


def _note(run_id: RunId, settings: NodeSettings, memory_bytes: int) -> Measured:
    """The settings for which a size holds, without one."""
    device, threads, percent = settings.device, settings.threads, settings.gpu_memory
    return Measured(run_id, 0, device, threads, percent, memory_bytes, settings.ranks)
