"""Trains the cells of the study, and the rows that keep them."""

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from node.data.corpus import Corpus
from node.exact.engine import GradientError
from tests.benchmarks.headline.look import read_cells
from tests.benchmarks.headline.texts import token_bytes
from tests.benchmarks.headline.train import TextFixture
from tests.benchmarks.local_steps.authors import Authors
from tests.benchmarks.local_steps.study import Trial
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.records import read_records

Row = dict[str, Any]

ROWS = Path("docs/results/data/local-steps-study.jsonl")


class TrialFixture(TextFixture):
    """The fixture of a trial, which counts bits by the bytes of the text."""

    def __init__(self, trial: Trial, corpus: Corpus) -> None:
        Fixture.__init__(self, trial.task, trial.cell, corpus)
        self._token_bytes = token_bytes(corpus.tokenizer)


def trained(trial: Trial, corpus: Corpus) -> Row:
    """The row of a trial; one that blows up has an end of null. `SettingsError` for a record."""
    started_s = time.monotonic()
    trial.cell.require_trainable()
    fixture = TrialFixture(trial, corpus)
    points: list[tuple[int, float]] = []
    sent, end = 0.0, math.inf
    try:
        sent = _local(trial, fixture, points)
        end = points[-1][1]
    except GradientError:
        pass
    return {
        **asdict(trial),
        "bits_per_byte": end if math.isfinite(end) else None,
        "points": points,
        "up_bytes": round(sent),
        "parameters": fixture.layout.parameters,
        "corpus": corpus.manifest.digest.hex(),
        "seconds": round(time.monotonic() - started_s, 1),
    }


def _local(trial: Trial, fixture: TrialFixture, points: list[tuple[int, float]]) -> float:
    authors, sent = Authors(trial, fixture), 0.0
    for first in range(0, trial.steps, trial.local_steps):
        done = min(first + trial.local_steps, trial.steps)
        sent += authors.round(first, done - first)
        point = fixture.task.point_steps
        if done // point > first // point or done == trial.steps:
            authors.stand_at_committed()
            points.append((done, round(fixture.validation_bits_per_byte(), 5)))
    return sent


def found_in(rows: Iterable[Row]) -> dict[Trial, float]:
    """Bits per byte at the end by trial."""
    return {
        trial_of(row): math.inf if row["bits_per_byte"] is None else row["bits_per_byte"]
        for row in rows
    }


def trial_of(row: Row) -> Trial:
    """The trial of a row."""
    values = {each.name: row[each.name] for each in fields(Trial)}
    return Trial(**values | {"speeds": tuple(values["speeds"])})


def all_rows(path: Path = ROWS) -> list[Row]:
    """The study's own rows, and those that the headline's cells make: the same trainings."""
    return [*_headline_rows(), *read_records(path)]


def _headline_rows() -> list[Row]:
    rows = []
    for each in read_cells():
        job, result = each.finished.job, each.finished.result
        if job.text != "library" or job.method not in ("local_steps", "default"):
            continue
        trial = Trial(
            "local_steps" if job.method == "local_steps" else "default",
            job.cell.learning_rate,
            job.cell.steps,
            job.cell.seed,
            local_steps=job.cell.local_steps,
            top_k=job.cell.top_k,
        )
        if trial.cell == job.cell:
            end = each.finished.choosing
            points = [(point.step, point.bits_per_byte) for point in result.points[1:]]
            rows.append(
                {
                    **asdict(trial),
                    "bits_per_byte": end if math.isfinite(end) else None,
                    "points": points,
                    "up_bytes": result.last.up_bytes,
                    "parameters": result.parameters,
                    "corpus": result.corpus,
                    "seconds": result.seconds,
                }
            )
    return rows
