"""Nodes of speeds 1, 1/2 and 1/8, and one that joins late: every one is counted in every round that
it could be in, samples follow speed, and little of what each would train alone is lost.

The speeds are made by sleeping (`tests.processes.throttled`), so that a machine with two cores can
hold four computers. A busy machine slows passes down all the same. So what is asserted is the part
of the nodes' speeds in work, as the run measures them, that is left when they wait for each other;
on a machine with some time to spare these are the speeds that each has alone.
"""

import json
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import ClusterSettings
from lockstep.run_file import write_run_file
from protocol.codec.commits import Commit
from tests.processes.faulty import FaultyCluster
from tests.processes.throttled import SAMPLE_MS
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LATE = 3

SAMPLE_S = {0: 0.1, 1: 0.2, 2: 0.8, LATE: 0.2}
"""Seconds for a sample of each node."""

COMPUTE_MS = 11_700
"""Fifteen samples of the slowest node fit most of it: it rings no bell much too late."""

ALONE, TOGETHER = 3, 4
"""Rounds of the first three nodes before the late one is started, and rounds of all four that are
measured."""

SHARE_LEAST = 0.9
"""Least part of the summed speeds in work, in the best two successive rounds. Of the summed solo
rates 0.94, 0.89 and 0.77 were kept on two cores that ever more busy processes shared."""


class ThrottledNode(Child):
    """A node whose computer has a given speed."""

    def __init__(self, child: Child, sample_s: float) -> None:
        environment = {**child.environment, SAMPLE_MS: str(round(1000 * sample_s))}
        super().__init__(child.name, child.directory, child.arguments, environment)

    def _spawn(self, command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        python, option, module, *rest = command
        assert module == "lockstep"
        return super()._spawn([python, option, "tests.processes.throttled", *rest], log)


class UnlikeCluster(FaultyCluster):
    """Nodes of unlike speeds; the late one is started by `join_late`."""

    def _node(self, number: int) -> Child:
        child = super()._node(number)
        child.arguments += ("--micro-batch", "1", "--on-battery")
        return ThrottledNode(child, SAMPLE_S[number])

    def start(self) -> None:
        """Start the coordinator and all nodes but the late one."""
        late = self.nodes[LATE]
        lines = self.lines
        self.nodes, self.lines = self.nodes[:LATE], self.lines[:LATE]
        super().start()
        self.nodes, self.lines = [*self.nodes, late], lines

    def join_late(self) -> None:
        """Start the late node."""
        line = self.lines[LATE]
        line.target = self.lines[0].target
        self.nodes[LATE].start(line.address)

    def rounds(self) -> list[dict[str, Any]]:
        """The decided rounds, as the coordinator's page shows them."""
        note = self.coordinator.note()
        assert note
        with urllib.request.urlopen(f"{note['admin']}/rounds.json", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["rounds"]
        return found


@dataclass(frozen=True)
class Measured:
    """What a run of unlike nodes has left."""

    rounds: list[dict[str, Any]]
    commits: list[Commit]
    numbers: dict[str, int]
    """The number of each author."""
    together_from: int
    """A round after which all four are counted."""
    speeds: dict[int, float]
    """Samples a second of each node while it trains, as the run measures them."""

    @property
    def last(self) -> int:
        """The newest committed round."""
        return self.commits[-1].round

    def samples(self, after: int, until: int) -> Counter[int]:
        """Samples of each node in the commits of rounds after `after`, up to `until`."""
        found: Counter[int] = Counter()
        for commit in self.commits:
            for entry in commit.entries if after < commit.round <= until else ():
                found[self.numbers[entry.author]] += entry.samples
        return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    directory = tmp_path_factory.mktemp("unlike")
    spec = tiny_spec(
        steps=10_000,
        members=LATE,
        compute_ms=COMPUTE_MS,
        batch_samples_max=10_000,
        share_samples_first=150,
        stretch=1,
    )
    run_file = directory / "run.toml"
    write_run_file(run_file, spec, force=True)
    data = tiny_corpus(directory / "data")
    cluster = UnlikeCluster(ClusterSettings(directory, run_file, data, nodes=len(SAMPLE_S)))
    try:
        cluster.start()
        cluster.until(lambda: cluster.head() >= 0)
        cluster.until(lambda: cluster.head() >= ALONE)
        cluster.join_late()
        cluster.until(lambda: cluster.counted(-1, *SAMPLE_S))
        first = cluster.head()
        cluster.until(lambda: cluster.head() >= first + TOGETHER)
        numbers = {cluster.peer(number): number for number in SAMPLE_S}
        members = cluster.coordinator.status["members"]
        speeds = {numbers[each["peer_id"]]: each["samples_per_second"] for each in members}
        yield Measured(cluster.rounds(), cluster.commits(), numbers, first, speeds)
    finally:
        cluster.stop()


def test_every_node_is_counted_in_every_round_that_it_could_be_in(measured: Measured) -> None:
    assert {each["outcome"] for each in measured.rounds} == {"committed"}
    alone = [each for each in measured.rounds if each["assigned"] == LATE]
    assert len(alone) > ALONE
    assert [each["contributors"] for each in alone] == [LATE] * len(alone)
    together = measured.rounds[len(alone) :]
    assert {each["assigned"] for each in together} == {len(SAMPLE_S)}
    assert {each["contributors"] for each in together} == {len(SAMPLE_S)}


def test_samples_follow_speed(measured: Measured) -> None:
    found, speeds = measured.samples(measured.together_from, measured.last), measured.speeds
    assert speeds[0] > max(speeds[1], speeds[LATE]) > min(speeds[1], speeds[LATE]) > speeds[2]
    for number, speed in speeds.items():
        assert speed < 1.05 / SAMPLE_S[number], "no node is faster than it is throttled to be"
        assert found[number] == pytest.approx(found[0] * speed / speeds[0], rel=0.25), found


def test_together_they_lose_little_of_what_each_trains_alone(measured: Measured) -> None:
    first, last = measured.together_from, measured.last
    decided = {each["round"]: each["decided_at"] for each in measured.rounds}
    alone, speed = sum(1 / each for each in SAMPLE_S.values()), sum(measured.speeds.values())

    def rate(after: int, until: int) -> float:
        """Samples a second of all nodes in the rounds between."""
        return measured.samples(after, until).total() / (decided[until] - decided[after])

    best = max(rate(round, round + 2) for round in range(first, last - 1))
    print(
        f"{last - first} rounds: {rate(first, last) / alone:.3f} of the summed solo rates; "
        f"{speed / alone:.3f} is left of them on this machine; best two rounds: {best / speed:.3f}"
    )
    assert SHARE_LEAST * speed <= best < 1.1 * alone
