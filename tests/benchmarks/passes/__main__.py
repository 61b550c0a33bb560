"""Memory and time of a pass: `python -m tests.benchmarks.passes --json FILE`.

For each size of model, in a fresh process on the CPU, with the classes of a node: what a pass in
float32 takes at most beside weights and gradients, by torch's profile, with activations kept and
computed again, and what is predicted of it by arithmetic. With `--time` passes of half the length
of the smallest model are timed too, in their ways in turns by one thread, and the loss alone is
measured at a vocabulary of 50,257.
"""

import argparse
import json
import multiprocessing
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.passes.models import LENGTH, MODELS, row, timed


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.passes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--time", action="store_true", help="time passes too")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "models": {}}
    context = multiprocessing.get_context("spawn")
    for name, (model, samples) in MODELS.items():
        with context.Pool(1) as pool:
            found["models"][name] = pool.apply(row, (model, samples, LENGTH))
        print(name, found["models"][name], flush=True)
    if arguments.time:
        with context.Pool(1) as pool:
            found["time"] = pool.apply(timed, (*MODELS["llama of 51 M"], LENGTH // 2))
    text = json.dumps(found, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
