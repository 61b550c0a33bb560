"""Feeds mutants to the readers, and keeps those that took a new way through them.

The way of an input is the lines that its refusal went through, or the size of what was taken: a
cheap stand-in for coverage, which needs no instrumented interpreter. A kept input is mutated again,
so the corpus grows into the forms of each reader. Everything follows from the seed.
"""

import contextlib
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from tests.benchmarks.records import read_records, write_records
from tests.fuzz.mutation import mutant
from tests.fuzz.targets import EXPECTED, Target

CORPUS = Path(__file__).with_name("corpus.jsonl.xz")

KEPT_MAX = 400
"""Inputs of one target that are kept."""

BATCH = 100
"""Executions of a target of full share in one turn."""

SLOW_S = 5.0
"""Processor time of one execution from which on it is a finding."""

FINDINGS_MAX = 20
"""Findings after which a run ends."""


@dataclass(slots=True)
class Report:
    """What a run has done."""

    executions: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    """Executions that the reader took."""
    findings: list[tuple[str, bytes, str]] = field(default_factory=list)
    """Target, input and what was wrong."""

    @property
    def total(self) -> int:
        """All executions."""
        return sum(self.executions.values())


class Fuzzer:
    """One run over some targets."""

    def __init__(self, targets: Mapping[str, Target], seed: int) -> None:
        self._targets, self._chance = targets, random.Random(f"fuzz {seed}")
        self.pools = {name: [*target.seeds] for name, target in targets.items()}
        self._ways: dict[str, set[object]] = {name: set() for name in targets}
        self.report = Report()

    def replay(self, corpus: Iterable[tuple[str, bytes]]) -> None:
        """Judge the right inputs and a corpus, and go on from those that show something new."""
        for name, target in self._targets.items():
            for blob in target.seeds:
                self._ways[name].add(self._way(name, blob))
        for name, blob in corpus:
            if name in self._targets:
                self._execute(name, blob)

    def run(self, executions: int) -> None:
        """This many executions, or fewer when there are too many findings."""
        until = self.report.total + executions
        for name in cycle(self._targets):
            turn = min(max(1, BATCH * self._targets[name].share // 100), until - self.report.total)
            for _ in range(turn):
                self._execute(name, mutant(self.pools[name], self._chance))
            if self.report.total >= until or len(self.report.findings) >= FINDINGS_MAX:
                return

    def corpus(self) -> list[tuple[str, bytes]]:
        """The kept inputs, without those that the targets have by themselves."""
        return [
            (name, blob)
            for name, target in self._targets.items()
            for blob in self.pools[name][len(target.seeds) :]
        ]

    def _execute(self, name: str, blob: bytes) -> None:
        way, pool = self._way(name, blob), self.pools[name]
        if way not in self._ways[name]:
            self._ways[name].add(way)
            if len(pool) < KEPT_MAX:
                pool.append(blob)

    def _way(self, name: str, blob: bytes) -> object:
        began_s = time.perf_counter()
        way: object
        self.report.executions[name] += 1
        try:
            self._targets[name].judge(blob)
        except EXPECTED as error:
            lines = traceback.walk_tb(error.__traceback__)
            way = tuple((frame.f_code.co_name, line) for frame, line in lines)
        except Exception as error:
            way = f"{type(error).__name__}: {error}"[:200]
            self.report.findings.append((name, blob, traceback.format_exc()))
        else:
            self.report.taken[name] += 1
            way = len(blob).bit_length()
        if time.perf_counter() - began_s > SLOW_S:
            self._look_at_slow(name, blob)
        return way

    def _look_at_slow(self, name: str, blob: bytes) -> None:
        """Judge once more by the processor's clock, which costs more than most readers."""
        began_s = time.process_time()
        with contextlib.suppress(*EXPECTED):
            self._targets[name].judge(blob)
        if (took_s := time.process_time() - began_s) > SLOW_S:
            self.report.findings.append((name, blob, f"took {took_s:.1f} s"))


def read_corpus(path: Path = CORPUS) -> list[tuple[str, bytes]]:
    """The kept inputs of earlier runs."""
    return [(name, bytes.fromhex(text)) for name, text in read_records(path)]


def write_corpus(corpus: Iterable[tuple[str, bytes]], path: Path = CORPUS) -> None:
    """Keep inputs for later runs."""
    write_records(path, [(name, blob.hex()) for name, blob in corpus])
