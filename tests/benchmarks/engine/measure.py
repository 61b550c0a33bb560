"""Measures one size of model, R and thread count: both implementations, floors and peak memory."""

import gc
import multiprocessing
import statistics
from typing import Any

import torch

from border.memory import give_back_freed_memory
from node.exact.dct import integer_matrix, product
from node.system.malloc import keep_freed_memory
from tests.benchmarks.engine.footprint import peak_extra_bytes
from tests.benchmarks.engine.shapes import Shapes
from tests.benchmarks.engine.steps import PARTS, Ours, Theirs, Times, seconds
from tests.benchmarks.spread import spread

BYTES_PER_PARAMETER = 4 + 8 + 8
MULTIPLY_ADDS_PER_PARAMETER, MULTIPLY_ADDS_FOLDED = 256, 96
SQUARE_SIDE = {"cpu": 2048, "cuda": 8192}
"""Side of the square matrices whose product's rate is measured, by type of device."""


def measure(
    shapes: Shapes, payloads: int, top_k: int, repeats: int, device: torch.device
) -> dict[str, Any]:
    """Time both implementations on the same gradients, alternating; returns one row of results."""
    generator = torch.Generator(device).manual_seed(0)
    parameters, gradients = (
        {
            name: torch.randn(shape, generator=generator, device=device)
            for name, shape in shapes.items()
        }
        for _ in range(2)
    )
    ours, theirs = Ours(parameters, payloads, top_k), Theirs(parameters, payloads, top_k)
    ours.step(gradients)
    theirs.step(gradients)
    timed: dict[str, list[Times]] = {"engine": [], "straightforward": []}
    for _ in range(repeats):
        timed["engine"].append(ours.step(gradients))
        timed["straightforward"].append(theirs.step(gradients))
    count = sum(tensor.numel() for tensor in parameters.values())
    rate = multiply_adds_per_second(device)
    floors = {
        "memory": count * BYTES_PER_PARAMETER / memory_bandwidth(device),
        "arithmetic": count * MULTIPLY_ADDS_PER_PARAMETER / rate,
        "folded arithmetic": count * MULTIPLY_ADDS_FOLDED / rate,
    }
    ratios = [
        sum(theirs.values()) / sum(ours.values())
        for ours, theirs in zip(*timed.values(), strict=True)
    ]
    step = statistics.median(sum(times.values()) for times in timed["engine"])
    coefficients = ours.coefficients * payloads
    return {
        "parameters": count,
        "engine_seconds": _medians(timed["engine"]),
        "straightforward_seconds": _medians(timed["straightforward"]),
        "ratio": spread(ratios),
        "floor_seconds": floors,
        "times_larger_floor": step / max(floors.values()),
        "times_larger_floor_folded": step / max(floors["memory"], floors["folded arithmetic"]),
        "payload_bytes": {"engine": ours.payload_bytes, "straightforward": 12 * ours.coefficients},
        "coefficients_per_second": {
            "encode": ours.coefficients
            / statistics.median(times["encode"] for times in timed["engine"]),
            "decode": coefficients
            / statistics.median(times["decode"] for times in timed["engine"]),
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
    """Rate of one large float32 matrix product, or of the engine's own if that is faster; best of
    five each.
    """
    size = SQUARE_SIDE[device.type]
    square, rows = (torch.ones(size, columns, device=device) for columns in (size, 64))
    matrix = integer_matrix(device)
    large = min(seconds(lambda: torch.mm(square, square), device) for _ in range(5))
    slim = min(seconds(lambda: product(rows, matrix), device) for _ in range(50))
    return max(size**3 / large, size * 64**2 / slim)


def _peak_extra(
    shapes: Shapes, payloads: int, top_k: int, device: torch.device
) -> dict[str, float | None]:
    """`peak_extra_bytes` of the first step of a fresh process, and in units of the momentum."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        extra, momentum = pool.apply(
            _first_step, (shapes, payloads, top_k, torch.get_num_threads(), device)
        )
    return {
        "peak_extra_bytes": extra,
        "peak_extra_over_momentum": None if extra is None else extra / momentum,
    }


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
    give_back_freed_memory()
    return peak_extra_bytes(lambda: ours.step(parameters), device), ours.momentum_bytes


def _medians(laps: list[Times]) -> dict[str, Any]:
    parts = {part: spread([times[part] for times in laps]) for part in PARTS}
    return parts | {"total": spread([sum(times.values()) for times in laps])}
