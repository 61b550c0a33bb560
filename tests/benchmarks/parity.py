"""`python -m tests.benchmarks.parity`: does DeMo learn as well as AdamW, and what does each byte buy?

Every cell trains the same byte-level transformer on the same text in one process, with the very functions that a node
uses, and leaves one result file. A finished cell is never trained again, so a stopped sweep goes on where it was:

    python -m tests.benchmarks.parity --list
    python -m tests.benchmarks.parity --jobs 2 --threads 1
    python -m tests.benchmarks.parity --only 'demo-*overlap=1*'
    python -m tests.benchmarks.parity --report
    python -m tests.benchmarks.parity --set tries --report

The report (CSV, PNG, a table) is made of all results in the sweep's directory.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from tests.benchmarks.parity_cells import Cell, Task
from tests.benchmarks.parity_ground import open_corpus
from tests.benchmarks.parity_report import write_report
from tests.benchmarks.parity_sets import SETS
from tests.benchmarks.parity_train import load_all, result_path, save, train


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists, trains or reports, as asked."""
    asked = _parser().parse_args(arguments)
    sweep = SETS[asked.set]
    results = asked.results or Path(sweep.results)
    cells = [cell for cell in sweep.cells() if fnmatchcase(cell.name, asked.only)]
    waiting = [cell for cell in cells if not result_path(results, cell).exists()]
    if asked.list:
        for cell in cells:
            print("waits" if cell in waiting else "done ", cell.name)
    elif not asked.report:
        load_all(results)  # a directory of another study is refused before hours are spent
        run_cells(waiting, results, asked.data, sweep.task, jobs=asked.jobs, threads=asked.threads)
    if asked.report:
        print(write_report(results, load_all(results)))


def run_cells(cells: Sequence[Cell], results: Path, data: Path, task: Task, *, jobs: int = 1, threads: int = 1) -> None:
    """Train cells, `jobs` at a time in processes of their own, and leave their results."""
    open_corpus(data)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        futures = [pool.submit(run_cell, cell, results, data, task) for cell in cells]
        for done, future in enumerate(as_completed(futures), 1):
            print(f"{done}/{len(cells)} {future.result()}", flush=True)


def run_cell(cell: Cell, results: Path, data: Path, task: Task) -> str:
    """Train one cell, leave its result and say in a line what came out."""
    result = train(task, cell, open_corpus(data))
    save(results, result)
    end = result.failure or f"{result.last.bits_per_byte:.4f} bits per byte"
    return f"{cell.name}: {end}, {result.last.up_bytes:,} bytes up, {result.seconds:.0f} s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.parity", description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=sorted(SETS), default="study", help="which sweep (default: study)")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cells whose name matches, as in a shell")
    parser.add_argument("--list", action="store_true", help="name the cells and what is done; train nothing")
    parser.add_argument("--report", action="store_true", help="write table, CSV and PNG; train nothing")
    parser.add_argument("--jobs", type=int, default=1, help="cells to train at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each (default: 1)")
    parser.add_argument("--results", type=Path, help="directory of the results (default: the sweep's)")
    parser.add_argument("--data", type=Path, default=Path("out/parity/data"), help="directory of the prepared text")
    return parser


if __name__ == "__main__":
    main()
