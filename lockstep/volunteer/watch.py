"""Shows a node while it works: a live table on a terminal, else a log line at each change.

terminal        the table of `lockstep.volunteer.screen`, log records above it
no terminal     a record at each change of state, and one a minute
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lockstep.console import bytes_text, number, output
from lockstep.volunteer.screen import render, state_words, traffic_bytes

log = logging.getLogger("lockstep.join")

LOOK_S = 0.5
"""Pause between two looks at the status."""

CALM_S = 60.0
"""Pause between two records of a state that does not change."""

Status = Callable[[], Mapping[str, Any]]
"""Function that returns a node's status."""


async def watch(status: Status) -> None:
    """Shows a node until cancelled."""
    if output.is_terminal:
        with _live(output) as live:
            while True:
                live.update(render(status()), refresh=True)
                await asyncio.sleep(LOOK_S)
    journal = StateLog()
    while True:
        journal.look(status(), time.monotonic())
        await asyncio.sleep(LOOK_S)


class StateLog:
    """Writes a record when a node's state changes, or when nothing was written for `CALM_S`."""

    def __init__(self) -> None:
        self._state = ""
        self._due_s = 0.0

    def look(self, status: Mapping[str, Any], now_s: float) -> None:
        """Takes the newest status at the monotonic time `now_s`."""
        state = str(status.get("standing", {}).get("state", ""))
        if state == self._state and now_s < self._due_s:
            return
        self._state, self._due_s = state, now_s + CALM_S
        log.info(state_words(status), extra=_facts(status))


def _facts(status: Mapping[str, Any]) -> dict[str, object]:
    rounds = status.get("rounds", {})
    if not rounds.get("trained"):
        return {}
    return {
        "round": status.get("round"),
        "loss": number(status.get("loss")) or "unknown",
        "counted": f"{rounds.get('counted')}/{rounds['trained']}",
        "up": bytes_text(traffic_bytes(status, "up")).replace(" ", ""),
    }


@contextmanager
def _live(console: Console) -> Iterator[Live]:
    """A live display; log records and messages appear above it while it stands."""
    root = logging.getLogger()
    above = _Above(console)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        before, root.handlers = root.handlers, [above]
        try:
            yield live
        finally:
            root.handlers = before


class _Above(logging.Handler):
    """Log records as short lines on a console: time, message, and the reason if there is one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one record."""
        words = record.getMessage()
        if reason := getattr(record, "reason", "") or getattr(record, "note", ""):
            words = f"{words}: {reason}"
        elif loss := number(getattr(record, "loss", None)):
            words = f"{words}: {loss}"
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        style = "yellow" if record.levelno >= logging.WARNING else ""
        self._console.print(Text(f"{clock} {words}", style=style), soft_wrap=True)
