"""One cell trained from genesis to its last step, and its result on disk.

A result is one small JSON file named after its cell. It holds the cell, the task and the text it was trained on, so
that a result can neither be mistaken for another nor be mixed with those of another task.
"""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from node.data.corpus import Corpus
from node.demo.engine import GradientError
from node.system.files import replacing_file, storage_errors
from protocol.errors import DataError
from tests.benchmarks.parity_baselines import AdamW, Signum
from tests.benchmarks.parity_cells import Cell, Task
from tests.benchmarks.parity_demo import DemoAuthors, Traffic
from tests.benchmarks.parity_ground import Ground


class Trainer(Protocol):
    """A method at work."""

    def step(self) -> Traffic:
        """Make the next step of the parameters; `GradientError` when the numbers have blown up."""

    def stand_at_committed(self) -> None:
        """Put the network at the parameters that count."""


TRAINERS: dict[str, Callable[[Ground], Trainer]] = {"adamw": AdamW, "signum": Signum, "demo": DemoAuthors}


@dataclass(frozen=True, slots=True)
class Point:
    """Where a curve stands after so many steps."""

    step: int
    tokens: int
    bits_per_byte: float

    up_bytes: int
    """Serialised and sent by one author so far, on the mean over authors."""

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


def train(task: Task, cell: Cell, corpus: Corpus) -> Result:
    """Train a cell; numbers that blow up end it and are its result."""
    started_s = time.monotonic()
    ground = Ground(task, cell, corpus)
    trainer = TRAINERS[cell.method](ground)
    up = down = 0.0
    points = [Point(0, 0, ground.validation_bits_per_byte(), 0, 0)]
    failure = ""
    for step in range(1, cell.steps + 1):
        try:
            traffic = trainer.step()
        except GradientError as error:
            failure = f"step {step}: {error}"
            break
        up, down = up + traffic.up_bytes, down + traffic.down_bytes
        if step % task.point_steps == 0 or step == cell.steps:
            trainer.stand_at_committed()
            measured = ground.validation_bits_per_byte()
            points.append(Point(step, task.tokens(step), round(measured, 5), round(up), round(down)))
    return Result(
        cell=cell,
        task=task,
        corpus=corpus.manifest.digest.hex(),
        parameters=ground.layout.parameters,
        seconds=round(time.monotonic() - started_s, 1),
        machine=f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}",
        points=tuple(points),
        failure=failure,
    )


def result_path(directory: Path, cell: Cell) -> Path:
    """Where a cell's result is."""
    return directory / f"{cell.name}.json"


def save(directory: Path, result: Result) -> None:
    """Write a result, whole or not at all; `StorageError` when the disk refuses."""
    blob = json.dumps(asdict(result), indent=1).encode() + b"\n"
    with replacing_file(result_path(directory, result.cell), len(blob)) as temporary:
        temporary.write_bytes(blob)


def load(path: Path) -> Result:
    """A result; `DataError` naming the file for anything else."""
    try:
        with storage_errors(path):
            value: dict[str, Any] = json.loads(path.read_bytes())
        cell = value.pop("cell")
        cell["adam_decays"] = tuple(cell["adam_decays"])
        points = tuple(Point(**point) for point in value.pop("points"))
        result = Result(cell=Cell(**cell), task=Task(**value.pop("task")), points=points, **value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: expected a result of this study, got {error!r}; remove it to train again") from error
    if not points or path.name != result_path(path.parent, result.cell).name:
        raise DataError(f"{path}: expected points of a cell of this name, got {len(points)} of {result.cell.name}")
    return result


def load_all(directory: Path) -> list[Result]:
    """All results, by name; `DataError` if they were not trained alike."""
    results = [load(path) for path in sorted(directory.glob("*.json"))]
    for result in results[1:]:
        if (result.task, result.corpus) != (results[0].task, results[0].corpus):
            raise DataError(
                f"{directory}: expected results of one task and corpus, got {result.cell.name} of {result.task}, "
                f"{result.corpus[:8]} beside {results[0].cell.name} of {results[0].task}, {results[0].corpus[:8]}"
            )
    return results
