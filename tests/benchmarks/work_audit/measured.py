"""Measured runs of local steps, as panels for the product's own judge."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.audit.work.judge import RECENT_KEPT, Book, PayloadAudit
from protocol.audit.rule import EARLY_ROUNDS, LESS_AUDITS, PANEL
from protocol.ids import PeerId, sha256
from tests.lockstep.audit.work.panels import DRAW, RUN, round_of

DATA = Path(__file__).parents[3] / "docs" / "results" / "data" / "work-audit-local.json"

CHUNKS = 32
"""Chunks of the measured network."""

SAMPLES = 20
"""Samples of every author, unless told."""

AGE = 500
"""Payloads of an author: old enough to be judged, and as old as the others."""


def author_of(place: int) -> PeerId:
    """The author in this place of a run."""
    return PeerId(f"{place:032x}")


class Panel(dict[str, list[float]]):
    """The agreements of one round by kind: one of each honest author, one of each double."""


class Measured:
    """One measured run, from round `EARLY_ROUNDS` on."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.settings = document["settings"]
        self.compared = CHUNKS * self.settings["top_k"]
        self.crossed: dict[str, list[list[int]]] = document["crossed"]
        rounds: dict[int, Panel] = {}
        for kind, rows in document["by_step"].items():
            for step, *shares in rows:
                rounds.setdefault(step, Panel()).setdefault(kind, []).extend(shares)
        self.rounds = rounds
        """By round, the first ones too."""
        self.panels = [rounds[step] for step in sorted(rounds) if step >= EARLY_ROUNDS]
        self._recent: list[float] = []

    @property
    def authors(self) -> int:
        """Honest ones."""
        return int(self.settings["authors"])

    @property
    def float32(self) -> int:
        """The honest ones that compute in float32, before those in bfloat16."""
        return self.authors - int(self.settings.get("bfloat16", 0))

    @property
    def kinds(self) -> list[str]:
        """Those that were measured."""
        return list(next(iter(self.rounds.values()), ()))

    @property
    def honest(self) -> list[float]:
        """All shares of honest authors, those of the first rounds too."""
        return [share for panel in self.rounds.values() for share in panel["honest"]]

    def looks(
        self, shares: Sequence[float], samples: int = SAMPLES, places: Sequence[int] = range(PANEL)
    ) -> list[PayloadAudit]:
        """Of authors in these places, the first of whom trained that number of samples."""
        counts = (samples, *[SAMPLES] * (len(shares) - 1))
        made = [
            (author_of(place), share, count)
            for place, share, count in zip(places, shares, counts, strict=True)
        ]
        return [
            PayloadAudit(author, sha256(author.encode()), share, self.compared, AGE, samples=count)
            for author, share, count in made
        ]

    def drawn(
        self, kind: str, random: np.random.Generator, audits: int = LESS_AUDITS
    ) -> Iterator[list[PayloadAudit]]:
        """Panels with that double in the place of the first author beside any three others, any
        round again.
        """
        for panel in self._any(random, audits):
            shares = self._mixed(panel, random) if kind == "honest" else panel["honest"]
            others = random.permutation(shares[1:]).tolist()[: PANEL - 1]
            yield self.looks([shares[0] if kind == "honest" else panel[kind][0], *others])

    def honest_panels(
        self, random: np.random.Generator, audits: int
    ) -> Iterator[list[PayloadAudit]]:
        """Panels of any four honest authors, any round again."""
        for panel in self._any(random, audits):
            shares = self._mixed(panel, random)
            places = random.permutation(self.authors).tolist()[:PANEL]
            yield self.looks([shares[place] for place in places], places=places)

    def _mixed(self, panel: Panel, random: np.random.Generator) -> list[float]:
        """The honest shares of a round, each author with that of any on a like machine: they are
        alike, and a few rounds of one show no more than chance.
        """
        shares = panel["honest"]
        low, high = shares[: self.float32], shares[self.float32 :]
        return [*random.permutation(low).tolist(), *random.permutation(high).tolist()]

    def taught(self) -> Book:
        """A book that has seen the honest authors of the run."""
        if not self._recent:
            book = Book("local_steps")
            panels = self.honest_panels(np.random.default_rng(0), RECENT_KEPT)
            for number, panel in enumerate(panels):
                assert not book.take(round_of(number), panel, RUN, DRAW)
            self._recent = book.recent[-RECENT_KEPT:]
        return Book("local_steps", recent=self._recent)

    def _any(self, random: np.random.Generator, audits: int) -> Iterator[Panel]:
        for place in random.integers(len(self.panels), size=audits).tolist():
            yield self.panels[place]


def runs() -> list[Measured]:
    """Those that are kept."""
    return [Measured(document) for document in json.loads(DATA.read_text())]
