"""Speed and memory of the DeMo engine: `python -m tests.benchmarks.engine --json PATH [--large]`.

For each size, number of payloads R and thread count it times, alternating in one run, the engine's
parts (extract: gradients into momentum and top-k out of it; encode; decode of R payloads; apply)
and those of the straightforward implementation, and prints medians with their spread.

Two floors stand beside, both measured in the same run: the bytes that a step must move over the
memory's bandwidth, and its multiply-adds over the best rate of a large matrix product. Per
parameter the step reads the gradient (4 bytes), reads and writes the momentum (8) and the parameter
(8). Its two transforms, one there and one back, have two stages each, and a stage is 64
multiply-adds per parameter: 256 multiply-adds, or 512 floating-point operations. A row of a DCT
reads alike from both ends, and every other even one from both ends of its half: the kernels add and
subtract what mirrors first and make 24 of a stage's 64 multiply-adds. The floor with those alone
stands beside.

On a GPU (`--device cuda`) each part ends when the device is done.

The peak of extra memory is that of the whole process around its very first step, less its threads'
and libraries' first use of memory, which a step of a tiny model has made before: one fresh process
per size and R.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from node.system.malloc import keep_freed_memory
from tests.benchmarks.engine.measure import SQUARE_SIDE, measure
from tests.benchmarks.engine.shapes import gpt2_124m, llama_20m
from tests.benchmarks.engine.steps import PARTS


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--large", action="store_true", help="124 million parameters too")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed repeats, after an untimed one"
    )
    parser.add_argument("--payloads", type=int, nargs="+", default=[1, 8, 32], help="values of R")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--top-k", type=int, default=32)
    parser.add_argument("--device", choices=sorted(SQUARE_SIDE), default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("expected a CUDA device, found none: leave --device out to time the CPU")
    keep_freed_memory()  # as nodes do
    sizes = {"llama-20m": llama_20m()} | ({"gpt2-124m": gpt2_124m()} if arguments.large else {})
    results = []
    for name, shapes in sizes.items():
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for payloads in arguments.payloads:
                row = measure(
                    shapes,
                    payloads,
                    arguments.top_k,
                    arguments.repeats,
                    torch.device(arguments.device),
                )
                results.append({"size": name, "threads": threads, "payloads": payloads, **row})
                print(_line(results[-1]), flush=True)
    document = json.dumps(
        {"top_k": arguments.top_k, "device": arguments.device, "results": results}, indent=1
    )
    if arguments.json:
        arguments.json.write_text(document)
    else:
        print(document)


def _line(row: Mapping[str, Any]) -> str:
    parts = " ".join(f"{part} {row['engine_seconds'][part]['median'] * 1e3:.0f}" for part in PARTS)
    ratio, rates = row["ratio"], row["coefficients_per_second"]
    spread = f"{ratio['median']:.2f}x ({ratio['least']:.2f}-{ratio['most']:.2f})"
    extra = (
        "?" if row["peak_extra_over_momentum"] is None else f"{row['peak_extra_over_momentum']:.2f}"
    )
    return (
        f"{row['size']} R={row['payloads']} threads={row['threads']}: {parts} ms, "
        f"{spread} the straightforward one, {row['times_larger_floor']:.2f} times the floor "
        f"({row['times_larger_floor_folded']:.2f} the folded one), "
        f"extra {extra} momenta, "
        f"pack {rates['encode'] / 1e6:.0f} unpack {rates['decode'] / 1e6:.0f} M/s"
    )


if __name__ == "__main__":
    main()
