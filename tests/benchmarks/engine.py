"""Speed and memory of the DeMo engine: `python -m tests.benchmarks.engine --json PATH [--large]`.

For each size, number of payloads R and thread count it times, alternating in one run, the engine's parts (extract:
gradients into momentum and top-k out of it; encode; decode of R payloads; apply) and those of the straightforward
implementation, and prints medians with their spread. What a node that overlaps rounds does beside the step, the guess
(the update that its own payload and momentum would make, and the parameters to take early gradients at), is timed by
itself.

Two floors stand beside, both measured in the same run: the bytes that a step must move over the memory's bandwidth,
and its multiply-adds over the best rate of a large matrix product. Per parameter the step reads the gradient
(4 bytes), reads and writes the momentum (8) and the parameter (8). Its two transforms, one there and one back, have
two stages each, and a stage is 64 multiply-adds per parameter: 256 multiply-adds, or 512 floating-point operations.
A row of a DCT reads alike from both ends, and every other even one from both ends of its half: the kernels add and
subtract what mirrors first and make 24 of a stage's 64 multiply-adds. The floor with those alone stands beside.

On a GPU (`--device cuda`) each part ends when the device is done.

The peak of extra memory is that of the whole process around its very first step, less its threads' and libraries'
first use of memory, which a step of a tiny model has made before: one fresh process per size and R.
"""

import argparse
import gc
import json
import multiprocessing
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from node.allocator import keep_freed_memory
from node.demo.dct import integer_matrix, product
from tests.benchmarks.engine_steps import PARTS, Ours, Theirs, Times, seconds
from tests.benchmarks.footprint import give_back_free_memory, peak_extra_bytes
from tests.benchmarks.shapes import Shapes, gpt2_124m, llama_20m

BYTES_PER_PARAMETER = 4 + 8 + 8
MULTIPLY_ADDS_PER_PARAMETER, MULTIPLY_ADDS_FOLDED = 256, 96
SQUARE_SIDE = {"cpu": 2048, "cuda": 8192}
"""Of the matrices whose product's rate is measured, by type of device."""


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go; standard output without it")
    parser.add_argument("--large", action="store_true", help="124 million parameters too")
    parser.add_argument("--repeats", type=int, default=5, help="timed repeats, after one that is not")
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
                row = measure(shapes, payloads, arguments.top_k, arguments.repeats, torch.device(arguments.device))
                results.append({"size": name, "threads": threads, "payloads": payloads, **row})
                print(_line(results[-1]), flush=True)
    document = json.dumps({"top_k": arguments.top_k, "device": arguments.device, "results": results}, indent=1)
    if arguments.json:
        arguments.json.write_text(document)
    else:
        print(document)


def measure(shapes: Shapes, payloads: int, top_k: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Both implementations on the same gradients, alternating; seconds of each part and what follows from them."""
    generator = torch.Generator(device).manual_seed(0)
    parameters, gradients = (
        {name: torch.randn(shape, generator=generator, device=device) for name, shape in shapes.items()}
        for _ in range(2)
    )
    ours, theirs = Ours(parameters, payloads, top_k), Theirs(parameters, payloads, top_k)
    ours.step(gradients)
    theirs.step(gradients)
    timed: dict[str, list[Times]] = {"engine": [], "straightforward": []}
    for _ in range(repeats):
        timed["engine"].append(ours.step(gradients))
        timed["straightforward"].append(theirs.step(gradients))
    guessed = [ours.guess("sign") for _ in range(repeats)]
    orthogonal_guessed = [ours.guess("orthogonal") for _ in range(repeats)]
    orthogonal = [ours.apply("orthogonal") for _ in range(repeats)]
    count = sum(tensor.numel() for tensor in parameters.values())
    rate = multiply_adds_per_second(device)
    floors = {
        "memory": count * BYTES_PER_PARAMETER / memory_bandwidth(device),
        "arithmetic": count * MULTIPLY_ADDS_PER_PARAMETER / rate,
        "folded arithmetic": count * MULTIPLY_ADDS_FOLDED / rate,
    }
    ratios = [sum(theirs.values()) / sum(ours.values()) for ours, theirs in zip(*timed.values(), strict=True)]
    step = statistics.median(sum(times.values()) for times in timed["engine"])
    coefficients = ours.coefficients * payloads
    return {
        "parameters": count,
        "engine_seconds": _medians(timed["engine"]),
        "straightforward_seconds": _medians(timed["straightforward"]),
        "ratio": _spread(ratios),
        "floor_seconds": floors,
        "times_larger_floor": step / max(floors.values()),
        "times_larger_floor_folded": step / max(floors["memory"], floors["folded arithmetic"]),
        "guess_seconds": _spread(guessed),
        "guess_bytes": ours.guess_bytes,
        "orthogonal_guess_seconds": _spread(orthogonal_guessed),
        "orthogonal_apply_seconds": _spread(orthogonal),
        "payload_bytes": {"engine": ours.payload_bytes, "straightforward": 12 * ours.coefficients},
        "coefficients_per_second": {
            "encode": ours.coefficients / statistics.median(times["encode"] for times in timed["engine"]),
            "decode": coefficients / statistics.median(times["decode"] for times in timed["engine"]),
        },
        **_peak_extra(shapes, payloads, top_k, device),
    }


def memory_bandwidth(device: torch.device) -> float:
    """Bytes per second read and written by a copy far larger than the caches; best of five."""
    source = torch.ones(64 * 1024**2, device=device)
    target = torch.empty_like(source)
    best = min(seconds(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * source.nbytes / best


def multiply_adds_per_second(device: torch.device) -> float:
    """Rate of one large float32 matrix product, or of the engine's own if that is faster; best of five each."""
    size = SQUARE_SIDE[device.type]
    square, rows = (torch.ones(size, columns, device=device) for columns in (size, 64))
    matrix = integer_matrix(device)
    large = min(seconds(lambda: torch.mm(square, square), device) for _ in range(5))
    slim = min(seconds(lambda: product(rows, matrix), device) for _ in range(50))
    return max(size**3 / large, size * 64**2 / slim)


def _peak_extra(shapes: Shapes, payloads: int, top_k: int, device: torch.device) -> dict[str, float | None]:
    """`peak_extra_bytes` of the first step of a fresh process, and in units of the momentum."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        extra, momentum = pool.apply(_first_step, (shapes, payloads, top_k, torch.get_num_threads(), device))
    return {"peak_extra_bytes": extra, "peak_extra_over_momentum": None if extra is None else extra / momentum}


def _first_step(
    shapes: Shapes, payloads: int, top_k: int, threads: int, device: torch.device
) -> tuple[int | None, int]:
    """Peak extra bytes of this process's first step of the model, and bytes of the momentum."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    tiny = {"w": torch.randn(64, 64, device=device)}
    Ours(tiny, payloads, top_k).step(tiny)
    parameters = {name: torch.randn(shape, device=device) for name, shape in shapes.items()}
    ours = Ours(parameters, payloads, top_k)
    ours.touch_momentum()
    gc.collect()
    give_back_free_memory()
    return peak_extra_bytes(lambda: ours.step(parameters), device), ours.momentum_bytes


def _medians(laps: list[Times]) -> dict[str, Any]:
    parts = {part: _spread([times[part] for times in laps]) for part in PARTS}
    return parts | {"total": _spread([sum(times.values()) for times in laps])}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _line(row: Mapping[str, Any]) -> str:
    parts = " ".join(f"{part} {row['engine_seconds'][part]['median'] * 1e3:.0f}" for part in PARTS)
    ratio, rates = row["ratio"], row["coefficients_per_second"]
    extra = "?" if row["peak_extra_over_momentum"] is None else f"{row['peak_extra_over_momentum']:.2f}"
    return (
        f"{row['size']} R={row['payloads']} threads={row['threads']}: {parts} ms, "
        f"{ratio['median']:.2f}x ({ratio['least']:.2f}-{ratio['most']:.2f}) the straightforward one, "
        f"{row['times_larger_floor']:.2f} times the floor ({row['times_larger_floor_folded']:.2f} the folded one), "
        f"extra {extra} momenta, guess {row['guess_seconds']['median'] * 1e3:.0f} ms, "
        f"apply orthogonalised {row['orthogonal_apply_seconds']['median'] * 1e3:.0f} ms, "
        f"pack {rates['encode'] / 1e6:.0f} unpack {rates['decode'] / 1e6:.0f} M/s"
    )


if __name__ == "__main__":
    main()
