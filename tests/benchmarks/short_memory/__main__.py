"""The study of a short memory: `python -m tests.benchmarks.short_memory`.

    python -m tests.benchmarks.short_memory           # train what waits, cell by cell
    python -m tests.benchmarks.short_memory --list    # what is there, and what waits
    python -m tests.benchmarks.short_memory --keep    # put it into the repository
    python -m tests.benchmarks.pages                  # the page from what was kept

Training may be stopped at any time and goes on with the cell that it was at; cells that the
repository keeps of the same text are not trained again. `--keep` looks at the test split for cells
whose block is whole.
"""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.benchmarks.short_memory.keep import keep, left, read_cells
from tests.benchmarks.short_memory.train import Bench


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists, trains or keeps, as asked."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.short_memory", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--directory", type=Path, default=Path("out/short-memory"), help="of cells")
    parser.add_argument("--list", action="store_true", help="say what is there and what waits")
    parser.add_argument("--keep", action="store_true", help="put into the repository what is there")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    bench = Bench(asked.directory)
    if asked.keep:
        keep(bench, datetime.now(UTC).isoformat(timespec="seconds"))
    elif asked.list:
        for each in bench.trained():
            print(f"done  {each.job.name}: {each.choosing:.4f}")
        for job in left(bench, read_cells().values()):
            print(f"waits {job.name}")
    else:
        while waits := left(bench, read_cells().values()):
            done = bench.train(waits[0])
            print(f"{done.job.name}: {done.choosing:.4f}, {done.result.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
