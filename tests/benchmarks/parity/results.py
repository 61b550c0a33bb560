"""Results of cells, and the files that keep them.

A result holds the cell, the task and the text it was trained on, so it cannot be mistaken for
another or be mixed with those of another task. A newly trained cell is one small file in a working
directory. The report merges these files into the file of its sweep, which has one result per line
and is what the repository keeps.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from node.system.files import replacing_file, storage_errors
from protocol.errors import DataError
from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.records import read_records, write_records


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve."""

    step: int
    tokens: int
    bits_per_byte: float

    up_bytes: int
    """Serialised and sent by one author so far, each payload once; the mean over authors."""

    down_bytes: int
    """Received by one author so far."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finished cell."""

    cell: Cell
    task: Task
    corpus: str
    """SHA-256 of the corpus manifest, hexadecimal."""

    parameters: int
    """Trainable parameters."""

    seconds: float
    machine: str
    points: tuple[Point, ...]

    failure: str = ""
    """Why the cell ended before its last step; empty if it did not."""

    @property
    def last(self) -> Point:
        return self.points[-1]

    @property
    def payload_bytes(self) -> float:
        """Bytes that one author serialises per step, on the mean over steps."""
        return self.last.up_bytes / max(self.last.step, 1)


def result_path(directory: Path, cell: Cell) -> Path:
    """Path of one cell's result in a working directory."""
    return directory / f"{cell.name}.json"


def save(directory: Path, result: Result) -> None:
    """Write a result, whole or not at all; `StorageError` when the disk refuses."""
    blob = json.dumps(asdict(result), indent=1).encode() + b"\n"
    with replacing_file(result_path(directory, result.cell), len(blob)) as temporary:
        temporary.write_bytes(blob)


def load(path: Path) -> Result:
    """The result of one cell; `DataError` naming the file for anything else."""
    try:
        with storage_errors(path):
            document = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: expected a result of this study, got {error!r}") from error
    result = result_of(document, f"{path}")
    if path.name != result_path(path.parent, result.cell).name:
        raise DataError(f"{path}: expected a cell of this name, got {result.cell.name}")
    return result


def read_results(path: Path) -> list[Result]:
    """All results of a merged file, of one task or several; `DataError` names an invalid line."""
    records = enumerate(read_records(path), 1)
    return [result_of(document, f"{path}, line {number}") for number, document in records]


def load_all(path: Path, directory: Path, task: Task) -> list[Result]:
    """All results of a task by name: those of the merged file, and those of the working directory,
    which replace merged ones of equal name.

    `DataError` if the directory holds another task's, or if they were trained on different texts.
    """
    trained = [load(each) for each in sorted(directory.glob("*.json"))]
    for result in trained:
        if result.task != task:
            raise DataError(
                f"{directory}: expected results of {task}, got {result.cell.name} of {result.task}"
            )
    merged = [result for result in read_results(path) if result.task == task]
    found = {result.cell.name: result for result in [*merged, *trained]}
    results = [found[name] for name in sorted(found)]
    for result in results[1:]:
        if result.corpus != (first := results[0]).corpus:
            raise DataError(
                f"{path}, {directory}: expected results of one corpus, "
                f"got {result.cell.name} of {result.corpus[:8]} "
                f"beside {first.cell.name} of {first.corpus[:8]}"
            )
    return results


def merge(path: Path, results: Sequence[Result]) -> None:
    """Put results into a merged file, each in place of an earlier one of its task and cell."""
    found = {(result.task, result.cell): result for result in [*read_results(path), *results]}
    write_records(path, map(asdict, in_order(found.values())))


def in_order(results: Iterable[Result]) -> list[Result]:
    """The order of a merged file: by task, then by name."""
    return sorted(results, key=lambda result: (astuple(result.task), result.cell.name))


def result_of(document: Any, where: str) -> Result:
    try:
        value: dict[str, Any] = dict(document)
        cell = dict(value.pop("cell"))
        cell["adam_decays"] = tuple(cell["adam_decays"])
        points = tuple(Point(**point) for point in value.pop("points"))
        result = Result(cell=Cell(**cell), task=Task(**value.pop("task")), points=points, **value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{where}: expected a result of this study, got {error!r}; remove it to train again"
        ) from error
    if not points:
        raise DataError(f"{where}: expected points of {result.cell.name}, got none")
    return result
