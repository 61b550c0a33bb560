"""The question at the first join of a run: what it is, and what it will use of this computer.

It is asked once for each run, in the home directory alone: whoever names a directory of its own, or
starts nodes from a program, has decided already.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from lockstep.console import bytes_text, messages
from lockstep.exit_codes import UsageError
from lockstep.volunteer.bell import slot_s
from lockstep.volunteer.needs import exchange_text
from node.system.files import replacing_file
from protocol.errors import SettingsError
from protocol.planner.parameters import size_of
from protocol.run_info import RunInfo
from protocol.words import quantity

CONSENT_NAME = "consent"
"""File in a run's directory that says that its owner has agreed."""

DAY_S = 86_400

QUESTION = "train on this machine? [Y/n] "


def terms(
    info: RunInfo, device: str, daily_transfer: int, members: int = 0, steps: int = 0
) -> list[str]:
    """What the run is and what a node of it uses, in lines, beside memory and disk
    (`lockstep.volunteer.needs`) and what was measured (`lockstep.volunteer.measured`); numbers are
    estimates. `members` has the run with this node, and `steps` now; 0 where that is not known.
    """
    spec = info.spec
    lines = [
        f"run: {spec.name} ({info.run_id[:8]}), {quantity(steps or spec.schedule.steps, 'step')}",
        f"device: {'the first GPU, else the CPU' if device == 'auto' else device}",
    ]
    try:
        size = size_of(spec.model)
    except SettingsError:  # a model whose size needs torch
        return [*lines, f"model: {spec.model.type}"]
    data = spec.data.corpus + (f", fetched from {spec.data.url}" if spec.data.url else "")
    sent = exchange_text(spec, size, DAY_S / slot_s(spec), "a day", members)
    limit = f"; never more than {bytes_text(daily_transfer)}" if daily_transfer else ""
    return [
        *lines,
        f"model: {spec.model.type}, {size.parameters:,} parameters; data: {data}",
        f"network: {sent}{limit}",
    ]


def has_agreed(place: Path) -> bool:
    """Whether the owner has agreed to the run of this directory before."""
    return (place / CONSENT_NAME).exists()


def somebody_is_there() -> bool:
    """Whether there is a terminal at which somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agrees(question: str, answer: Callable[[str], str]) -> bool:
    """Whether a person says yes to what cannot be undone; no is what Enter means."""
    said = answer(f"{question} [y/N] ").strip().lower()
    return said in ("y", "yes")


def ask_once(
    place: Path,
    lines: list[str],
    *,
    yes: bool,
    terminal: bool | None = None,
    answer: Callable[[str], str] = input,
) -> bool:
    """Whether the owner agrees, which is remembered in the run's directory `place`.

    Raises `UsageError`, which says what to add, where nobody can be asked.
    """
    if has_agreed(place):
        return True
    if terminal is None:
        terminal = somebody_is_there()
    for line in lines:
        messages.print(line, soft_wrap=True, markup=False)
    if not yes and not terminal:
        raise UsageError(
            "expected your consent to what is listed above, and nobody can be asked here: add --yes"
        )
    if not yes and answer(QUESTION).strip().lower() not in ("", "y", "yes"):
        return False
    with replacing_file(place / CONSENT_NAME) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return True
