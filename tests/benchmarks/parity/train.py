"""Trains cells from genesis to the last step, each in a process of its own."""

import multiprocessing
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Protocol

import torch

from node.data.corpus import Corpus
from node.exact.engine import GradientError
from tests.benchmarks.parity.baselines import AdamW, Signum
from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.parity.demo import DemoAuthors, Traffic
from tests.benchmarks.parity.local_steps import DenseMuon, LocalStepsAuthors
from tests.benchmarks.parity.results import Point, Result, save
from tests.benchmarks.parity.task import Fixture, open_corpus


class Trainer(Protocol):
    """A method at work."""

    def step(self) -> Traffic:
        """Make the next step of the parameters; `GradientError` when the numbers have blown up."""

    def stand_at_committed(self) -> None:
        """Put the network at the parameters that count."""


TRAINERS: dict[str, Callable[[Fixture], Trainer]] = {
    "adamw": AdamW,
    "muon": DenseMuon,
    "signum": Signum,
    "demo": DemoAuthors,
    "local_steps": LocalStepsAuthors,
}


def train(task: Task, cell: Cell, corpus: Corpus) -> Result:
    """Train a cell; numbers that blow up end it and are its result."""
    return train_in(Fixture(task, cell, corpus))


def train_in(
    fixture: Fixture,
    watch: Callable[[Trainer], None] = lambda trainer: None,
    make: Callable[[Fixture], Trainer] | None = None,
) -> Result:
    """Train the cell of a fixture, whose network ends at the committed parameters. `watch` is
    called after every step; `make` is another trainer than that of the cell's method.
    """
    started_s = time.monotonic()
    task, cell = fixture.task, fixture.cell
    trainer = (make or TRAINERS[cell.method])(fixture)
    up = down = 0.0
    points = [Point(0, 0, fixture.validation_bits_per_byte(), 0, 0)]
    failure = ""
    for step in range(1, cell.steps + 1):
        try:
            traffic = trainer.step()
        except GradientError as error:
            failure = f"step {step}: {error}"
            break
        watch(trainer)
        up, down = up + traffic.up_bytes, down + traffic.down_bytes
        if step % task.point_steps == 0 or step == cell.steps:
            trainer.stand_at_committed()
            measured = fixture.validation_bits_per_byte()
            points.append(
                Point(step, task.tokens(step), round(measured, 5), round(up), round(down))
            )
    threads = torch.get_num_threads()
    return Result(
        cell=cell,
        task=task,
        corpus=fixture.corpus.manifest.digest.hex(),
        parameters=fixture.layout.parameters,
        seconds=round(time.monotonic() - started_s, 1),
        machine=f"{platform.machine()} CPU, {threads} threads, torch {torch.__version__}",
        points=tuple(points),
        failure=failure,
    )


def run_cells(
    cells: Sequence[Cell],
    directory: Path,
    data: Path,
    task: Task,
    *,
    jobs: int = 1,
    threads: int = 1,
) -> None:
    """Train cells, `jobs` at a time in processes of their own, and leave a file of each in the
    directory.
    """
    open_corpus(data)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        futures = [pool.submit(run_cell, cell, directory, data, task) for cell in cells]
        for done, future in enumerate(as_completed(futures), 1):
            print(f"{done}/{len(cells)} {future.result()}", flush=True)


def run_cell(cell: Cell, directory: Path, data: Path, task: Task) -> str:
    """Train one cell, leave its result and say in a line what came out."""
    result = train(task, cell, open_corpus(data))
    save(directory, result)
    end = result.failure or f"{result.last.bits_per_byte:.4f} bits per byte"
    return f"{cell.name}: {end}, {result.last.up_bytes:,} bytes up, {result.seconds:.0f} s"
