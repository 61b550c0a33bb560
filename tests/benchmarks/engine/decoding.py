"""One thread or two for the payloads of a commit: `python -m tests.benchmarks.engine.decoding`.

For each size and number of payloads R it times, alternating in one run, by one thread and by
several:

    decode   R payloads to coefficients
    lay      these checked, and laid end to end for the kernels

A row has seconds of the clock and of the processor, medians and spread, and the ratio of each
repeat by one thread to the next by several. The clock's seconds of a repeat count only where other
programs took less than a tenth of the machine meanwhile, by /proc/stat, since two threads get a
larger share of a busy machine than one; `quiet` says how many pairs these are, and without any
there is no ratio.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution, decoded
from node.exact.demo.votes import Votes
from node.system.malloc import keep_freed_memory
from protocol.errors import RemoteProtocolError
from tests.benchmarks.engine.shapes import Shapes, gpt2_124m, llama_20m
from tests.benchmarks.engine.steps import Ours
from tests.benchmarks.spread import spread

OTHERS_MAX = 0.1
"""Share of the machine's processor time that others may take in a repeat that counts."""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Lap = tuple[float, float, bool]
"""Seconds of the clock, of the processor, and whether the machine was quiet."""


class Work:
    """The payloads of a commit, and what is done with them."""

    def __init__(self, shapes: Shapes, payloads: int, top_k: int) -> None:
        parameters = {name: torch.randn(shape) for name, shape in shapes.items()}
        ours = Ours(parameters, payloads + 1, top_k)
        self._payloads, self._shape = ours._others, ours._shape
        self._layout = ChunkLayout.from_shapes(shapes)
        self._sent: list[Contribution] = []
        self.decode()
        self.values = sum(len(each.coefficients.values) for each in self._sent)

    def decode(self) -> None:
        self._sent = []
        for outcome in decoded(self._payloads, self._shape):
            assert not isinstance(outcome, RemoteProtocolError)
            self._sent.append(Contribution(1, outcome[1]))

    def lay(self) -> None:
        Votes(self._layout, self._sent).stacked()


def busy_seconds() -> float:
    """Processor time that all programs of this machine have taken."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, interrupts, soft = map(int, fields[1:8])
    return (user + nice + system + interrupts + soft) / TICKS_PER_SECOND


def lap(work: Callable[[], object], threads: int) -> Lap:
    """Do it once by this many threads."""
    torch.set_num_threads(threads)
    busy, own, clock = busy_seconds(), time.process_time(), time.perf_counter()
    work()
    clock, own = time.perf_counter() - clock, time.process_time() - own
    others = busy_seconds() - busy - own
    return clock, own, others <= OTHERS_MAX * clock * (os.cpu_count() or 1)


def compared(work: Callable[[], object], threads: int, repeats: int) -> dict[str, Any]:
    """One row: this work by one thread, and by `threads`."""
    pairs = [(lap(work, 1), lap(work, threads)) for _ in range(repeats + 1)][1:]
    quiet = [(one[0], several[0]) for one, several in pairs if one[2] and several[2]]
    return {
        "pairs": repeats,
        "quiet": len(quiet),
        "one_thread_seconds": spread_of([one for one, _ in quiet]),
        "seconds": spread_of([several for _, several in quiet]),
        "ratio": spread_of([one / several for one, several in quiet]),
        "one_thread_processor_seconds": spread_of([one[1] for one, _ in pairs]),
        "processor_seconds": spread_of([several[1] for _, several in pairs]),
        "least_seconds": {
            "one": min(p[0][0] for p in pairs),
            "several": min(p[1][0] for p in pairs),
        },
    }


def spread_of(values: list[float]) -> dict[str, float] | None:
    """Median, least and most; None of nothing."""
    if not values:
        return None
    return spread(values)


def main() -> None:
    """Print a row for each size, R and part of the work."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.engine.decoding")
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--payloads", type=int, nargs="+", default=[8, 32], help="values of R")
    parser.add_argument("--chunks", type=int, nargs="+", default=[], help="small models as well")
    parser.add_argument("--only-chunks", action="store_true", help="no model but those")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--top-k", type=int, default=32)
    arguments = parser.parse_args()
    keep_freed_memory()  # as nodes do
    sizes = {f"{chunks} chunks": {"w": (64 * chunks, 64)} for chunks in arguments.chunks}
    if not arguments.only_chunks:
        sizes |= {"llama-20m": llama_20m(), "gpt2-124m": gpt2_124m()}
    rows = []
    for name, shapes in sizes.items():
        for payloads in arguments.payloads:
            work = Work(shapes, payloads, arguments.top_k)
            for part in (work.decode, work.lay):
                row = compared(part, arguments.threads, arguments.repeats)
                what = {"size": name, "payloads": payloads, "values": work.values}
                rows.append({**what, "part": part.__name__, "threads": arguments.threads, **row})
                print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
