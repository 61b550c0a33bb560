"""Speed and memory of the DeMo engine: `python -m tests.benchmarks.engine --json PATH [--large]`.

For each size, number of payloads R and thread count it times, alternating in one run, the engine's parts (extract:
gradients into momentum and top-k out of it; encode; decode of R payloads; apply) and those of the straightforward
implementation, and prints medians with their spread. Two floors stand beside: the bytes that a step must move over
the measured memory bandwidth, and its multiply-adds over the measured rate of a large matrix product. Per
parameter the step reads the gradient (4 bytes), reads and writes the momentum (8) and the parameter (8), and does 512
multiply-adds in its two transforms.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.demo.aggregate import apply
from node.demo.chunks import ChunkLayout
from node.demo.engine import DemoSettings, Engine
from protocol.ids import PeerId, RunId
from protocol.payload import Coefficients, Header, PayloadShape, decode, encode
from tests.benchmarks.shapes import Shapes, gpt2_124m, llama_20m
from tests.benchmarks.straightforward import Straightforward

BYTES_PER_PARAMETER = 4 + 8 + 8
MULTIPLY_ADDS_PER_PARAMETER = 512
LEARNING_RATE = 2.0**-10
DECAY = 0.999
PARTS = ("extract", "encode", "decode", "apply")

Times = dict[str, float]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go; standard output without it")
    parser.add_argument("--large", action="store_true", help="124 million parameters too")
    parser.add_argument("--repeats", type=int, default=5, help="timed repeats, after one that is not")
    parser.add_argument("--payloads", type=int, nargs="+", default=[1, 8, 32], help="values of R")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--top-k", type=int, default=32)
    arguments = parser.parse_args()
    sizes = {"llama-20m": llama_20m()} | ({"gpt2-124m": gpt2_124m()} if arguments.large else {})
    results = []
    for name, shapes in sizes.items():
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for payloads in arguments.payloads:
                row = measure(shapes, payloads, arguments.top_k, arguments.repeats)
                results.append({"size": name, "threads": threads, "payloads": payloads, **row})
                print(_line(results[-1]), flush=True)
    document = json.dumps({"top_k": arguments.top_k, "results": results}, indent=1)
    if arguments.json:
        arguments.json.write_text(document)
    else:
        print(document)


def measure(shapes: Shapes, payloads: int, top_k: int, repeats: int) -> dict[str, Any]:
    """Both implementations on the same gradients, alternating; seconds of each part and what follows from them."""
    generator = torch.Generator().manual_seed(0)
    parameters = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    gradients = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    ours, theirs = _Ours(parameters, payloads, top_k), _Theirs(parameters, payloads, top_k)
    ours.step(gradients)
    theirs.step(gradients)
    timed: dict[str, list[Times]] = {"engine": [], "straightforward": []}
    for _ in range(repeats):
        timed["engine"].append(ours.step(gradients))
        timed["straightforward"].append(theirs.step(gradients))
    extra = peak_extra_bytes(lambda: ours.step(gradients))
    count = sum(tensor.numel() for tensor in parameters.values())
    floors = {
        "memory": count * BYTES_PER_PARAMETER / memory_bandwidth(),
        "arithmetic": count * MULTIPLY_ADDS_PER_PARAMETER / multiply_adds_per_second(),
    }
    ratios = [sum(theirs.values()) / sum(ours.values()) for ours, theirs in zip(*timed.values(), strict=True)]
    seconds = statistics.median(sum(times.values()) for times in timed["engine"])
    coefficients = ours.coefficients * payloads
    return {
        "parameters": count,
        "engine_seconds": _medians(timed["engine"]),
        "straightforward_seconds": _medians(timed["straightforward"]),
        "ratio": _spread(ratios),
        "floor_seconds": floors,
        "times_larger_floor": seconds / max(floors.values()),
        "payload_bytes": {"engine": ours.payload_bytes, "straightforward": 12 * ours.coefficients},
        "coefficients_per_second": {
            "encode": ours.coefficients / statistics.median(times["encode"] for times in timed["engine"]),
            "decode": coefficients / statistics.median(times["decode"] for times in timed["engine"]),
        },
        "peak_extra_bytes": extra,
        "peak_extra_over_momentum": extra / ours.momentum_bytes if extra is not None else None,
    }


class _Ours:
    """A step of the engine: one author extracts and encodes, then R payloads are decoded and applied."""

    def __init__(self, parameters: Mapping[str, Tensor], payloads: int, top_k: int) -> None:
        self._parameters = {name: tensor.clone() for name, tensor in parameters.items()}
        self._layout = ChunkLayout.from_shapes({name: tuple(tensor.shape) for name, tensor in parameters.items()})
        self._shape = PayloadShape(self._layout.chunks, top_k, 1)
        self._engine = Engine(self._layout, DemoSettings(DECAY, 1.0, top_k, 1), "cpu")
        self.momentum_bytes = self._engine.momentum.nbytes
        self._others = [self._author(seed) for seed in range(payloads - 1)]
        self.coefficients = self.payload_bytes = 0

    def _author(self, seed: int) -> bytes:
        """Another author's payload: real top-k supports of its own noise."""
        engine = Engine(self._layout, self._engine.settings, "cpu")
        generator = torch.Generator().manual_seed(seed + 1)
        engine.momentum.normal_(generator=generator)
        return self._encoded(engine.extract().coefficients, seed + 1)

    def _encoded(self, coefficients: Coefficients, author: int) -> bytes:
        return encode(Header(RunId("0" * 32), 0, PeerId(f"{author:032x}")), coefficients, self._shape)

    def step(self, gradients: Mapping[str, Tensor]) -> Times:
        """Seconds of each part."""
        clock = _Clock()
        self._engine.accumulate(gradients)
        coefficients = self._engine.extract().coefficients
        clock.lap("extract")
        own = self._encoded(coefficients, 0)
        clock.lap("encode")
        decoded = [(1, decode(payload, self._shape)[1]) for payload in [own, *self._others]]
        clock.lap("decode")
        apply(self._layout, self._parameters, decoded, LEARNING_RATE, 1.0)
        clock.lap("apply")
        self.coefficients, self.payload_bytes = len(coefficients.indices), len(own)
        return clock.laps


class _Theirs:
    """The same step, the straightforward way."""

    def __init__(self, parameters: Mapping[str, Tensor], payloads: int, top_k: int) -> None:
        self._demo = Straightforward({name: tensor.clone() for name, tensor in parameters.items()}, DECAY, top_k)
        self._payloads = payloads

    def step(self, gradients: Mapping[str, Tensor]) -> Times:
        """Seconds of each part. The other authors' payloads are copies: what they hold costs nothing extra here."""
        clock = _Clock()
        sent = self._demo.extract(gradients)
        clock.lap("extract")
        payload = self._demo.encode(sent)
        clock.lap("encode")
        decoded = [self._demo.decode(payload) for _ in range(self._payloads)]
        clock.lap("decode")
        self._demo.apply(decoded, LEARNING_RATE)
        clock.lap("apply")
        return clock.laps


class _Clock:
    def __init__(self) -> None:
        self.laps: Times = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def memory_bandwidth() -> float:
    """Bytes per second read and written by a copy far larger than the caches; best of five."""
    source = torch.ones(64 * 1024**2)
    target = torch.empty_like(source)
    best = min(_seconds(lambda: target.copy_(source)) for _ in range(5))
    return 2 * source.nbytes / best


def multiply_adds_per_second() -> float:
    """Rate of one large float32 matrix product; best of five."""
    size = 2048
    left, right, out = (torch.ones(size, size) for _ in range(3))
    best = min(_seconds(lambda: torch.mm(left, right, out=out)) for _ in range(5))
    return size**3 / best


def peak_extra_bytes(work: Callable[[], object]) -> int | None:
    """Largest resident memory during `work` above what is resident before; None where the kernel does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        work()
        return max(0, _status_bytes("VmHWM") - before)
    except OSError:
        return None


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _medians(laps: list[Times]) -> dict[str, Any]:
    parts = {part: _spread([times[part] for times in laps]) for part in PARTS}
    return parts | {"total": _spread([sum(times.values()) for times in laps])}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _line(row: Mapping[str, Any]) -> str:
    parts = " ".join(f"{part} {row['engine_seconds'][part]['median'] * 1e3:.0f}" for part in PARTS)
    ratio, rates = row["ratio"], row["coefficients_per_second"]
    return (
        f"{row['size']} R={row['payloads']} threads={row['threads']}: {parts} ms, "
        f"{ratio['median']:.2f}x ({ratio['least']:.2f}-{ratio['most']:.2f}) the straightforward one, "
        f"{row['times_larger_floor']:.2f} times the floor, extra {row['peak_extra_over_momentum'] or 0:.2f} momenta, "
        f"pack {rates['encode'] / 1e6:.0f} unpack {rates['decode'] / 1e6:.0f} M/s"
    )


if __name__ == "__main__":
    main()
