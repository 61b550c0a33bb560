"""Time of a `DeMo` step beside one of AdamW, and of a node's step of Muon beside torch's:
`python -m tests.benchmarks.optimizer [--json PATH]`.

One process, one thread. The steps of both optimizers alternate, so that both meet the same machine.

    tiny       5000 parameters of 3 entries: the cost of a parameter, whatever its size
    adapters   16 trained pairs of low rank beside 16 frozen matrices of 1024 x 1024
    layers     a transformer's matrices and norms, 3.1 million parameters

Printed as JSON: seconds of a step, median and least, and the ratio of the medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from node.exact.dct import bfloat16_is_faster
from node.exact.local_steps.muon import muon_step
from node.exact.local_steps.optimizer import muon_of
from node.exact.optimizer import DeMo


def tiny() -> Iterator[Parameter]:
    for _ in range(5000):
        yield Parameter(torch.randn(3))


def adapters() -> Iterator[Parameter]:
    for _ in range(16):
        yield Parameter(torch.randn(1024, 1024), requires_grad=False)
    for _ in range(16):
        yield Parameter(torch.randn(8, 1024))
        yield Parameter(torch.randn(1024, 8))


def layers() -> Iterator[Parameter]:
    for _ in range(4):
        for shape in ((768, 256), (256, 256), (1024, 256), (256, 1024), (256,), (256,)):
            yield Parameter(torch.randn(shape))


MODELS = {"tiny": tiny, "adapters": adapters, "layers": layers}


SQUARES = (64, 256, 512)
"""Sides of matrices that Muon moves."""

Steps = dict[str, Callable[[], object]]


def of_demo(parameters: list[Parameter]) -> Steps:
    """A step of `DeMo`, and one of AdamW."""
    give_gradients(parameters)
    demo, adamw = DeMo(parameters, local_steps=0), torch.optim.AdamW(parameters)
    return {"DeMo": demo.step, "AdamW": adamw.step}


def of_muon(side: int) -> Steps:
    """A step of Muon as a node makes it, and one of torch's."""
    matrix = Parameter(torch.randn(side, side))
    give_gradients([matrix])
    node, torchs = muon_of([matrix]), muon_of([matrix])
    return {"node": lambda: muon_step(node), "torch": torchs.step}


def give_gradients(parameters: list[Parameter]) -> None:
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)


def row(steps: Steps, repeats: int) -> dict[str, Any]:
    """Seconds of the steps, which alternate, after two untimed ones, and the ratio of the first to
    the second.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    timed = {name: found[2:] for name, found in times.items()}
    medians = {name: statistics.median(found) for name, found in timed.items()}
    first, second = medians
    return {
        "median_s": {name: round(median, 5) for name, median in medians.items()},
        "least_s": {name: round(min(found), 5) for name, found in timed.items()},
        f"ratio_to_{second.lower()}": round(medians[first] / medians[second], 3),
    }


def main() -> None:
    """Times all pairs."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.optimizer")
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    repeats = arguments.repeats
    found = {
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "bfloat16_is_faster": bfloat16_is_faster(),
        "steps": [
            {"model": name, **row(of_demo(list(make())), repeats)} for name, make in MODELS.items()
        ],
        "muon": [{"side": side, **row(of_muon(side), repeats)} for side in SQUARES],
    }
    text = json.dumps(found, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
