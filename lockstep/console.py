"""Output for a person: progress, tables and words, at 80 columns or more.

Standard output carries results, standard error everything else, so that `--json -` can be piped.
Rich leaves out colours and moving parts when the output is not a terminal; `progress` then prints a
line at every tenth instead of moving a bar.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from node.system.files import replacing_file
from protocol.border.text import clean
from protocol.words import quantity

NARROWEST_COLUMNS = 80
"""Width that every table fits."""

ERROR_BYTES_MAX = 16 * 1024
"""Length of an error line: of the longest that names every wrong field of a run file."""


class _Screen(Console):
    """A console that draws lines with letters which its stream has: rich knows the encoding only of
    a stream that it is given for good. Names and reasons of strangers are shown: no text here is
    markup.
    """

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, soft_wrap=False, highlight=False, markup=False, emoji=False)

    @property
    def encoding(self) -> str:
        return str(getattr(self.file, "encoding", None) or "utf-8").lower()


output = _Screen(stderr=False)
"""Results."""

messages = _Screen(stderr=True)
"""Progress, notes and errors."""

Advance = Callable[[float, float | None], None]
"""Function that moves a bar: (done, total or None if unknown), both in the bar's unit."""


def error_line(text: str) -> None:
    """Prints one line on standard error; line breaks in the text become spaces, other control
    characters replacements.
    """
    print(f"error: {clean(' '.join(text.split()), ERROR_BYTES_MAX)}", file=sys.stderr)


def own_command() -> str:
    """The words that call this program again from the same shell: `lockstep` where the PATH leads
    to this very program, else its path.
    """
    script = Path(sys.argv[0])
    if script.stem != "lockstep":
        return f"{shlex.quote(sys.executable)} -m lockstep"
    found = shutil.which("lockstep")
    if found and script.exists() and script.samefile(found):
        return "lockstep"
    return shlex.quote(str(script))


@contextmanager
def progress(title: str, unit: str) -> Iterator[Advance]:
    """Shows a bar, for work of more than two seconds; yields the function that moves it."""
    if not messages.is_terminal:
        yield _line_printer(title, unit)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[reached]}", markup=False),
    )
    with Progress(*columns, console=messages) as bar:
        task = bar.add_task(title, total=None, reached="")
        yield lambda done, total: bar.update(
            task, completed=done, total=total, reached=_reached(done, total, unit)
        )


def _line_printer(title: str, unit: str) -> Advance:
    """Prints a line at every tenth of a known total, at every doubling of an unknown one."""
    due = 0.0

    def advance(done: float, total: float | None) -> None:
        nonlocal due
        if done >= due:
            due = min(done + total / 10, total) if total and done < total else max(1.0, 2 * done)
            messages.print(f"{title}: {_reached(done, total, unit)}")

    return advance


def _reached(done: float, total: float | None, unit: str) -> str:
    return f"{100 * min(1.0, done / total):.0f} %" if total else f"{done:,.0f} {unit}"


def write_json(path: str, document: Mapping[str, object]) -> None:
    """Writes a document to a path, or to standard output when the path is "-"."""
    text = json.dumps(document, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    with replacing_file(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def bytes_text(count: float) -> str:
    """A number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def number(value: object) -> str:
    """A loss with four decimals; empty when it is not known."""
    return f"{value:.4f}" if isinstance(value, int | float) else ""


def agreement(agreed: object) -> str:
    """The result of a comparison of replicas, in a word."""
    return "equal" if agreed else "DIFFERENT"


def apart_text(consensus: Mapping[str, Any] | None) -> str:
    """How far nodes with parameters of their own are apart; empty where all are equal."""
    if not consensus:
        return ""
    if consensus.get("distance") is None:
        return "own parameters, not compared yet"
    return (
        f"own parameters, {consensus['distance']:.3g} from their mean after round "
        f"{consensus['round']} ({consensus['members']} nodes)"
    )


def replicas_text(digests: Mapping[str, Any]) -> str:
    """The number of rounds whose digests were compared, and the result."""
    checked = digests.get("rounds_checked") or 0
    return (
        f"{agreement(digests.get('agreed'))} in {quantity(checked, 'round')}"
        if checked
        else "not compared yet"
    )
