"""What attackers cost: `python -m tests.benchmarks.attack --json PATH`.

Eight authors of local steps in one process, some of them hostile, on the network of the headline
study: every attack of `cases.ATTACKS` at one, two and three attackers, without a bound on what an
author may say, with the engine's, and with the product's audit of authors, each beside a run of the
honest authors alone. PATH is written after each case; the cases that it has are not trained again,
so a stopped study goes on.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from node.data.corpus import Corpus
from tests.benchmarks.attack.cases import TASK, Case, cases, cell_of
from tests.benchmarks.attack.results import read, write
from tests.benchmarks.attack.trial import Result, trial_of
from tests.benchmarks.parity.task import Fixture, open_corpus


def study(found: list[Result], corpus: Corpus, seconds: float) -> Iterator[Result]:
    """Train the cases that are not among `found`, in their order, and add each to them; begin none
    after `seconds`.
    """
    until_s = time.monotonic() + seconds
    there = {each.case for each in found}
    for case in cases():
        if case not in there and time.monotonic() < until_s:
            there.add(case)
            found.append(trained(case, corpus))
            yield found[-1]


def trained(case: Case, corpus: Corpus) -> Result:
    """One case."""
    return trial_of(Fixture(TASK, cell_of(case.seed), corpus), case)


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.attack", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("out/attack/attack.json"))
    parser.add_argument("--data", type=Path, default=Path("out/attack/data"), help="for the text")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after that")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    wanted.json.parent.mkdir(parents=True, exist_ok=True)
    found = read(wanted.json)
    for result in study(found, open_corpus(wanted.data), wanted.seconds):
        end = result.failure or f"{result.nats_per_byte:.4f} nats per byte"
        print(f"{result.case.name}: {end}, {result.seconds:.0f} s", flush=True)
        write(wanted.json, found)


if __name__ == "__main__":
    main()
