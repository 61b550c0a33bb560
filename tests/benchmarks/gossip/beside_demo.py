"""Gossip Adam beside DeMo on equal lines: `python -m tests.benchmarks.gossip.beside_demo`.

For each kind of line and number of homes both train the network of the home links with the
product's coordinator and nodes, each node in a network namespace of its own. A forward and backward
pass is a sleep, all else is real (`tests.benchmarks.wan`). DeMo sends k = 32 signs a chunk to
everybody and waits for their commit, gossip Adam int8 differences to one neighbour while it trains.
What is kept in docs/results/data was measured while DeMo could still overlap. Needs root.

    --json PATH     the results; cells that are in it already are not measured again, so a file is
                    for one pass and one slow motion
    --quick         two cells of the small network: does it work?
    --slowed 8      slow motion, where many homes share few cores; seconds are divided by it again
    --learn DATA    train both in one process for as many rounds as they make in the same time;
                    DATA: folder for the built-in corpus

The result has predictions of `lockstep plan` beside measurements, told the pass and the measured
arithmetic:

    cells       seconds of a round and bytes up, measured and predicted
    beside      per kind of line and number of homes: which is quicker, by how much, and the rounds
                that gossip Adam makes in the time of `ROUNDS` of DeMo
    crossover   the least number of homes at which a round of gossip Adam is the shorter one
    learning    bits per byte after these rounds, of a network small enough to be trained here, with
                eight nodes; the lines' seconds are those of the larger network
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from lockstep.wan.lab.laboratory import unable
from node.system.files import replacing_file
from protocol.codec.differences import difference_bytes
from protocol.codec.payload import PayloadShape
from protocol.errors import LockstepError
from protocol.planner.compute import pass_of
from protocol.planner.links import MEASURED, Network
from protocol.planner.methods import MethodName, MethodTraffic, Prediction, Setting, predicted
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import votes_bytes
from protocol.runfile import ModelSpec
from tests.benchmarks.gossip_adam.rounds import first_shorter
from tests.benchmarks.links.measure import machine
from tests.benchmarks.planner import line
from tests.benchmarks.wan.links import Trial, run
from tests.benchmarks.wan.methods import algorithm_of
from tests.benchmarks.wan.model import CONFIGS
from tests.benchmarks.wan.results import Measurement, measured

PROFILES: Final = ("cable", "fibre")
HOMES: Final = (4, 8, 16)

METHODS: Final[dict[str, MethodName]] = {
    "demo-grpc": "demo",
    "gossip-adam-grpc": "gossip-adam",
}
"""Names of the trials' methods, and the planner's for them."""

DEMO, GOSSIP = METHODS

STEPS: Final = 7
"""Steps of a cell; the first two are not counted."""

ROUNDS: Final = 200
"""Rounds of DeMo, in whose time rounds of gossip Adam are counted."""

LEARNING_HOMES: Final = 8
"""Homes of which learning is compared: the nodes of the study of gossip Adam."""

RATES: Final = {DEMO: (0.001, 0.002, 0.004), GOSSIP: (0.008, 0.016, 0.032)}
"""Learning rates, of which the best end counts."""


def trials(*, quick: bool, slowed: int = 1, compute_s: float = 2.0) -> list[Trial]:
    """The cells."""
    if quick:
        return [
            Trial("cable", method, 2, "tiny", 0.05, STEPS, limit_s=400.0, slowed=slowed)
            for method in METHODS
        ]
    return [
        Trial(profile, method, homes, "20m", compute_s, STEPS, limit_s=3600.0, slowed=slowed)
        for profile in PROFILES
        for homes in HOMES
        for method in METHODS
    ]


def setting_of(trial: Trial, homes: int, arithmetic_s: float) -> Setting:
    """What the planner is told: lines, a pass, the arithmetic of the trial's method, sizes."""
    size = size_of(ModelSpec(type="llama", config=CONFIGS[trial.size]))
    algorithm = algorithm_of(replace(trial, method=DEMO).how)
    traffic = MethodTraffic(
        gradient=2.0 * size.parameters,
        payload=votes_bytes(PayloadShape.of(algorithm, size.chunks)),
        parameters=float(difference_bytes(size.parameters)),
    )
    compute = replace(pass_of(trial.compute_s), optimizer_s=arithmetic_s, apply_s=arithmetic_s)
    return Setting(compute, Network([line(trial.profile)] * homes), traffic, MEASURED)


def prediction(trial: Trial, homes: int, arithmetic_s: float) -> Prediction:
    """The planner's round of a trial's method."""
    return predicted(setting_of(trial, homes, arithmetic_s), METHODS[trial.method])


def cell(trial: Trial, found: Measurement) -> dict[str, Any]:
    """A measurement with its prediction."""
    expected = prediction(trial, trial.nodes, found.arithmetic_s)
    return {
        "profile": trial.profile,
        "homes": trial.nodes,
        "method": METHODS[trial.method],
        "measured_s": found.seconds,
        "predicted_s": expected.seconds,
        "error": expected.seconds / found.seconds - 1,
        "measured_up_bytes": found.up_bytes,
        "predicted_up_bytes": expected.up_bytes,
        "measurement": asdict(found),
    }


def beside(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both methods of each kind of line and number of homes where both were measured."""
    by_place: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for each in cells:
        by_place.setdefault((each["profile"], each["homes"]), {})[each["method"]] = each
    found = []
    for (profile, homes), methods in sorted(by_place.items()):
        if methods.keys() != set(METHODS.values()):
            continue
        demo, gossip = methods[METHODS[DEMO]], methods[METHODS[GOSSIP]]
        row: dict[str, Any] = {"profile": profile, "homes": homes}
        for kind in ("measured", "predicted"):
            ratio = demo[f"{kind}_s"] / gossip[f"{kind}_s"]
            row[f"{kind}_demo_over_gossip"] = ratio
            row[f"{kind}_quicker"] = METHODS[GOSSIP if ratio > 1 else DEMO]
            row[f"{kind}_gossip_rounds"] = int(ROUNDS * ratio)
        found.append(row | {"demo_rounds": ROUNDS})
    return found


def crossovers(cells: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per kind of line the least homes at which gossip Adam's round is shorter: measured, None if
    at none; predicted by powers of two, with the arithmetic of the cell with most homes.
    """
    found = {}
    for profile in sorted({row["profile"] for row in rows}):
        quicker = [
            row["homes"]
            for row in rows
            if row["profile"] == profile and row["measured_quicker"] == METHODS[GOSSIP]
        ]
        largest = {
            each["method"]: Measurement(**each["measurement"])
            for each in sorted(cells, key=lambda each: each["homes"])
            if each["profile"] == profile
        }
        found[profile] = {
            "measured_homes": min(quicker, default=None),
            "predicted_homes": predicted_crossover(list(largest.values())),
        }
    return found


def predicted_crossover(found: Sequence[Measurement]) -> int | None:
    """The least power of two of homes at which the planner's round of gossip Adam is the shorter
    one, given a measurement of each method.
    """
    by_method = {one.method: one for one in found}

    def rounds_of(homes: int) -> tuple[Prediction, Prediction]:
        demo, gossip = (
            prediction(
                Trial(one.profile, method, homes, size_name(one.parameters), one.compute_s),
                homes,
                one.arithmetic_s,
            )
            for method, one in ((name, by_method[name]) for name in METHODS)
        )
        return demo, gossip

    return first_shorter(rounds_of)


def size_name(parameters: int) -> str:
    """The network with this number of parameters."""
    for name, config in CONFIGS.items():
        if size_of(ModelSpec(type="llama", config=config)).parameters == parameters:
            return name
    raise ValueError(f"expected a network of {list(CONFIGS)}, got one of {parameters} parameters")


def learning(rows: Sequence[dict[str, Any]], data: Path) -> list[dict[str, Any]]:
    """Bits per byte of both after the rounds that they make in the same time, best of `RATES`."""
    from tests.benchmarks.gossip_adam import train as gossip_study  # torch: only where it trains
    from tests.benchmarks.parity.cells import Cell as DemoCell
    from tests.benchmarks.parity.train import train as train_demo

    found = []
    corpus = gossip_study.open_corpus(data)
    for row in rows:
        if row["homes"] != LEARNING_HOMES:
            continue
        demo = [
            train_demo(
                gossip_study.TASK,
                DemoCell("demo", rate, row["demo_rounds"], authors=LEARNING_HOMES),
                corpus,
            ).last.bits_per_byte
            for rate in RATES[DEMO]
        ]
        gossip = [
            gossip_study.train(
                gossip_study.Cell(
                    "gossip", row["measured_gossip_rounds"], rate, 0, wire="int8-to-mean"
                ),
                corpus,
            ).bits_per_byte
            for rate in RATES[GOSSIP]
        ]
        rounds = {"demo_rounds": row["demo_rounds"], "gossip_rounds": row["measured_gossip_rounds"]}
        ends = {"demo_bits_per_byte": demo, "gossip_bits_per_byte": gossip, "rates": RATES}
        found.append({"profile": row["profile"], **rounds, **ends, "ahead": _ahead(demo, gossip)})
    return found


def _ahead(demo: Sequence[float], gossip: Sequence[float]) -> str:
    return METHODS[GOSSIP if min(gossip) < min(demo) else DEMO]


def document(cells: Sequence[dict[str, Any]], learned: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything, for a file."""
    rows = beside(cells)
    return {
        "machine": machine(),
        "rounds": ROUNDS,
        "cells": list(cells),
        "beside": rows,
        "crossover": crossovers(cells, rows),
        "learning": list(learned),
    }


def measure(wanted: Sequence[Trial], cells: list[dict[str, Any]], path: Path | None) -> None:
    """Measure the cells that are not there yet; the file is whole after each. One that fails says
    why and does not stop the others.
    """
    known = {(each["profile"], each["homes"], each["method"]) for each in cells}
    for trial in wanted:
        place = trial.profile, trial.nodes, METHODS[trial.method]
        if place in known:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="lockstep-beside-") as directory:
                cells.append(cell(trial, measured(trial, run(trial, Path(directory)))))
        except (TimeoutError, RuntimeError, LockstepError) as error:
            print(f"{trial.name}, {trial.nodes} homes: {error}", flush=True)
            continue
        newest = cells[-1]
        print(
            f"{trial.name}, {trial.nodes} homes: {newest['measured_s']:.2f} s a round, "
            f"predicted {newest['predicted_s']:.2f} s ({newest['error']:+.0%})",
            flush=True,
        )
        write(path, document(cells, []))


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write the document, whole or not at all."""
    if path:
        with replacing_file(path) as temporary:
            temporary.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the document."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gossip.beside_demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file of the results")
    parser.add_argument("--quick", action="store_true", help="two small cells")
    parser.add_argument("--slowed", type=int, default=1, metavar="TIMES", help="slow motion")
    parser.add_argument("--compute-s", type=float, default=2.0, help="seconds of a pass")
    parser.add_argument("--learn", type=Path, metavar="DATA", help="train both for equal time")
    given = parser.parse_args(arguments)
    if reason := unable():
        parser.exit(1, f"{reason}\n")
    there = given.json and given.json.exists()
    cells: list[dict[str, Any]] = json.loads(given.json.read_text())["cells"] if there else []
    wanted = trials(quick=given.quick, slowed=given.slowed, compute_s=given.compute_s)
    measure(wanted, cells, given.json)
    learned = learning(beside(cells), given.learn) if given.learn else []
    found = document(cells, learned)
    write(given.json, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
