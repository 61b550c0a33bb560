"""Real ranks of unlike speed: the slow one gets fewer samples, although all wait for it."""

from collections.abc import Sequence

import numpy as np
import pytest

from node.ranks import crew as module
from node.ranks.crew import Crew
from node.ranks.dealing import Speeds, dealt
from node.ranks.replica import replica_of
from protocol.ids import PeerId, RunId
from protocol.runfile import AlgorithmSpec, ModelSpec, RunSpec
from protocol.schedule import scalars
from tests.support.crew import CPU
from tests.support.slowed import slowed
from tests.support.tiny import CONFIG, DEMO, tiny_spec

WIDE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2}
MOVES = tiny_spec(overlap=0, algorithm=AlgorithmSpec(top_k=16, local_samples=16))
VOTES = tiny_spec(overlap=0, algorithm=DEMO)


ROUNDS = range(1, 8)
"""Rounds in which a change of speed shows, however busy the machine is."""


@pytest.mark.parametrize(
    "algorithm", [MOVES, pytest.param(VOTES, marks=pytest.mark.slow)], ids=["local steps", "demo"]
)
def test_a_rank_that_other_work_slows_down_gets_fewer_samples_as_long_as_it_lasts(
    crew_and_pids: tuple[Crew, list[int]], monkeypatch: pytest.MonkeyPatch, algorithm: RunSpec
) -> None:
    spec = algorithm.model_copy(update={"model": ModelSpec(config=CONFIG | WIDE)})
    (crew, pids), shares = crew_and_pids, list[tuple[int, ...]]()

    def noted(samples: int, speeds: Sequence[float], most: int) -> tuple[int, ...]:
        shares.append(dealt(samples, speeds, most))
        return shares[-1]

    monkeypatch.setattr(module, "dealt", noted)
    monkeypatch.setattr(crew, "speeds", Speeds(crew.count))
    replica = replica_of(crew, spec, RunId("a" * 32), CPU, 4, PeerId("b" * 32))

    def part(round: int) -> float:
        """The first follower's part of the samples in the second half of a round's passes."""
        shares.clear()
        tokens = np.random.default_rng(round).integers(0, 256, (3, 16, 65))
        passes = replica.begin([*tokens], None, scalars(spec.schedule, round))
        while passes.next():
            pass
        passes.finish()
        late = shares[len(shares) // 2 :]
        return sum(each[1] for each in late) / sum(map(sum, late))

    before = part(0)
    with slowed(pids[0]):
        meanwhile = next(filter(lambda it: it < 0.75 * before, map(part, ROUNDS)))
    assert any(part(round) > 1.3 * meanwhile for round in ROUNDS)
