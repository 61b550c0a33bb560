"""The attackers of a case, who know each other and see what honest authors send."""

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt

from tests.benchmarks.attack.cases import AUTHORS, STALE_EVERY, Case
from tests.benchmarks.attack.payloads import Author, Payload, boasting, noise
from tests.benchmarks.parity.task import Fixture

Samples = npt.NDArray[np.int64]

BOASTERS = ("sign flip", "random", "collusion")
"""Attacks that gain by larger coefficients."""


class Ring:
    """All attackers of one case."""

    def __init__(self, fixture: Fixture, case: Case) -> None:
        self._fixture, self._case = fixture, case
        self._authors = [Author(fixture) for _ in range(case.hostile)]
        self._random = np.random.default_rng(case.seed)
        self._kept: list[Payload] = []
        beyond = shares_of(fixture, fixture.cell.steps)  # no author's share of any round
        self._poison = beyond[-case.hostile :]

    def payloads(
        self, number: int, shares: Sequence[Samples], honest: Sequence[Payload]
    ) -> list[Payload]:
        """What each attacker sends in a round, given its share and the honest payloads."""
        sent = self._sent(number, shares, honest)
        boasts = self._case.defence == "magnitudes" and self._case.attack in BOASTERS
        return [boasting(payload) for payload in sent] if boasts else sent

    def _sent(
        self, number: int, shares: Sequence[Samples], honest: Sequence[Payload]
    ) -> list[Payload]:
        match self._case.attack:
            case "leaving":
                return self._trained(shares)
            case "sign flip":
                return [payload.times(-1) for payload in self._trained(shares)]
            case "random":
                return [noise(honest[0], self._random) for _ in shares]
            case "collusion":  # momenta add up, so one author of all their samples has the sum
                joint = self._authors[0].payload(self._fixture.gradients(np.concatenate(shares)))
                return [joint.times(-1) for _ in shares]
            case "copycat":
                return list(islice(cycle(honest), len(shares)))
            case "stale":
                if number % STALE_EVERY == 0:
                    self._kept = self._trained(shares)
                return self._kept
            case "half work":
                return self._trained([share[: len(share) // 2] for share in shares])
            case "poisoned order":
                return self._trained(self._poison)
            case _:
                return []

    def _trained(self, shares: Sequence[Samples]) -> list[Payload]:
        """The payloads of authors that train these samples."""
        return [
            author.payload(self._fixture.gradients(share))
            for author, share in zip(self._authors, shares, strict=True)
        ]


def shares_of(fixture: Fixture, number: int) -> list[Samples]:
    """The samples of each author in a round."""
    length = fixture.task.sequence_length + 1
    return list(fixture.samples(number).reshape(AUTHORS, -1, length))
