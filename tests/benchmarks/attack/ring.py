"""The attackers of a case, who know each other and see what honest authors send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
from torch import Tensor

from protocol.codec.payload import Coefficients
from tests.benchmarks.attack.cases import BOASTERS, ROUNDS, SHADOWS, STALE_EVERY, Case
from tests.benchmarks.attack.payloads import Shadow, boasting, turned
from tests.benchmarks.parity.local_steps import author_batches
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit.local_steps import Author, Batches, part_of
from tests.benchmarks.work_audit.noise import noise


@dataclass(frozen=True, slots=True)
class Scene:
    """What attackers see of a round before they send."""

    number: int
    committed: Mapping[str, Tensor]
    shares: Sequence[Batches]
    """Their own."""
    honest: Sequence[Coefficients]
    rate: float
    code_max: int
    """Code of the largest scale that their samples allow, or of the largest of all."""


class Ring:
    """All attackers of one case."""

    def __init__(self, fixture: Fixture, case: Case, shadow: Shadow | None = None) -> None:
        """`shadow` takes the place of the case's own, if that is one."""
        self._case, self._shadow = case, shadow
        self._authors = [Author(fixture) for _ in range(case.hostile)]
        self._random = np.random.default_rng(case.seed)
        self._kept: list[Coefficients] = []
        beyond = shares_of(fixture, ROUNDS)  # no author's share of any round
        self._poison = beyond[-case.hostile :]

    def payloads(self, scene: Scene) -> list[Coefficients]:
        """What each attacker sends in a round."""
        sent = self._sent(scene)
        if self._case.attack not in BOASTERS:
            return sent
        return [boasting(payload, scene.code_max) for payload in sent]

    def _sent(self, scene: Scene) -> list[Coefficients]:
        shares = scene.shares
        match self._case.attack:
            case "leaving" | "boast":
                return self._trained(scene, shares)
            case "sign flip":
                return [turned(payload) for payload in self._trained(scene, shares)]
            case "random":
                return [noise(scene.honest[0], self._random) for _ in shares]
            case "collusion":  # one author of all their samples has about the sum of what they move
                pairs = zip(*shares, strict=True)
                joint = [np.concatenate(batches) for batches in pairs]
                sent = self._authors[0].train(scene.committed, joint, scene.rate)
                return [turned(sent) for _ in shares]
            case "copycat":
                return list(islice(cycle(scene.honest), len(shares)))
            case "stale":
                if scene.number % STALE_EVERY == 0:
                    self._kept = self._trained(scene, shares)
                return self._kept
            case "half work":
                return self._trained(scene, [part_of(share, 0.5) for share in shares])
            case "poisoned order":
                return self._trained(scene, self._poison)
            case "shadow" | "deep shadow":
                made = (self._shadow or SHADOWS[self._case.attack]).made_of
                trained = self._trained(scene, shares)
                return [made(payload, scene.code_max, scene.number) for payload in trained]
            case _:
                return []

    def _trained(self, scene: Scene, shares: Sequence[Batches]) -> list[Coefficients]:
        """The payloads of authors that train these samples."""
        return [
            author.train(scene.committed, share, scene.rate)
            for author, share in zip(self._authors, shares, strict=True)
        ]


def shares_of(fixture: Fixture, number: int) -> list[Batches]:
    """The batches of each author in a round."""
    first = number * fixture.cell.local_steps
    return author_batches(fixture, range(first, first + fixture.cell.local_steps))
