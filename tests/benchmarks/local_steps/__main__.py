"""The study of local steps: `python -m tests.benchmarks.local_steps`.

    python -m tests.benchmarks.local_steps              # train what waits, cell by cell
    python -m tests.benchmarks.local_steps --list       # what is there, and what waits
    python -m tests.benchmarks.pages                    # the page from what was kept

It may be stopped at any time, and goes on with the cell that it was at.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.benchmarks.headline.texts import open_text
from tests.benchmarks.local_steps.study import BLOCKS, waiting
from tests.benchmarks.local_steps.train import ROWS, all_rows, found_in, trained
from tests.benchmarks.records import add_record


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists or trains, as asked."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.local_steps", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--blocks", nargs="+", choices=BLOCKS, default=[], help="these alone")
    parser.add_argument("--list", action="store_true", help="say what is there and what waits")
    parser.add_argument("--out", type=Path, default=ROWS, help="JSON Lines; rows are added")
    parser.add_argument("--texts", type=Path, default=Path("out/headline/texts"))
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = tuple(asked.blocks)
    found = found_in(all_rows(asked.out))
    if asked.list:
        for trial, bits in found.items():
            print(f"done  {bits:.4f} {trial}")
        print(f"waits {waiting(found, names)}")
        return
    corpus = open_text("library", asked.texts)
    while trial := waiting(found, names):
        row = trained(trial, corpus)
        add_record(asked.out, row)
        found |= found_in([row])
        print(f"{found[trial]:.4f} {row['seconds']:.0f} s {trial}", flush=True)


if __name__ == "__main__":
    main()
