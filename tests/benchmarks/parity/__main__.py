"""Learning against AdamW, and what each byte buys: `python -m tests.benchmarks.parity`.

Every cell trains the same byte-level transformer on the same text in one process, with the
functions that a node uses, and leaves one file under `out/`. A finished cell is never trained
again, so a stopped sweep continues. Cells that the engine no longer trains are records, and none of
them waits:

    python -m tests.benchmarks.parity --list
    python -m tests.benchmarks.parity --jobs 2 --threads 1
    python -m tests.benchmarks.parity --only 'adamw-*seed=1*'
    python -m tests.benchmarks.parity --report
    python -m tests.benchmarks.parity --set tries --report
    python -m tests.benchmarks.parity --results out/again.jsonl --cells out/again    # all anew

The report merges finished cells into the sweep's file under docs/results/data/ and writes a table,
a CSV with every point and one SVG per length of training under `out/`. `python -m
tests.benchmarks.pages` renders the pages from the merged files.
"""

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.benchmarks.parity.report import write_report
from tests.benchmarks.parity.results import load_all, merge
from tests.benchmarks.parity.sweeps import SWEEPS
from tests.benchmarks.parity.train import run_cells


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists, trains or reports, as asked."""
    asked = _parser().parse_args(arguments)
    sweep = SWEEPS[asked.set]
    path, directory = asked.results or Path(sweep.results), asked.cells / asked.set
    found = load_all(
        path, directory, sweep.task
    )  # results of another study are refused before hours are spent
    done = {result.cell.name for result in found}
    cells = [
        cell
        for cell in sweep.cells()
        if fnmatchcase(cell.name, asked.only) and (cell.name in done or not cell.is_record)
    ]
    if asked.list:
        for cell in cells:
            print("done " if cell.name in done else "waits", cell.name)
    elif asked.report:
        merge(path, found)
        print(write_report(asked.reports / asked.set, found))
    else:
        waiting = [cell for cell in cells if cell.name not in done]
        run_cells(
            waiting, directory, asked.data, sweep.task, jobs=asked.jobs, threads=asked.threads
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.parity", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--set", choices=sorted(SWEEPS), default="study", help="which sweep (default: study)"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="cells whose name matches, as in a shell"
    )
    parser.add_argument(
        "--list", action="store_true", help="name the cells and whether each is done; train nothing"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="merge results, write table, CSV and SVG; train nothing",
    )
    parser.add_argument("--jobs", type=int, default=1, help="cells to train at a time (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each (default: 1)")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="file of merged results (default: the sweep's)"
    )
    out = Path("out/parity")
    parser.add_argument(
        "--cells", type=Path, default=out / "cells", help="directory of newly trained cells"
    )
    parser.add_argument(
        "--reports", type=Path, default=out / "reports", help="directory of reports"
    )
    parser.add_argument(
        "--data", type=Path, default=out / "data", help="directory of the prepared text"
    )
    return parser


if __name__ == "__main__":
    main()
