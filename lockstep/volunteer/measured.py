"""The measurements of the first start of a run: the samples in a pass, and the time of a round. The
owner is told whether that makes the bell before being asked, and the size of a pass is remembered.

    <directory of the run>/measured.json

It is measured again where the device, the threads or the memory that it may take are others.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.volunteer.bell import Verdict, counted_words, judge_bell, limit_trouble
from lockstep.volunteer.limits import Limits
from node.settings import NodeSettings
from node.system.run_notes import RunNote, read_note, write_note
from protocol.errors import SettingsError
from protocol.ids import RunId
from protocol.planner.parameters import has_layout, size_of
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec

if TYPE_CHECKING:
    from node.rehearsal import Rehearsal

log = logging.getLogger("lockstep.join")

MEASURED_NAME = "measured.json"
"""Name of the file in the directory of a run."""


class Measured(RunNote):
    """The size of a pass that is quickest on this machine, and where that was found."""

    micro_batch: int = 0
    """Samples in a pass on each device; 0: never measured."""
    device: str = ""
    threads: int = 0
    gpu_memory: int = 100
    memory_bytes: int = 0
    """Memory that the run may take; 0: the machine's."""


@dataclass(frozen=True, slots=True)
class FirstLook:
    """A round of this machine; without one the reason why there is none."""

    rehearsal: "Rehearsal | None"
    trouble: str = ""


def look(settings: NodeSettings, info: RunInfo, memory_bytes: int, *, finds: bool) -> FirstLook:
    """Measures a round on this machine, with a pass of the size that is quickest if it `finds`
    that, else with the settings'. Builds nothing that the memory cannot hold. Blocks for seconds.
    """
    from node.model.check import check_model
    from node.rehearsal import rehearse
    from node.system.device import choose_devices

    try:
        check_model(info.spec, choose_devices(settings.device)[0])
        return FirstLook(rehearse(settings, info, memory_bytes, finds=finds))
    except SettingsError as error:
        return FirstLook(None, str(error))


def remembered(place: Path, run_id: RunId, settings: NodeSettings, memory_bytes: int) -> int:
    """Samples in a pass as an earlier start has found them for the same settings; 0 if none has.

    Raises `StorageError` for a file that is there and cannot be read.
    """
    note = read_note(
        place / MEASURED_NAME, Measured(run_id), log, "measures again: its file is damaged"
    )
    same = note == _note(run_id, settings, memory_bytes, note.micro_batch)
    return note.micro_batch if same and note.micro_batch >= 1 else 0


def remember(
    place: Path, run_id: RunId, settings: NodeSettings, memory_bytes: int, micro_batch: int
) -> None:
    """Keeps the size of a pass for the next start."""
    write_note(place / MEASURED_NAME, _note(run_id, settings, memory_bytes, micro_batch))


def pass_words(found: "Rehearsal") -> str:
    """The size of a pass and why it is not larger."""
    number = "1 sample" if found.micro_batch == 1 else f"{found.micro_batch} samples"
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
        lines.append(f"bell: no, because this machine cannot train the run: {seen.trouble}")
    else:
        verdict = bell_of(seen.rehearsal, spec, settings.duty_cycle)
        remedy = f"; {verdict.remedy}" if verdict.remedy else ""
        lines.append(f"pass: {pass_words(seen.rehearsal)}")
        lines.append(f"bell: {verdict.words}{remedy}")
    lines.append(f"counted: {counted_words(spec, status, size)}")
    trouble = judged_limits(spec, _rates(settings), members_after(status))
    return [*lines, f"limits: {trouble}"] if trouble else lines


def members_after(status: Mapping[str, Any]) -> int:
    """Members of the run once this machine has joined, by the coordinator's document."""
    members = status.get("members")
    return 1 + len(members) if isinstance(members, list) else 0


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


def _note(run_id: RunId, settings: NodeSettings, memory_bytes: int, micro_batch: int) -> Measured:
    return Measured(
        run_id, micro_batch, settings.device, settings.threads, settings.gpu_memory, memory_bytes
    )
