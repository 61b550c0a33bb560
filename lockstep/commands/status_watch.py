"""`lockstep status URL --watch`: the status again and again, over one connection.

terminal        one table that changes in place; what does not fit the window is cut at its end
no terminal     a line at each decided round

A coordinator that was there once is waited for; the run's end ends the watch, and so does Ctrl-C.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from lockstep.cluster.live_table import headline
from lockstep.commands.status import asking, rendered
from lockstep.console import output
from protocol.border.text import clean_document
from protocol.errors import UnavailableError

PAUSE_S = 2.0
"""Pause between two questions: a coordinator makes its answer once a second at most."""

HINT = "every 2 s; Ctrl-C ends the watch"

Look = tuple[Mapping[str, Any], str]
"""The newest status, and why there is no newer one; empty where it is of now."""


def watch(url: str) -> None:
    """Shows the run until it ends, or the person does."""
    show = _live if output.is_terminal else _lines
    with contextlib.suppress(KeyboardInterrupt):
        show(looks(url, time.sleep), url)


def looks(url: str, pause: Callable[[float], None]) -> Iterator[Look]:
    """A look after the other, until the run has ended. Raises the errors of
    `lockstep.commands.status.ask`, but `UnavailableError` only before the first answer.
    """
    newest: dict[str, Any] = {}
    while True:
        try:
            with asking(url) as answer:
                while not newest.get("finished"):
                    newest = answer()
                    yield newest, ""
                    pause(PAUSE_S)
                return
        except UnavailableError as error:
            if not newest:
                raise
            yield newest, str(error)
            pause(PAUSE_S)


def _live(seen: Iterator[Look], url: str) -> None:
    with Live(console=output, auto_refresh=False, vertical_overflow="ellipsis") as live:
        for document, away in seen:
            live.update(Group(*_parts(document, away, url)), refresh=True)


def _parts(document: Mapping[str, Any], away: str, url: str) -> list[RenderableType]:
    """What stands on the screen, the worst first."""
    parts = rendered(document, url)
    if away:
        said = f"no answer, as of {time.strftime('%H:%M:%S')}; asks again. Below is the last one.\n"
        return [Text(said + away, style="red"), *parts]
    return [*parts[:1], Text(HINT, style="dim"), *parts[1:]]


def _lines(seen: Iterator[Look], url: str) -> None:
    before: object = None
    for document, away in seen:
        rendered(document, url)  # which judges its form
        steps = document.get("steps", {})
        now = away or (steps.get("committed"), steps.get("skipped"), document.get("finished"))
        if now != before:
            before = now
            line = f"no answer: {away}; asks again" if away else _headline(document)
            output.print(line, soft_wrap=True)


def _headline(document: Mapping[str, Any]) -> str:
    return headline(clean_document(document), int(document.get("steps", {}).get("total") or 0))
