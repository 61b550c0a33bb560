"""Local steps over shaped lines, with overlap and without: `python -m
tests.benchmarks.local_steps.lines`.

Four homes train the demo's network with the product's coordinator and nodes, each in a network
namespace of its own behind the same line, first without overlap, then with it, in turn. What counts
is the time: committed samples and rounds a second, from the round after which both have settled to
the last one, and the validation loss at the end. Needs root, and a quiet machine.

    overlap 0   steps until the bell | send, wait, apply | steps until the bell ...
    overlap 1   steps until the bell | steps go on, the round before travels | ...

Printed as JSON (`--json PATH`: kept too): each run, and the ratios of the medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.cluster.demo import CORPUS_BYTES, demo_spec
from lockstep.cluster.live_table import Show
from lockstep.cluster.local import ClusterSettings
from lockstep.cluster.settings import DemoOptions
from lockstep.cluster.summary import a_checkpoint, evaluate, run_to_its_end
from lockstep.run_file import write_run_file
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.laboratory import Laboratory, unable
from lockstep.wan.profiles import read_profiles
from lockstep.wan.settings import WanSettings
from lockstep.wan.up import plan_of
from node.data.prepare import prepare_builtin
from protocol.runfile import RunSpec

NODES = 4
TOP_K = 192

SAMPLES_MAX = 1000
"""Samples of a round, above what two cores train until the bell."""

SETTLED = 5
"""Rounds after which pace and shares have settled, and the time begins."""


@dataclass(frozen=True, slots=True)
class Found:
    """One run."""

    overlap: int
    samples_per_second: float
    rounds_per_second: float
    samples: int
    seconds: float
    validation_nats: float


def spec_of(directory: Path, rounds: int, overlap: int) -> RunSpec:
    """The demo's run of local steps, all of whose rounds overlap, or none."""
    spec = demo_spec(DemoOptions(directory, NODES, rounds, 0, "", "local_steps"))
    return spec.model_copy(
        update={
            "algorithm": spec.algorithm.model_copy(update={"top_k": TOP_K}),
            "rounds": spec.rounds.model_copy(
                update={
                    "overlap": overlap,
                    "compute_ms": 4_000,
                    "exchange_ms": 20_000,
                    "batch_samples_max": SAMPLES_MAX,
                }
            ),
        }
    )


def trained(directory: Path, data: Path, profile: str, rounds: int, overlap: int) -> Found:
    """Train once, and say what came of it."""
    spec = spec_of(directory, rounds, overlap)
    directory.mkdir(parents=True)
    write_run_file(directory / "run.toml", spec)
    wanted = WanSettings(directory, NODES, (profile,), rounds, 0, "")
    seen: list[tuple[float, int, int]] = []
    with Laboratory(plan_of(wanted, read_profiles()), seed=0) as laboratory:
        asked = ClusterSettings(directory, directory / "run.toml", data, NODES)
        cluster = WanCluster(asked, laboratory)
        run_to_its_end(cluster, _watching(cluster, seen))
    evaluation = evaluate(spec, data, a_checkpoint(cluster.nodes))
    first, last = next(each for each in seen if each[1] >= SETTLED), seen[-1]
    seconds = last[0] - first[0]
    return Found(
        overlap,
        round((last[2] - first[2]) / seconds, 3),
        round((last[1] - first[1]) / seconds, 4),
        last[2] - first[2],
        round(seconds, 1),
        round(evaluation.final, 4),
    )


@contextmanager
def _watching(cluster: WanCluster, seen: list[tuple[float, int, int]]) -> Iterator[Show]:
    """Note when each round was committed, with the samples trained until then."""

    def show(_: Sequence[str]) -> None:
        status = cluster.coordinator.status
        if status and status["steps"]["committed"] > (seen[-1][1] if seen else 0):
            counts = status["steps"]["committed"], status["data"]["samples_trained"]
            seen.append((time.monotonic(), *counts))

    yield show


def summed_up(found: Sequence[Found]) -> dict[str, Any]:
    """The runs, and overlap over none of the medians of each."""
    ratios = {}
    for figure in ("samples_per_second", "rounds_per_second", "validation_nats"):
        medians = [
            statistics.median(getattr(each, figure) for each in found if each.overlap == overlap)
            for overlap in (0, 1)
        ]
        ratios[figure] = round(medians[1] / medians[0], 4)
    return {"runs": [asdict(each) for each in found], "overlap_over_none": ratios}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.local_steps.lines", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--profile", default="dsl-poor")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=1)
    wanted = parser.parse_args()
    if reason := unable():
        parser.error(reason)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        prepare_builtin(data, byte_limit=CORPUS_BYTES)
        for pair in range(wanted.pairs):
            for overlap in (0, 1):
                place = Path(scratch) / f"{pair}-{overlap}"
                found.append(trained(place, data, wanted.profile, wanted.rounds, overlap))
    document = {"profile": wanted.profile, "rounds": wanted.rounds, **summed_up(found)}
    text = json.dumps(document, indent=1)
    if wanted.json:
        wanted.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
