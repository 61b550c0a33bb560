"""Parts of a measurement, one after the other within a time, each in a process of its own: what one
breaks, such as a CUDA context, the next one does not meet.

    not reached --its turn--> under way --ended-----------> measured
                                        --time is up------> cut off after N s
                                        --error, signal---> failed: the reason in one line

A part yields its findings again and again as they grow, and each is handed on at once, so that
nothing is lost with the machine. A part may take its share of the time that is left; what it leaves
is the others'.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from node.model.lean_import import import_transformers
from node.system.device import use_threads
from tests.benchmarks.accelerator.sizes import Sizes

START_S = 5.0
"""Time that a part takes before it measures anything: with less left it is not begun."""

Findings = dict[str, Any]

Measure = Callable[[Sizes, Path], Iterator[Findings]]
"""Yields what it found so far; the directory is its own."""


class Part(NamedTuple):
    """A part of the measurement."""

    measure: Measure
    weight: float
    """Its share of the time, beside the others' weights."""


def measured(
    parts: Mapping[str, Part],
    sizes: Sizes,
    seconds: float,
    write: Callable[[Mapping[str, Findings]], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Make all parts in order; `write` is told all findings whenever they grow."""
    ends = clock() + seconds
    found: dict[str, Findings] = {name: {"outcome": "not reached"} for name in parts}
    write(found)
    waiting = dict(parts)
    for name, part in parts.items():
        left = ends - clock()
        share = left * part.weight / sum(each.weight for each in waiting.values())
        del waiting[name]
        if share < START_S:
            continue
        began = clock()
        for outcome, findings in _made(part.measure, sizes, share, clock):
            found[name] = {
                "outcome": outcome,
                "seconds": round(clock() - began, 1),
                **findings,
            }
            write(found)


def _made(
    measure: Measure, sizes: Sizes, seconds: float, clock: Callable[[], float]
) -> Iterator[tuple[str, Findings]]:
    """Outcome and findings of a part, the last ones when it has ended."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    ends, findings = clock() + seconds, Findings()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        process = context.Process(
            target=_make, args=(measure, sizes, Path(directory), theirs), daemon=True
        )
        process.start()
        theirs.close()
        outcome = ""
        try:
            while not outcome:
                if not ours.poll(max(0.0, ends - clock())):
                    outcome = f"cut off after {seconds:.0f} s"
                    continue
                outcome, newest = _heard(ours)
                findings = newest or findings
                if not outcome:
                    yield "under way", findings
        finally:
            process.kill()
            process.join()
    if outcome == _SILENT:
        outcome = f"failed: its process ended with {process.exitcode}"
    yield outcome, findings


_SILENT = "ended without a word"


def _heard(connection: Connection) -> tuple[str, Findings]:
    """The next message of a part: its outcome, empty as long as it goes on, and its findings."""
    try:
        message: tuple[str, Findings] = connection.recv()
        return message
    except EOFError:
        return _SILENT, {}


def _make(measure: Measure, sizes: Sizes, directory: Path, connection: Connection) -> None:
    """Measure in this process, and tell over the connection."""
    try:
        use_threads(sizes.threads)
        import_transformers()  # in half of the time, as nodes do
        for findings in measure(sizes, directory):
            connection.send(("", findings))
        connection.send(("measured", {}))
    except Exception as error:  # the next part is made whatever this one met
        line = next(iter(str(error).strip().splitlines()), "")
        connection.send((f"failed: {type(error).__name__}: {line}"[:500], {}))
