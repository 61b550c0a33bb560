"""One training over home links by four methods: `python -m tests.benchmarks.wan`.

Eight nodes, each behind a line of its own in a laboratory of network namespaces, train 20 million
parameters at a global batch of eight samples: by PyTorch's DistributedDataParallel, by hivemind, by
DiLoCo, and by Lockstep with overlap 0 and 1 over gRPC and libp2p, and with local steps. Bytes,
links, protocols and the optimizer's arithmetic are real; a forward and backward pass is a sleep
(`model`). The number of steps to a fixed validation loss comes from one process that really trains
(`curves`). Every new measurement is one file under out/, which the report merges into
docs/results/data/wan.jsonl. Known trials are not measured again:

    python -m tests.benchmarks.wan --list
    python -m tests.benchmarks.wan                           all default trials, about an hour
    python -m tests.benchmarks.wan --only 'lte-lockstep-1-*'
    python -m tests.benchmarks.wan --curves                  steps to the loss, two core hours
    python -m tests.benchmarks.wan --report --json out.json  table, CSV and figures
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from lockstep.console import messages, output, write_json
from lockstep.exit_codes import UsageError
from lockstep.wan.lab.laboratory import unable
from lockstep.wan.link_check import measure_all, require_as_asked
from lockstep.wan.profiles import read_profiles
from node.system.files import replacing_file
from protocol.errors import LockstepError
from tests.benchmarks.parity.task import open_corpus
from tests.benchmarks.wan.archive import Archive
from tests.benchmarks.wan.curves import (
    INNER_STEPS,
    WanTask,
    load_curves,
    muon_more_s,
    run_curves,
)
from tests.benchmarks.wan.links import COMPUTE_S, Trial, laboratory_of, run
from tests.benchmarks.wan.methods import METHODS
from tests.benchmarks.wan.report import rows, write_report
from tests.benchmarks.wan.results import load_all, measured, predicted, save

SLOWED = (4, 8, 16, 32)
"""Slow motions. Eight nodes share two cores: slowed this many times, a home has one, two, four or
eight cores."""

PASSES_S = (COMPUTE_S, 1.5, 0.5)
"""Seconds of a forward and backward pass: slow homes, and homes with less than half the speed of a
core that needs 0.22 s."""

DEFAULT = (
    "cable-ddp",
    "cable-ddp-compute1.5",
    "cable-ddp-compute0.5",
    "cable-hivemind",
    "cable-diloco",
    "cable-lockstep-?-grpc",
    "cable-lockstep-?-grpc-slowed4",
    "cable-lockstep-?-libp2p-slowed4",
    "cable-lockstep-0-grpc-orthogonal-slowed4",
    "cable-lockstep-0-grpc-orthogonal-k64-compute0.5-slowed4",
    "cable-lockstep-0-grpc-orthogonal-k64-compute0.5-slowed8",
    "cable-lockstep-0-grpc-orthogonal-k64-compute0.5-slowed16",
    "cable-lockstep-0-grpc-local5-k192-compute0.5-slowed8",
    "cable-lockstep-1-grpc-orthogonal-k64-compute1.5-slowed8",
    "cable-lockstep-1-grpc-orthogonal-k64-compute1.5-slowed32",
    "dsl-poor-lockstep-1-grpc",
)
"""Trials of the committed results, as patterns."""

STEPS = {
    "ddp": (2, 4),
    "hivemind": (3, 4),
    "diloco": (3, 3),
    "lockstep": (8, 22),
    "local steps": (4, 6),
}
"""Least and most steps of a trial, warm-up included; for DiLoCo inner steps before an outer one, of
local steps their rounds."""

TRIAL_S = 330.0
"""Time of a trial's steps, by prediction; a trial makes fewer steps to keep it, down to its
least."""

TRIAL_S_MAX = 900.0
"""Time above which a trial is not made; the report computes its step from bytes and rate."""


def trials(nodes: int, size: str, compute_s: float) -> list[Trial]:
    """All trials that can be asked for: each method on each profile, and Lockstep in slow motion
    too.
    """
    found = []
    for profile in read_profiles().profiles:
        for method, slowed in product(METHODS, (1, *SLOWED)):
            if slowed > 1 and METHODS[method].kind != "lockstep":
                continue  # the others have little arithmetic of their own
            trial = Trial(profile, method, nodes, size, compute_s, slowed=slowed)
            least, most = STEPS[trial.how.pace]
            round_s = slowed * trial.how.round_steps * predicted(trial).seconds
            rounds = max(least, min(most, int(TRIAL_S / round_s)))
            trial = replace(trial, steps=rounds * trial.how.round_steps)
            if trial_s(trial) <= TRIAL_S_MAX:
                found.append(
                    replace(
                        trial,
                        averaging_s=max(AVERAGING_S_LEAST, 2 * predicted(trial).seconds),
                        limit_s=START_S + PATIENCE * trial_s(trial),
                    )
                )
    return found


AVERAGING_S_LEAST = 60.0
"""Least averaging_timeout of hivemind, its default. Its guide asks for twice an all-reduce."""

START_S, PATIENCE = 240.0, 4.0
"""Seconds that a trial may take to start, and times that it may take longer than predicted."""


def trial_s(trial: Trial) -> float:
    """Predicted time of all steps of a trial; for DiLoCo of its inner steps and one outer step."""
    step_s = predicted(trial).seconds
    outer_s = INNER_STEPS * (step_s - trial.compute_s) if trial.method == "diloco" else 0.0
    return trial.slowed * (outer_s + trial.steps * (trial.compute_s if outer_s else step_s))


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists, trains, measures or reports, as asked; 1 when a trial failed."""
    asked = _parser().parse_args(arguments)
    archive = Archive(asked.results, asked.work)
    known = archive.documents()
    wanted = [
        trial
        for compute_s in asked.compute_seconds or PASSES_S
        for trial in trials(asked.nodes, asked.size, compute_s)
        if any(fnmatchcase(trial.name, pattern) for pattern in asked.only or DEFAULT)
        and (trial.name in known or not trial.how.is_record)
    ]
    if asked.list:
        for trial in wanted:
            state = "done " if trial.name in known else "waits"
            seconds = predicted(trial).seconds
            messages.print(
                f"{state} {trial.name}: {trial.steps} steps, {seconds:.1f} s each predicted"
            )
        return 0
    failed: list[str] = []
    if asked.curves:
        run_curves(
            archive,
            open_corpus(asked.data),
            WanTask(),
            only=asked.only or ("*",),
            say=messages.print,
        )
    elif not asked.report:
        failed = measure(wanted, archive)
    archive.merge()
    found, curves = load_all(archive), load_curves(archive)
    lines = rows(found, curves, asked.size, muon_more_s(archive))
    output.print(write_report(asked.work / "report", lines, curves), soft_wrap=True, markup=False)
    if asked.json:
        document = [asdict(row) for row in lines]
        write_json(asked.json, {"rows": document, "measurements": [asdict(one) for one in found]})
    return int(bool(failed))


def measure(wanted: Sequence[Trial], archive: Archive) -> list[str]:
    """Make every trial that has no result yet; before the first one of a profile, check its lines.

    Returns the names of those that failed: they do not stop the others, and the next call makes
    them again.
    """
    if reason := unable():
        raise UsageError(reason)
    failed = []
    known = archive.documents()
    for trial in wanted:
        if trial.name in known:
            continue
        if (links := f"links-{trial.profile}") not in known:
            known[links] = _measure_links(
                trial.profile, trial.nodes, archive.directory / f"{links}.json"
            )
        messages.print(
            f"{trial.name}: {trial.steps} steps, {predicted(trial).seconds:.1f} s each predicted"
        )
        try:
            _measure(trial, archive.directory)
        except (TimeoutError, RuntimeError, LockstepError) as error:
            failed.append(trial.name)
            messages.print(f"{trial.name} failed: {error}", markup=False)
    return failed


def _measure(trial: Trial, directory: Path) -> None:
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lockstep-wan-") as place:
        found = measured(trial, run(trial, Path(place)))
    save(directory, trial, found)
    messages.print(
        f"{trial.name}: {found.seconds:.2f} s a step, {found.up_bytes / 1e6:.3g} MB up, computing "
        f"{found.computing:.2f} of the time; took {time.monotonic() - started_s:.0f} s"
    )


def _measure_links(profile: str, nodes: int, path: Path) -> list[Any]:
    """Check that the lines are as asked, and write what was measured."""
    with laboratory_of(profile, nodes) as laboratory:
        homes = {f"node-{number}": profile for number in range(nodes)}
        links = measure_all(laboratory, homes, lambda done, total: None)
    require_as_asked(links)
    with replacing_file(path) as temporary:
        temporary.write_text(
            json.dumps(document := [link.document() for link in links], indent=1) + "\n"
        )
    return document


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.wan", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        help="trials (curves) whose name matches, as in a shell; repeatable",
    )
    parser.add_argument(
        "--list", action="store_true", help="name the trials and what is done; measure nothing"
    )
    parser.add_argument(
        "--curves", action="store_true", help="train to the fixed loss; no links, no root"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="merge results, write table, CSV and figures; measure nothing",
    )
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument(
        "--size", choices=("20m", "tiny"), default="20m", help="of the network (default: 20m)"
    )
    parser.add_argument(
        "--compute-seconds",
        metavar="SECONDS",
        type=float,
        action="append",
        help="of a forward and backward pass; repeatable "
        f"(default: {' and '.join(f'{each:g}' for each in PASSES_S)})",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("docs/results/data/wan.jsonl"),
        help="file of the results",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("out/wan"), help="directory of new results and reports"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("out/parity/data"), help="directory of the prepared text"
    )
    parser.add_argument("--json", default="", help="write everything there; - prints it")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
