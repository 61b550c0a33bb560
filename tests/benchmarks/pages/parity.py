"""The computed parts of docs/results/parity.md and of its notes."""

from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from tests.benchmarks.pages.blocks import table
from tests.benchmarks.parity import report
from tests.benchmarks.parity.cells import FORMER, Cell
from tests.benchmarks.parity.comparison import difference, volume
from tests.benchmarks.parity.report import Setting, changes_figure, cost, curves_figure, settings_of
from tests.benchmarks.parity.results import Result, read_results
from tests.benchmarks.parity.sweeps import (
    ADAMW,
    LONG,
    LONG_6_VOTES,
    LONG_7_VOTES,
    LONG_8,
    LONG_EARLY,
    SWEEPS,
    overlapping,
)

LATE = 300
"""First overlapping round of the delayed settings."""

DECIDING = {
    "AdamW, dense gradients": ADAMW,
    "the former default, k = 32": LONG,
    "k = 64 for 200 rounds, then 25": LONG_EARLY,
    "the former default, overlapping from round 300": overlapping(LONG, LATE),
    "k = 16 for 200 rounds, then 7; two rounds' votes": LONG_7_VOTES,
    "k = 16 for 200 rounds, then 6; two rounds' votes": LONG_6_VOTES,
    "k = 8": LONG_8,
    "k = 8, overlapping from round 300": overlapping(LONG_8, LATE),
}
"""Settings of the first table: those with three seeds. AdamW is the one that the others are
compared with."""

DELAYED = {"the former default": LONG, "k = 8": LONG_8}
"""Settings that are compared with their own delayed form."""

NODES = (2, 4, 8, 16, 32, 64)


@cache
def study() -> list[Result]:
    """The committed results of the study."""
    return read_results(Path(SWEEPS["study"].results))


def _setting(cell: Cell) -> Setting:
    (found,) = (setting for setting in settings_of(study()) if setting.cell == cell)
    return found


def deciding() -> str:
    """The settings with three seeds and how far each is behind AdamW."""
    base = _setting(ADAMW)
    rows = []
    for label, cell in DECIDING.items():
        own = _setting(cell)
        ends = ", ".join(f"{result.last.bits_per_byte:.3f}" for result in own.results)
        behind = "" if cell == ADAMW else _signed(own, base)
        payload = (
            f"{own.payload_bytes:,.0f}"
            if cell != ADAMW
            else f"{volume(2, _parameters(), 1).dense_bytes:,}"
        )
        rows.append((label, ends, f"{own.bits_per_byte:.3f}", behind, payload))
    head = (
        "8 authors, 2000 steps",
        "seeds 0, 1, 2",
        "mean",
        "behind AdamW (95 % interval)",
        "payload, bytes",
    )
    return table(head, rows)


def delays() -> str:
    """What a delay of one round costs."""
    rows = [
        (label, _signed(_setting(overlapping(cell, LATE)), _setting(cell)))
        for label, cell in DELAYED.items()
    ]
    return table(("overlapping from round 300", "behind without overlap (95 % interval)"), rows)


def _signed(ours: Setting, theirs: Setting) -> str:
    found = difference(ours.results, theirs.results)
    if found.interval is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} ({found.interval[0]:+.3f} to {found.interval[1]:+.3f})"


def _parameters() -> int:
    return study()[0].parameters


def volumes() -> str:
    """Bytes that the mean node sends per step, by R."""
    rows = []
    for nodes in NODES:
        own = volume(nodes, _parameters(), _setting(LONG).payload_bytes)
        small = volume(nodes, _parameters(), _setting(LONG_8).payload_bytes)
        rows.append(
            (
                str(nodes),
                f"{own.exchange_bytes / 1e3:.1f}",
                f"{own.ring_bytes / 1e3:,.0f}",
                *(f"{_digits(each.times_less_than_dense)}" for each in (own, small)),
                *(f"{_digits(each.times_less_than_ring)}" for each in (own, small)),
            )
        )
    head = (
        *("R", "k = 32, kB sent", "ring all-reduce, kB sent"),
        *("less than one dense gradient: k = 32", "k = 8", "less than the ring: k = 32", "k = 8"),
    )
    return table(head, rows)


def _digits(times: float) -> str:
    return f"{times:.0f}" if times >= 10 else f"{times:.1f}"


def curves() -> bytes:
    """SVG of the settings with three seeds."""
    labels = {cell: label for label, cell in DECIDING.items()}
    return curves_figure(
        [setting for setting in settings_of(study()) if setting.cell in labels], labels
    )


def changes() -> bytes:
    """SVG of all settings of the default length."""
    steps = FORMER.steps
    return changes_figure(
        [setting for setting in settings_of(study()) if setting.cell.steps == steps], FORMER
    )


def tables(sweep: str) -> str:
    """Every setting of a sweep, a table for each length."""
    asked = SWEEPS[sweep]
    found = [result for result in read_results(Path(asked.results)) if result.task == asked.task]
    return "\n\n".join([*_tables(found), cost(found)])


def _tables(found: list[Result]) -> Iterator[str]:
    for steps, settings in groupby(settings_of(found), lambda setting: setting.cell.steps):
        yield f"{steps} steps:"
        yield report.table(list(settings))
