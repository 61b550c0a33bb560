"""The search for the worst attacker within the rules: `python -m tests.benchmarks.attack.search`.

One or two attackers of eight (`--hostile`) know every rule and threshold. They do their work, then
turn signs: in which rounds, of how many places, with what scale there and elsewhere
(`payloads.Shadow`). Each candidate is trained beside the honest authors alone, with the product's
auditor; the worst of the first seed are trained with the other seeds. JSON on standard output, what
each costs in nats per byte.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from node.data.corpus import Corpus
from tests.benchmarks.attack.cases import AIM_NATS, TASK, Case, cell_of
from tests.benchmarks.attack.payloads import Shadow
from tests.benchmarks.attack.trial import Result, trial_of
from tests.benchmarks.parity.task import Fixture, open_corpus

SEEDS = (0, 1, 2, 3)

CANDIDATES = (
    Shadow(0.55, 0.22),
    Shadow(0.55, 0.6),
    Shadow(0.55, 0.6, "own"),
    Shadow(0.45, 0.45, "most"),
    Shadow(0.45, 0.2, "most"),
    Shadow(0.3, 0.2, "own"),
    Shadow(0.0, 0.6),
    Shadow(0.0, 0.45, "most"),
    Shadow(0.0, 0.6, every=6),
    Shadow(0.6, 0.6, "most", every=6),
    Shadow(0.45, 0.6, "own", every=2),
    Shadow(0.25, 0.25, "most"),
)

WORST = 2
"""Candidates that are trained with all seeds."""

PREDICTIONS = """
Those that say the least scale where they are honest agree in next to nothing, by weight, and have
no standing after the first audit. Those that keep near one half by weight move next to nothing, and
cost what two authors that left would: below 0.03. The worst turns a fifth to a quarter in all
rounds, which no rule finds in 80 rounds, and costs below 0.03 too. No honest author is accused.
"""
"""Written when the first two were known to lose their standing after round 2."""


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate with one seed."""

    candidate: Shadow
    seed: int
    behind: float
    """Nats per byte behind the honest authors alone."""
    result: Result

    def record(self) -> dict[str, Any]:
        """For people."""
        return {
            "hostile": self.result.case.hostile,
            **asdict(self.candidate),
            "seed": self.seed,
            "nats_behind": round(self.behind, 4),
            "attackers_removed": [found[0] for found in self.result.removals(hostile=True)],
            "honest_removed": len(self.result.removals(hostile=False)),
            "agreement": self.result.shares(hostile=True),
            "honest_agreement": self.result.shares(hostile=False),
        }


class Search:
    """Trains candidates, and the honest authors alone once for each seed."""

    def __init__(self, corpus: Corpus, path: Path, hostile: int) -> None:
        self._corpus, self._path, self._hostile = corpus, path, hostile
        self._clean: dict[int, float] = {}
        self.found: list[Found] = []

    def train(self, candidates: Sequence[Shadow], seeds: Sequence[int]) -> None:
        """Train what was not yet, and write after each."""
        known = {(each.candidate, each.seed) for each in self.found}
        for seed in seeds:
            for candidate in candidates:
                if (candidate, seed) not in known:
                    result = self._trial(Case("shadow", self._hostile, "audited", seed), candidate)
                    end = result.nats_per_byte or float("inf")
                    self.found.append(Found(candidate, seed, end - self._honest(seed), result))
                    self._write()

    def worst(self) -> list[Shadow]:
        """The candidates that cost most with the first seed."""
        first = [each for each in self.found if each.seed == SEEDS[0]]
        first.sort(key=lambda each: -each.behind)
        return [each.candidate for each in first[:WORST]]

    def summary(self) -> Mapping[str, Any]:
        """The mean of each candidate over its seeds, the worst first."""
        by = {each.candidate: list[float]() for each in self.found}
        for each in self.found:
            by[each.candidate].append(each.behind)
        rows = [
            {**asdict(each), "nats_behind": round(fmean(ends), 4), "seeds": len(ends)}
            for each, ends in by.items()
        ]
        rows.sort(key=lambda row: -row["nats_behind"])
        return {"aim": AIM_NATS, "hostile": self._hostile, "worst": rows}

    def _honest(self, seed: int) -> float:
        if seed not in self._clean:
            end = self._trial(Case("none", self._hostile, "median", seed), None).nats_per_byte
            assert end is not None, "honest authors train"
            self._clean[seed] = end
        return self._clean[seed]

    def _trial(self, case: Case, candidate: Shadow | None) -> Result:
        return trial_of(Fixture(TASK, cell_of(case.seed), self._corpus), case, candidate)

    def _write(self) -> None:
        text = json.dumps([each.record() for each in self.found], indent=1)
        self._path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Search, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.attack.search")
    parser.add_argument("--json", type=Path, default=Path("out/attack/search.json"))
    parser.add_argument("--data", type=Path, default=Path("out/attack/data"), help="for the text")
    parser.add_argument("--hostile", type=int, choices=(1, 2), default=2, help="of eight authors")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    search = Search(open_corpus(asked.data), asked.json, asked.hostile)
    search.train(CANDIDATES, SEEDS[:1])
    search.train(search.worst(), SEEDS)
    print(json.dumps(search.summary(), indent=1))


if __name__ == "__main__":
    main()
