"""Measurements and curves together: a table, a CSV and a figure for each setting.

Time to the fixed loss is (steps of the curve) times (seconds per step on the links). DDP's seconds
were measured with AdamW; with Muon they are computed, as those and what Muon's own arithmetic takes
more on one core (`curves.optimizer_s`).
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from node.system.files import replacing_file
from tests.benchmarks.figures import canvas, svg
from tests.benchmarks.wan.curves import TARGET_NATS, Points, steps_to
from tests.benchmarks.wan.links import Trial, card_suffix
from tests.benchmarks.wan.methods import BASE, DENSE, METHODS
from tests.benchmarks.wan.results import Measurement, predicted

DENSE_CURVE = next(iter(DENSE.values())).curve

TABLE_NAME, CSV_NAME = "table.md", "measurements.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; None for unknown figures."""

    profile: str
    compute_s: float
    """Seconds of a forward and backward pass."""
    method: str
    slowed: int
    """Factor by which it was measured slower than life; times are those of life."""
    how: str
    """ "measured" or "computed"."""
    up_bytes: float
    down_bytes: float
    predicted_s: float
    step_s: float
    least_s: float
    most_s: float
    computing: float | None
    computing_alone: float | None
    arithmetic_s: float | None
    arithmetic_cpu_s: float | None
    steps: int | None = None
    loss_s: float | None = None
    times_less: float | None = None
    """DDP's time to the loss, with AdamW, divided by this one's."""
    times_less_muon: float | None = None
    """The same with Muon."""

    @property
    def setting(self) -> tuple[str, float]:
        """The values that comparable rows share."""
        return self.profile, self.compute_s


def rows(
    measurements: Sequence[Measurement],
    curves: Mapping[str, Points],
    size: str = "20m",
    muon_more_s: float | None = None,
) -> list[Row]:
    """A row for each measurement, and a computed one for DDP where a trial would take too long.
    With `muon_more_s`, seconds that a step of Muon takes more than one of AdamW, and with Muon's
    curve, a row for DDP with Muon too.
    """
    found = [_measured(one, size) for one in measurements]
    for nodes, setting in dict.fromkeys(
        (one.nodes, (one.profile, one.compute_s)) for one in measurements
    ):
        mates = [place for place, row in enumerate(found) if row.setting == setting]
        if not any(found[place].method == BASE for place in mates):
            profile, compute_s = setting
            found.insert(mates[0], _computed(Trial(profile, BASE, nodes, size, compute_s)))
    if muon_more_s is not None and DENSE_CURVE in curves:
        for row in [row for row in found if row.method == BASE]:
            found.insert(found.index(row) + 1, _with_muon(row, muon_more_s))
    with_loss = [_to_loss(row, curves) for row in found]
    bases = {(row.setting, row.method): row.loss_s for row in with_loss}
    return [_compared(row, bases) for row in with_loss]


def _measured(one: Measurement, size: str) -> Row:
    expected = predicted(Trial(one.profile, one.method, one.nodes, size, one.compute_s))
    return Row(
        one.profile, one.compute_s, one.method, one.slowed, "measured",
        one.up_bytes, one.down_bytes, expected.seconds,
        one.seconds, min(one.step_s), max(one.step_s),
        one.computing, one.computing_alone, one.arithmetic_s, one.arithmetic_cpu_s,
    )  # fmt: skip


def _computed(trial: Trial) -> Row:
    expected = predicted(trial)
    seconds = expected.seconds
    return Row(
        trial.profile, trial.compute_s, trial.method, 1, "computed",
        expected.bytes, expected.bytes, seconds, seconds, seconds, seconds,
        trial.compute_s / seconds, trial.compute_s / seconds, None, None,
    )  # fmt: skip


def _with_muon(base: Row, more_s: float) -> Row:
    (name,) = DENSE
    step_s = base.step_s + more_s
    return replace(
        base,
        method=name, how="computed", predicted_s=base.predicted_s + more_s,
        step_s=step_s, least_s=step_s, most_s=step_s,
        computing=None, computing_alone=None, arithmetic_s=None, arithmetic_cpu_s=None,
    )  # fmt: skip


def _to_loss(row: Row, curves: Mapping[str, Points]) -> Row:
    steps = steps_to(curves.get(_curve(row), []), TARGET_NATS)
    return replace(row, steps=steps, loss_s=steps and steps * row.step_s)


def _curve(row: Row) -> str:
    return (METHODS | DENSE)[row.method].curve


def _compared(row: Row, loss_s: Mapping[tuple[tuple[str, float], str], float | None]) -> Row:
    def times(method: str) -> float | None:
        base_s = loss_s.get((row.setting, method))
        return base_s / row.loss_s if base_s and row.loss_s else None

    (muon,) = DENSE
    return replace(row, times_less=times(BASE), times_less_muon=times(muon))


def write_report(directory: Path, found: Sequence[Row], curves: Mapping[str, Points]) -> str:
    """Write the table, the CSV and a figure per setting into a directory; returns the table."""
    table = table_of(found)
    _write(directory / TABLE_NAME, table.encode())
    _write(directory / CSV_NAME, csv_of(found).encode())
    for name, own in comparable(found).items():
        _write(directory / f"{name}.svg", figure_of(own, curves))
    return table


def comparable(found: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by profile and computing time, named for files; only those in which a method reached the
    loss.
    """
    settings = {
        row.setting: [other for other in found if other.setting == row.setting] for row in found
    }
    return {
        f"{profile}{card_suffix(compute_s)}": own
        for (profile, compute_s), own in settings.items()
        if any(row.loss_s for row in own)
    }


def _write(path: Path, blob: bytes) -> None:
    with replacing_file(path, len(blob)) as temporary:
        temporary.write_bytes(blob)


_HEAD = (
    "profile",
    "a pass, s",
    "method",
    "up, MB per step",
    "down",
    "s per step, predicted",
    "median",
    "least-most",
    "computing",
    "alone",
    "arithmetic, s",
    "of a core",
    "steps",
    "time to the loss",
    "times less than DDP",
    "with Muon",
)


def table_of(found: Sequence[Row]) -> str:
    """The rows for a person, in Markdown."""
    lines = ["| " + " | ".join(_HEAD) + " |", "| --- | ---: | --- |" + " ---: |" * (len(_HEAD) - 3)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in found]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    by_arithmetic = row.how == "computed"
    return (
        row.profile,
        f"{row.compute_s:g}",
        named(row),
        f"{row.up_bytes / 1e6:.3g}",
        f"{row.down_bytes / 1e6:.3g}",
        f"{row.predicted_s:.2f}",
        f"{row.step_s:.2f}",
        "" if by_arithmetic else f"{row.least_s:.2f}-{row.most_s:.2f}",
        _number(row.computing, ".2f"),
        _number(row.computing_alone, ".2f"),
        _number(row.arithmetic_s, ".2f"),
        _number(row.arithmetic_cpu_s, ".2f"),
        _number(row.steps, "d"),
        "" if row.loss_s is None else duration(row.loss_s),
        _number(row.times_less, ".1f"),
        _number(row.times_less_muon, ".1f"),
    )


def named(row: Row) -> str:
    """The method, and how its figures came about."""
    motion = f" (slowed {row.slowed} times)" if row.slowed > 1 else ""
    return row.method + (" (computed)" if row.how == "computed" else motion)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def duration(seconds: float) -> str:
    """A duration in the unit that a person would choose."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def csv_of(found: Sequence[Row]) -> str:
    """The rows for a program."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(Row.__dataclass_fields__)
    writer.writerow(names)
    for row in found:
        values = [getattr(row, name) for name in names]
        writer.writerow(
            ["" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in values]
        )
    return text.getvalue()


def figure_of(found: Sequence[Row], curves: Mapping[str, Points]) -> bytes:
    """SVG: validation loss over wall time in one setting, a line for each method, the first to
    arrive named first.
    """
    figure = canvas(8, 6.5)
    axes = figure.add_subplot()
    drawn = [row for row in found if any(step for step, _ in curves.get(_curve(row), []))]
    for row in sorted(drawn, key=lambda row: (row.loss_s is None, row.loss_s or row.step_s)):
        points = [(step, loss) for step, loss in curves[_curve(row)] if step]
        times = "" if row.times_less is None else f": {row.times_less:.1f} times less than DDP"
        seconds = [step * row.step_s for step, _ in points]
        line = "--" if row.how == "computed" else "-"
        axes.plot(
            seconds,
            [loss for _, loss in points],
            line,
            label=named(row) + times,
            marker=".",
            markersize=3,
        )
    axes.axhline(TARGET_NATS, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("wall time on the links, seconds")
    axes.set_ylabel("validation loss, nats per byte")
    profile, compute_s = found[0].setting
    axes.set_title(
        f"{profile}, a pass of {compute_s:g} s: steps of a curve times measured seconds per step",
        fontsize=10,
    )
    axes.grid(visible=True, which="both", alpha=0.2)
    figure.legend(loc="outside lower center", fontsize=8, ncols=1 if len(drawn) < 6 else 2)
    return svg(figure)
