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
The even and odd rows of a DCT see sums and differences of mirrored entries only, which halves the multiply-adds;
the floor with that half stands beside too, although the engine makes all of them (docs/results/engine.md says why).

The peak of extra memory is that of the whole process around its very first step, less its threads' and libraries'
first use of memory, which a step of a tiny model has made before: one fresh process per size and R.
"""

import argparse
import ctypes
import gc
import json
import mmap
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.allocator import keep_freed_memory
from node.demo.aggregate import Rule, apply, look_ahead
from node.demo.chunks import ChunkLayout
from node.demo.engine import DemoSettings, Engine
from node.demo.transform import integer_matrix, product
from node.demo.votes import Contribution
from protocol.ids import PeerId, RunId
from protocol.payload import Coefficients, Header, PayloadShape, decode, encode
from tests.benchmarks.shapes import Shapes, gpt2_124m, llama_20m
from tests.benchmarks.straightforward import Straightforward

BYTES_PER_PARAMETER = 4 + 8 + 8
MULTIPLY_ADDS_PER_PARAMETER = 256
LEARNING_RATE = 2.0**-10
DECAY = 0.999
AUTHORS_MAX = 8
"""Other authors with a payload of their own; further ones send the same again, which costs as much to take."""
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
    keep_freed_memory()  # as nodes do
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
    guessed = [ours.guess("sign") for _ in range(repeats)]
    orthogonal_guessed = [ours.guess("orthogonal") for _ in range(repeats)]
    orthogonal = [ours.apply("orthogonal") for _ in range(repeats)]
    count = sum(tensor.numel() for tensor in parameters.values())
    floors = {
        "memory": count * BYTES_PER_PARAMETER / memory_bandwidth(),
        "arithmetic": count * MULTIPLY_ADDS_PER_PARAMETER / multiply_adds_per_second(),
    }
    floors["halved arithmetic"] = floors["arithmetic"] / 2
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
        "times_larger_floor_halved": seconds / max(floors["memory"], floors["halved arithmetic"]),
        "guess_seconds": _spread(guessed),
        "guess_bytes": ours.guess_bytes,
        "orthogonal_guess_seconds": _spread(orthogonal_guessed),
        "orthogonal_apply_seconds": _spread(orthogonal),
        "payload_bytes": {"engine": ours.payload_bytes, "straightforward": 12 * ours.coefficients},
        "coefficients_per_second": {
            "encode": ours.coefficients / statistics.median(times["encode"] for times in timed["engine"]),
            "decode": coefficients / statistics.median(times["decode"] for times in timed["engine"]),
        },
        **_peak_extra(shapes, payloads, top_k),
    }


class _Ours:
    """A step of the engine: one author extracts and encodes, then R payloads are decoded and applied."""

    def __init__(self, parameters: Mapping[str, Tensor], payloads: int, top_k: int) -> None:
        self._parameters = {name: tensor.clone() for name, tensor in parameters.items()}
        self._layout = ChunkLayout.from_shapes({name: tuple(tensor.shape) for name, tensor in parameters.items()})
        self._shape = PayloadShape(self._layout.chunks, top_k, 1)
        self._engine = Engine(self._layout, DemoSettings(DECAY, 1.0, top_k, 1), "cpu")
        self.momentum_bytes = self._engine.momentum.nbytes
        distinct = [self._author(seed) for seed in range(min(payloads - 1, AUTHORS_MAX))]
        self._others = list(islice(cycle(distinct), payloads - 1))
        self.coefficients = self.payload_bytes = 0
        self.guess_bytes: dict[str, int] = {}
        self._decoded: list[Contribution] = []

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
        self._decoded = [(1, decode(payload, self._shape)[1]) for payload in [own, *self._others]]
        clock.lap("decode")
        self.apply("sign")
        clock.lap("apply")
        self.coefficients, self.payload_bytes = len(coefficients.indices), len(own)
        return clock.laps

    def apply(self, rule: Rule) -> float:
        """Seconds of applying what was decoded last."""
        started = time.perf_counter()
        apply(self._layout, self._parameters, self._decoded, LEARNING_RATE, 1.0, rule=rule)
        return time.perf_counter() - started

    def touch_momentum(self) -> None:
        """Make the momentum resident: fresh zeros are not until they are written."""
        self._engine.momentum.fill_(0.0)

    def guess(self, rule: Rule) -> float:
        """Seconds of a guess: the update to come, and the parameters that it would make."""
        sent = self._engine.extract()
        working = {name: torch.empty_like(tensor) for name, tensor in self._parameters.items()}
        started = time.perf_counter()
        update = self._engine.guess(rule, sent)
        look_ahead(self._layout, self._parameters, update, working, rates=(LEARNING_RATE, 1.0))
        seconds = time.perf_counter() - started
        self._engine.reclaim(sent)
        self.guess_bytes = {"update": update.nbytes, "working parameters": sum(t.nbytes for t in working.values())}
        return seconds


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
    """Rate of one large float32 matrix product, or of the engine's own if that is faster; best of five each."""
    size = 2048
    square, rows, matrix = torch.ones(size, size), torch.ones(size, 64), integer_matrix(torch.device("cpu"))
    large = min(_seconds(lambda: torch.mm(square, square)) for _ in range(5))
    slim = min(_seconds(lambda: product(rows, matrix)) for _ in range(50))
    return max(size**3 / large, size * 64**2 / slim)


def _peak_extra(shapes: Shapes, payloads: int, top_k: int) -> dict[str, float | None]:
    """`peak_extra_bytes` of the first step of a fresh process, and in units of the momentum."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        extra, momentum = pool.apply(_first_step, (shapes, payloads, top_k, torch.get_num_threads()))
    return {"peak_extra_bytes": extra, "peak_extra_over_momentum": None if extra is None else extra / momentum}


def _first_step(shapes: Shapes, payloads: int, top_k: int, threads: int) -> tuple[int | None, int]:
    """Peak extra bytes of this process's first step of the model, and bytes of the momentum."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    tiny = {"w": torch.randn(64, 64)}
    _Ours(tiny, payloads, top_k).step(tiny)
    parameters = {name: torch.randn(shape) for name, shape in shapes.items()}
    ours = _Ours(parameters, payloads, top_k)
    ours.touch_momentum()
    gc.collect()
    _give_back_free_memory()
    return peak_extra_bytes(lambda: ours.step(parameters)), ours.momentum_bytes


def _give_back_free_memory() -> None:
    """Return to the system what setting up has freed, so that a step that takes it again is seen to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def peak_extra_bytes(work: Callable[[], object]) -> int | None:
    """Most resident memory during `work` above what is resident before; None where the kernel does not tell.

    A thread looks every millisecond, for kernels may count their own high-water mark only loosely.
    """
    try:
        before = _resident_bytes()
    except OSError:
        return None
    peak, done = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, _resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(peak, _resident_bytes()) - before


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


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
    extra = "?" if row["peak_extra_over_momentum"] is None else f"{row['peak_extra_over_momentum']:.2f}"
    return (
        f"{row['size']} R={row['payloads']} threads={row['threads']}: {parts} ms, "
        f"{ratio['median']:.2f}x ({ratio['least']:.2f}-{ratio['most']:.2f}) the straightforward one, "
        f"{row['times_larger_floor']:.2f} times the floor ({row['times_larger_floor_halved']:.2f} the halved one), "
        f"extra {extra} momenta, guess {row['guess_seconds']['median'] * 1e3:.0f} ms, "
        f"apply orthogonalised {row['orthogonal_apply_seconds']['median'] * 1e3:.0f} ms, "
        f"pack {rates['encode'] / 1e6:.0f} unpack {rates['decode'] / 1e6:.0f} M/s"
    )


if __name__ == "__main__":
    main()
