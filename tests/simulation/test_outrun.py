"""A late joiner behind a thin line arrives in a run of one fast node, though that one keeps few
rounds and few snapshots.
"""

import pytest

from node.gossip.payload_log import PayloadLog
from node.replica.snapshot import Snapshots
from tests.simulation import scenario
from tests.simulation.checkers import Violation, require
from tests.simulation.machinery import installed
from tests.simulation.network import Weather
from tests.simulation.scenario import Scenario

SEED = 289
"""Seed of a run of two that one node may begin; it keeps twelve rounds, and a snapshot of every
fourth."""

PART_BYTES = 16
"""Bytes of a part: the stand-in's snapshot of two thousand bytes comes in over a hundred parts."""

THIN = Weather((8, 40), 0.0, 0.0, 0.0, 0.0)

PATIENCE_MS = 60_000
"""Longest wait for each step: the snapshot takes a few seconds, and the rounds meanwhile take no
longer to replay than to make."""


class Outrun(Scenario):
    """A scenario without faults. `fetched` is the round of the snapshot that arrived, and the
    newest round by then.
    """

    def arrive(self) -> None:
        """Let the late joiner catch up and contribute; `Violation` if it does not in time."""
        (fast, late), words = self.nodes, self.coordinator.referee.words
        with installed(self.world, self.part_bytes):
            try:
                self.coordinator.start()
                fast.start()
                self._until(lambda: len(words) >= 40, PATIENCE_MS)
                self.network.weather = THIN
                late.start()
                self._until(lambda: late.head_round >= 0, PATIENCE_MS)
                self.fetched = late.head_round, len(words)
                self._until(lambda: late.status and late.status.work.rounds_counted, PATIENCE_MS)
                arrived = late.status and late.status.work.rounds_counted
                require(arrived, "outrun by round", len(words), late.in_words())
            finally:
                self.world.end()


@pytest.fixture
def outrun(monkeypatch: pytest.MonkeyPatch) -> Outrun:
    monkeypatch.setattr(scenario, "PART_BYTES_MAX", PART_BYTES)
    return Outrun(SEED)


def test_a_late_joiner_is_not_outrun_by_a_lone_fast_node(outrun: Outrun) -> None:
    outrun.arrive()
    landed, newest = outrun.fetched
    assert newest - landed > outrun.spec.retention.log_rounds, (
        "by their number, neither would have been there any more"
    )


@pytest.mark.parametrize("planted", ["snapshots", "log", "both"])
def test_it_is_outrun_if_the_rounds_or_the_snapshot_that_it_fetches_are_not_kept(
    outrun: Outrun, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    if planted in ("snapshots", "both"):
        monkeypatch.setattr(Snapshots, "_is_held", lambda snapshots, digest: False)
    if planted in ("log", "both"):
        monkeypatch.setattr(PayloadLog, "_needed_from", lambda log: float("inf"))
    with pytest.raises(Violation, match="outrun by round"):
        outrun.arrive()
