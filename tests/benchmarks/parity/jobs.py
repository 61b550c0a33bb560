"""Trains cells in processes of their own."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.parity.results import save
from tests.benchmarks.parity.task import open_corpus
from tests.benchmarks.parity.train import train


def run_cells(
    cells: Sequence[Cell], directory: Path, data: Path, task: Task, *, jobs: int = 1, threads: int = 1
) -> None:
    """Train cells, `jobs` at a time in processes of their own, and leave a file of each in the directory."""
    open_corpus(data)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        futures = [pool.submit(run_cell, cell, directory, data, task) for cell in cells]
        for done, future in enumerate(as_completed(futures), 1):
            print(f"{done}/{len(cells)} {future.result()}", flush=True)


def run_cell(cell: Cell, directory: Path, data: Path, task: Task) -> str:
    """Train one cell, leave its result and say in a line what came out."""
    result = train(task, cell, open_corpus(data))
    save(directory, result)
    end = result.failure or f"{result.last.bits_per_byte:.4f} bits per byte"
    return f"{cell.name}: {end}, {result.last.up_bytes:,} bytes up, {result.seconds:.0f} s"
