"""A node whose device failed begins anew in a new process: nothing that is left of a lost graphics
card in this one is of use, and memory that another program took may be free later.

    failed the 1st time in an hour    a new process, which waits 5 s and goes on
                 2nd                  another one, which waits 30 s
                 3rd                  the end, with an exit code of its own

The times of failures are kept in the directory of the run, from one process to the next:

    <directory of the run>/device-failures.json
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lockstep.console import messages
from node.settings import NodeSettings
from node.system.run_notes import RunNote, read_note, write_note
from protocol.errors import DeviceError
from protocol.ids import RunId

log = logging.getLogger("lockstep.join")

FAILURES_NAME = "device-failures.json"
"""Name of the file in the directory of a run."""

PAUSES_S = (5, 30)
"""Pauses before the next process goes on, after the first failure and after the second: a driver
comes back in seconds, a hot card or another program takes longer."""

WITHIN_S = 3600
"""Time for which a failure counts."""


class DeviceFailures(RunNote):
    """The failures that count, oldest first, as seconds since 1970."""

    at_s: tuple[float, ...] = ()


@contextmanager
def begins_anew(
    settings: NodeSettings, run_id: RunId, launched: bool = False
) -> Iterator[NodeSettings]:
    """Puts a new process of the same command in the place of this one when a device fails in the
    block; `DeviceError` when that was the third time in an hour, or when the program that has
    `launched` this process starts it again. A process that began so waits for the rest of its pause
    first.

    Yields the settings to work with: those given, but no CPU stands in for a card that failed.
    """
    place = settings.directory
    failed_s = _failures(place, run_id).at_s
    if 0 < len(failed_s) <= len(PAUSES_S):
        time.sleep(max(0.0, failed_s[-1] + PAUSES_S[len(failed_s) - 1] - time.time()))
    if failed_s and settings.device == "auto":
        settings = replace(settings, device="cuda")
    try:
        yield settings
    except DeviceError as error:
        if launched:
            raise
        failures = _failures(place, run_id)
        failures.at_s += (time.time(),)
        write_note(place / FAILURES_NAME, failures)
        count = len(failures.at_s)
        if count > len(PAUSES_S):
            raise DeviceError(
                f"{error}; it failed {count} times in an hour: look at the card, its driver, its "
                "heat and other programs that use it, then start the node again"
            ) from error
        messages.print(
            f"{error}; what is saved stays, and the node begins anew in {PAUSES_S[count - 1]} s",
            soft_wrap=True,
        )
        _replace_this_process()


def _failures(place: Path, run_id: RunId) -> DeviceFailures:
    path, now_s = place / FAILURES_NAME, time.time()
    unusable = "earlier failures of the device are not known"
    note = read_note(path, DeviceFailures(run_id), log, unusable)
    note.at_s = tuple(at_s for at_s in note.at_s if 0 <= now_s - at_s < WITHIN_S)
    return note


def _replace_this_process() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
