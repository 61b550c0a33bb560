"""`lockstep run export`: the rounds of a run as a table for spreadsheets and plots."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from coordinator.journal import JOURNAL_NAME
from coordinator.round_log import LoggedRound, read_rounds
from lockstep.commands.run.place import any_here
from lockstep.console import messages
from lockstep.service.journal_copy import readable_journal
from node.system.files import replacing_file
from protocol.border.text import one_line
from protocol.words import quantity

COLUMNS: Final = (
    *("round", "outcome", "step", "decided_at", "seconds", "contributors", "assigned"),
    *("samples", "loss", "validation_loss", "payload_bytes", "result_bytes", "state_digest"),
    "reason",
)

REASON_MAX = 300
"""Characters of a reason."""


def export(directory: Path | None, path: str) -> None:
    """Writes a line for each decided round to a file, or to standard output for "-"."""
    count = 0
    with readable_journal(any_here(directory) / JOURNAL_NAME) as journal, _opened(path) as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for each in read_rounds(journal):
            table.writerow(_row(each))
            count += 1
    if path != "-":
        messages.print(f"{quantity(count, 'round')} in {path}", soft_wrap=True)


def _row(each: LoggedRound) -> list[object]:
    decided, commit = each.decided, each.commit
    at_ms = decided.decided_ms
    return [
        decided.round,
        "committed" if commit else "skipped",
        commit.step if commit else "",
        "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",
        _known(decided.seconds),
        len(commit.entries) if commit else 0,
        _known(decided.assigned),
        each.samples,
        _known(each.loss),
        _known(each.validation_loss),
        each.payload_bytes,
        each.result_bytes,
        each.state_digest.hex() if each.state_digest else "",
        one_line(decided.reason, REASON_MAX),
    ]


def _known(value: float | None) -> object:
    return "" if value is None else value


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdout
        return
    with (
        replacing_file(Path(path)) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        yield file
