"""The headline on an honest ground: `python -m tests.benchmarks.headline`.

    python -m tests.benchmarks.headline                 # train what waits, cell by cell
    python -m tests.benchmarks.headline --text manual   # that of one text, beside the other
    python -m tests.benchmarks.headline --list          # what is there, and what waits
    python -m tests.benchmarks.headline --look          # judge on the test split, once
    python -m tests.benchmarks.pages                    # the page from what was kept

Training may be stopped at any time and goes on with the cell that it was at; cells that the
repository keeps are not trained again. Rates are chosen on
the validation split. `--look` opens the test split, records that it did in
docs/results/data/headline-looks.jsonl, and writes headline.json beside it.
"""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import get_args

import torch

from tests.benchmarks.headline.look import look, read_cells
from tests.benchmarks.headline.study import waiting
from tests.benchmarks.headline.texts import TextName
from tests.benchmarks.headline.train import finished, judged, train_waiting


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists, trains or looks, as asked."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.headline", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--directory", type=Path, default=Path("out/headline"), help="for cells")
    parser.add_argument("--text", choices=get_args(TextName), help="train this text alone")
    parser.add_argument("--list", action="store_true", help="say what is there and what waits")
    parser.add_argument("--look", action="store_true", help="judge on the test split")
    parser.add_argument("--again", default="", metavar="REASON", help="why to look a second time")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kept = [each.finished for each in read_cells()]
    if asked.list:
        found = finished(asked.directory, kept)
        for each in found:
            print(f"done  {each.job.name}: {each.choosing:.4f}")
        for job in waiting(found, asked.text):
            print(f"waits {job.name}")
    elif asked.look:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        judge = partial(judged, directory=asked.directory)
        look(finished(asked.directory, kept), judge, when, again=asked.again)
    else:
        for each in train_waiting(asked.directory, kept, asked.text):
            seconds = each.result.seconds
            print(f"{each.job.name}: {each.choosing:.4f}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
