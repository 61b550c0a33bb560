"""Time of a `DeMo` step beside one of AdamW: `python -m tests.benchmarks.optimizer [--json PATH]`.

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
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import Parameter

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


def seconds(parameters: list[Parameter], repeats: int) -> dict[str, list[float]]:
    """Seconds of each step of each optimizer, after two untimed ones."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizers = {"DeMo": DeMo(parameters, local_steps=0), "AdamW": torch.optim.AdamW(parameters)}
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(repeats + 2):
        for name, optimizer in optimizers.items():
            start = time.perf_counter()
            optimizer.step()
            times[name].append(time.perf_counter() - start)
    return {name: found[2:] for name, found in times.items()}


def main() -> None:
    """Times both optimizers on every model."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.optimizer")
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for model, make in MODELS.items():
        times = seconds(list(make()), arguments.repeats)
        medians = {name: statistics.median(found) for name, found in times.items()}
        rows.append(
            {
                "model": model,
                "median_s": {name: round(median, 5) for name, median in medians.items()},
                "least_s": {name: round(min(found), 5) for name, found in times.items()},
                "ratio_to_adamw": round(medians["DeMo"] / medians["AdamW"], 3),
            }
        )
    text = json.dumps({"torch": torch.__version__, "steps": rows}, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
