"""What the repository keeps of the study: `docs/results/data/short-memory.jsonl`.

Every trained cell has a line: its result on the validation split, that of the mean of its commits
and, once its block was whole, the look at the test split. Cells of today's rule on the first text
are the headline's, and kept there. Cells of another text than this machine's stay as they are, and
are compared with each other alone: pages of a manual differ.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.benchmarks.headline.look import read_cells as read_headline
from tests.benchmarks.headline.study import Finished, Job
from tests.benchmarks.parity.results import result_of
from tests.benchmarks.records import read_records, write_records
from tests.benchmarks.short_memory.study import BLOCKS, jobs, waiting
from tests.benchmarks.short_memory.train import Bench, Look

DATA = Path("docs/results/data/short-memory.jsonl")

_OF_HEADLINE = "for the headline"


class Key(NamedTuple):
    """What no two cells share."""

    job: Job
    corpus: str
    """Digest of the text on which the cell was trained."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A trained cell."""

    finished: Finished

    mean: float | None = None
    """Validation bits per byte of the mean of its commits; None for a cell of the headline."""

    look: Look | None = None

    @property
    def key(self) -> Key:
        """By which the cell is found."""
        return Key(self.finished.job, self.finished.result.corpus)

    def record(self) -> dict[str, Any]:
        """The line of the cell."""
        about = {"text": self.finished.job.text, "mean_bits_per_byte": self.mean}
        about["test"] = asdict(self.look) if self.look else None
        return about | asdict(self.finished.result)

    @classmethod
    def of(cls, record: dict[str, Any], where: str) -> Self:
        """The cell of a line; `DataError` for a line of something else."""
        text, mean, test = (record.pop(name) for name in ("text", "mean_bits_per_byte", "test"))
        result = result_of(record, where)
        finished = Finished(Job(text, "local_steps", result.cell), result)
        return cls(finished, mean, Look(**test) if test else None)


def read_cells(data: Path = DATA) -> dict[Key, Kept]:
    """The kept cells, those of the headline first."""
    listed = {job for job in jobs() if job.text == "library"}  # pages of a manual differ
    found = [
        Kept(each.finished, look=Look(each.test_bits_per_byte, None, _OF_HEADLINE))
        for each in read_headline()
        if each.finished.job in listed and each.test_bits_per_byte is not None
    ]
    for number, record in enumerate(read_records(data), 1):
        found.append(Kept.of(record, f"{data}, line {number}"))
    return {each.key: each for each in found}


def left(bench: Bench, kept: Iterable[Kept]) -> list[Job]:
    """What waits on this machine."""
    here = [each for each in kept if each.key.corpus == bench.corpus(each.key.job)]
    there = {each.job for each in bench.trained()}
    known = there | {each.key.job for each in here}
    return waiting(known, there | {each.key.job for each in here if each.look})


def keep(bench: Bench, when: str, data: Path = DATA) -> None:
    """Keep every trained cell, and look at the test split for those whose block is whole."""
    kept = read_cells(data)
    trained = {Key(each.job, each.result.corpus): each for each in bench.trained()}
    for key, each in trained.items():
        if key not in kept or not kept[key].look:
            kept[key] = Kept(each, bench.validation_of_mean(each.job))
    for block in BLOCKS:
        keys = [Key(job, bench.corpus(job)) for job in block.jobs]
        if all(key in kept for key in keys):
            for key in keys:
                if not kept[key].look and key in trained:
                    kept[key] = replace(kept[key], look=bench.look(key.job, when))
    ours = [each for each in kept.values() if not each.look or each.look.when != _OF_HEADLINE]
    places = {job: place for place, job in enumerate(jobs())}
    ours.sort(key=lambda each: (each.key.corpus, places[each.key.job]))
    write_records(data, [each.record() for each in ours])
