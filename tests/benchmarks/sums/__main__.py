"""Train a cell of the study of sums: `python -m tests.benchmarks.sums library 32 384 2 4 0 6`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.benchmarks.headline.texts import open_text
from tests.benchmarks.sums.train import SumsCell, train


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains one cell and appends its line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sums")
    parser.add_argument("text", choices=("library", "manual"))
    parser.add_argument("authors", type=int)
    parser.add_argument("top_k", type=int)
    parser.add_argument("bits", type=int, choices=(1, 2))
    parser.add_argument("coarse", type=int, choices=(0, 1, 4))
    parser.add_argument("fade", type=float)
    parser.add_argument("gain", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--texts", type=Path, default=Path("out/short-memory/texts"))
    parser.add_argument("--into", type=Path, default=Path("out/sums.jsonl"))
    asked = vars(parser.parse_args(arguments))
    texts, into = asked.pop("texts"), asked.pop("into")
    torch.set_num_threads(1)
    found = train(SumsCell(**asked), open_text(asked["text"], texts))
    with into.open("a") as lines:
        lines.write(json.dumps(found) + "\n")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
