"""What the gate costs a payload: `python -m tests.benchmarks.border --json PATH`.

Links of two nodes, each in a process of its own, once behind their gates and once with gRPC at the
port itself, in turns (`tests.benchmarks.links`). Of each pair the rate with the gate over that
without, for blobs of 8 and of 1 MB, and the same of the processor time for a megabyte; on loopback,
which nothing but processors slows down, and at a distance, which is what homes have. Medians of the
pairs, with the least and most of them.

The aim, stated before the first measurement: at least 0.95 of the rate.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.console import messages, write_json
from tests.benchmarks.links.carriers import WITHOUT_GATE
from tests.benchmarks.links.measure import MB, STREAM_MB, WARM_UP, cpu_seconds, linked, machine
from tests.benchmarks.spread import spread

WITH_GATE = "grpc mesh"


def figures(kind: str, round_trip_ms: float, repeats: int) -> dict[str, float]:
    """Megabytes per second by the size of a blob, and milliseconds of processor time for one."""
    with linked(kind, round_trip_ms, 2) as (one, other):
        found = {}
        for size in STREAM_MB:
            seconds = one.ask("carries", size * MB, repeats)
            found[f"mb_per_s_of_{size}"] = size * spread([1 / each for each in seconds])["median"]
        before = cpu_seconds(one.pid) + cpu_seconds(other.pid)
        one.ask("carries", max(STREAM_MB) * MB, repeats)
        used = cpu_seconds(one.pid) + cpu_seconds(other.pid) - before
    found["cpu_ms_per_mb"] = 1e3 * used / (max(STREAM_MB) * (WARM_UP + repeats))
    return found


def measured(round_trip_ms: float, pairs: int, repeats: int) -> dict[str, Any]:
    """Both kinds in turns at one distance; of each figure the ratio, and what it was."""
    rows: dict[str, list[dict[str, float]]] = {WITH_GATE: [], WITHOUT_GATE: []}
    for number in range(pairs):
        for kind in sorted(rows, reverse=bool(number % 2)):
            rows[kind].append(figures(kind, round_trip_ms, repeats))
    gated, bare = rows[WITH_GATE], rows[WITHOUT_GATE]
    document: dict[str, Any] = {"round_trip_ms": round_trip_ms, "pairs": pairs}
    for name in gated[0]:
        document[name] = {
            "ratio": spread(_ratios(gated, bare, name), 3),
            "gated": spread([row[name] for row in gated], 2),
            "bare": spread([row[name] for row in bare], 2),
        }
    return document


def _ratios(
    above: Sequence[dict[str, float]], below: Sequence[dict[str, float]], name: str
) -> list[float]:
    return [one[name] / other[name] for one, other in zip(above, below, strict=True)]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.border")
    parser.add_argument("--json", type=Path, default="-", help="file for the result")
    parser.add_argument("--round-trips", nargs="+", type=float, default=[0, 50])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=15)
    wanted = parser.parse_args()
    distances = []
    for round_trip_ms in wanted.round_trips:
        distances.append(measured(round_trip_ms, wanted.pairs, wanted.repeats))
        messages.print(str(distances[-1]))
    document = {"machine": machine(), "load": os.getloadavg()[0], "distances": distances}
    write_json(str(wanted.json), document)


if __name__ == "__main__":
    main()
