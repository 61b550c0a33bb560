"""How gossip Adam learns: `python -m tests.benchmarks.gossip_adam DATA [--jobs N] [--page]`.

Trains the cells that are not in docs/results/data/gossip-adam.json yet and adds them there; with
`--page` it trains nothing and writes tables and figure of docs/results/gossip-adam.md. `--rates`
trains the cells from which the learning rates were chosen. DATA: folder for the built-in corpus.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from tests.benchmarks.gossip_adam.cells import RATE_CELLS, STUDY
from tests.benchmarks.gossip_adam.report import add, document, write_page
from tests.benchmarks.gossip_adam.train import Cell, train_on
from tests.benchmarks.parity.task import open_corpus


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains or writes."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gossip_adam", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("data", type=Path, nargs="?", help="folder for the built-in corpus")
    parser.add_argument("--jobs", type=int, default=1, help="cells trained at once")
    parser.add_argument("--rates", action="store_true", help="the cells that chose the rates")
    parser.add_argument("--page", action="store_true", help="write tables and figure")
    given = parser.parse_args(arguments)
    if given.page:
        write_page()
        return
    if given.data is None:
        parser.error("expected a folder for the corpus, got none")
    run(RATE_CELLS if given.rates else [*RATE_CELLS, *STUDY], given.data, given.jobs)


def run(cells: Sequence[Cell], data: Path, jobs: int) -> None:
    """Train the cells that are not there yet, each in one thread."""
    open_corpus(data)
    there = {(entry["name"], entry["cell"]["seed"]) for entry in document()["cells"]}
    missing = [cell for cell in cells if (cell.name, cell.seed) not in there]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for future in as_completed([pool.submit(train_on, cell, data) for cell in missing]):
            result = future.result()
            add(result)
            print(
                f"{result.cell.name} seed {result.cell.seed}: {result.bits_per_byte:.4f} bits per "
                f"byte, {result.only_mixed} rounds only mixed, {result.cpu_s:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
