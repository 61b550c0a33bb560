"""The look at the test split, and what the repository keeps of the study.

`headline-cells.jsonl` has every trained cell, with its figure on the test split where it has one;
`headline-looks.jsonl` has one line for every look that was ever taken: when, at which cells, of
which test text, and why. A second look at a text is refused unless a reason is given, and the page
says how many there were. `headline.json` is made from the cells alone.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from node.system.files import replacing_file
from protocol.errors import SettingsError
from tests.benchmarks.headline.study import GROUNDS, SEEDS, Finished, Ground, Job, Method, finals
from tests.benchmarks.parity.comparison import T_975, Difference, volume
from tests.benchmarks.parity.results import result_of
from tests.benchmarks.records import read_records, write_records

DATA = Path("docs/results/data")
CELLS, LOOKS, ROWS = "headline-cells.jsonl", "headline-looks.jsonl", "headline.json"


@dataclass(frozen=True, slots=True)
class Judged:
    """A trained cell, and its figure on the test split if it was looked at."""

    finished: Finished
    test_bits_per_byte: float | None = None

    @property
    def sent_bytes(self) -> float:
        """Bytes that the mean node sends in all, and receives: payloads to each of the others, or a
        ring all-reduce of bfloat16 gradients.
        """
        result = self.finished.result
        steps = result.last.step
        step = volume(result.cell.authors, result.parameters, max(result.payload_bytes, 1))
        dense = self.finished.job.method in ("adamw", "muon")
        return steps * (step.ring_bytes if dense else step.exchange_bytes)


def look(
    found: Sequence[Finished],
    judge: Callable[[Job], float],
    when: str,
    *,
    data: Path = DATA,
    again: str = "",
) -> None:
    """Judge the final cells of every text and length, record that it was done, and write what the
    repository keeps.

    `SettingsError` for a text that was looked at before, unless `again` says why.
    """
    known = {each.finished.job: each for each in read_cells(data)}
    done = {each.job: each for each in found}
    for ground in GROUNDS:
        text = ground.text
        cells = [job for job in finals(found, ground) if job in done]
        if not cells or all(job in known and known[job].test_bits_per_byte for job in cells):
            continue
        cells = [job for job in cells if job not in known or not known[job].test_bits_per_byte]
        looked = [each for each in read_records(data / LOOKS) if each["text"] == text]
        if looked and not again:
            raise SettingsError(
                f"{text}: expected a test split that nobody has looked at, got one of "
                f"{looked[-1]['when']}; say why it is looked at again (--again REASON)"
            )
        record = {"text": text, "when": when, "why": again, "cells": [job.name for job in cells]}
        write_records(data / LOOKS, [*read_records(data / LOOKS), record])
        for job in cells:
            known[job] = Judged(done[job], round(judge(job), 5))
    for each in found:
        known.setdefault(each.job, Judged(each))
    write_cells(data, known.values())


def read_cells(data: Path = DATA) -> list[Judged]:
    """The kept cells."""
    found = []
    for number, record in enumerate(read_records(data / CELLS), 1):
        text, method = record.pop("text"), record.pop("method")
        test = record.pop("test_bits_per_byte")
        result = result_of(record, f"{data / CELLS}, line {number}")
        found.append(Judged(Finished(Job(text, method, result.cell), result), test))
    return found


def write_cells(data: Path, cells: Iterable[Judged]) -> None:
    """Keep cells, and make the headline from them."""
    ordered = sorted(
        cells,
        key=lambda each: (
            each.finished.job.ground,
            each.finished.job.method,
            each.finished.job.name,
        ),
    )
    records = []
    for each in ordered:
        job = each.finished.job
        record: dict[str, Any] = {"text": job.text, "method": job.method}
        record["test_bits_per_byte"] = each.test_bits_per_byte
        records.append(record | asdict(each.finished.result))
    write_records(data / CELLS, records)
    blob = json.dumps({"rows": rows(ordered)}, indent=1).encode() + b"\n"
    with replacing_file(data / ROWS, len(blob)) as temporary:
        temporary.write_bytes(blob)


def rows(cells: Iterable[Judged]) -> list[dict[str, Any]]:
    """One row of the headline for each ground and method that has a figure on the test split."""
    found = []
    for (ground, method), of_seed in by_method(cells).items():
        ends = [each.test_bits_per_byte or 0.0 for each in of_seed.values()]
        first = next(iter(of_seed.values()))
        sent = fmean(each.sent_bytes for each in of_seed.values())
        found.append(
            {
                "text": ground.text,
                "steps": first.finished.result.last.step,
                "authors": first.finished.job.cell.authors,
                "method": method,
                "seeds": sorted(of_seed),
                "bits_per_byte": round(fmean(ends), 5),
                "ci95": half_width(ends),
                "bytes_up": round(sent),
                "bytes_down": round(sent),
            }
        )
    return found


def half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of a mean, Student's t; None for a single value."""
    if len(values) < 2:
        return None
    return round(T_975[len(values) - 1] * stdev(values) / len(values) ** 0.5, 5)


def by_method(cells: Iterable[Judged]) -> dict[tuple[Ground, Method], dict[int, Judged]]:
    """The cells that were looked at by ground and method, then by seed; where a sweep went on after
    a look, those of the rate that is best on the validation split now.
    """
    judged = [each for each in cells if each.test_bits_per_byte is not None]
    rates: dict[tuple[Ground, Method], float] = {}
    for each in sorted(judged, key=lambda each: -each.finished.choosing):
        job = each.finished.job
        if job.cell.seed == SEEDS[0]:
            rates[job.ground, job.method] = job.cell.learning_rate
    found: dict[tuple[Ground, Method], dict[int, Judged]] = {}
    for each in sorted(judged, key=lambda each: each.finished.job.cell.seed):
        job = each.finished.job
        if job.cell.learning_rate == rates[job.ground, job.method]:
            found.setdefault((job.ground, job.method), {})[job.cell.seed] = each
    return found


def difference(ours: dict[int, Judged], theirs: dict[int, Judged]) -> Difference:
    """The first minus the second on the test split, paired by seed."""
    shared = sorted(ours.keys() & theirs.keys())
    return Difference(
        tuple(
            (ours[seed].test_bits_per_byte or 0.0) - (theirs[seed].test_bits_per_byte or 0.0)
            for seed in shared
        )
    )
