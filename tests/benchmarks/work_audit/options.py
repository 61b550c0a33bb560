"""The options of the studies of payloads, and what they ask for."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.headline.study import cell
from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.parity.task import Fixture, open_corpus
from tests.benchmarks.work_audit.demo import Study, cell_of
from tests.benchmarks.work_audit.local_steps import LocalStudy


def asked(program: str, about: str | None, steps: int) -> argparse.ArgumentParser:
    """The options that this study shares with that of copies; `steps` are made unless told."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--steps", type=int, default=steps, help="rounds")
    parser.add_argument("--authors", type=int, default=4)
    parser.add_argument("--top-k", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local-steps", type=int, default=0, metavar="H", help="0: DeMo")
    parser.add_argument("--local-samples", type=int, default=4, help="of one local step")
    parser.add_argument("--rate", type=float, default=0.024, help="of local steps")
    return parser


def study_of(
    wanted: argparse.Namespace,
    scratch: Path,
    *,
    late: bool = False,
    bfloat16: int = 0,
    without: Sequence[str] = (),
) -> Study | LocalStudy:
    """The study that the options ask for."""
    task = replace(Task(), layers=wanted.layers, hidden=wanted.hidden)
    corpus = open_corpus(scratch / "corpus")
    samples = corpus.samples(task.sequence_length)
    if not wanted.local_steps:
        demo = cell_of(wanted.authors, wanted.steps, wanted.top_k, wanted.seed)
        return Study(Fixture(task, demo, corpus), samples, late=late)
    task = replace(task, batch_samples=wanted.authors * wanted.local_samples)
    fixture = Fixture(task, _local_cell(wanted), corpus)
    return LocalStudy(fixture, samples, bfloat16=bfloat16, without=without)


def _local_cell(wanted: argparse.Namespace) -> Cell:
    """The headline's cell of local steps."""
    steps = wanted.steps * wanted.local_steps
    found = cell("local_steps", wanted.rate, wanted.seed, steps, wanted.authors)
    return replace(found, top_k=wanted.top_k, local_steps=wanted.local_steps)
