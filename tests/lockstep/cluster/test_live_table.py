"""What a person sees of a cluster: nothing wider than 80 columns, nothing left out that matters."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster import live_table
from lockstep.cluster.local import Cluster, ClusterSettings
from tests.lockstep.shared import NODE, printed

COORDINATOR: dict[str, Any] = {
    "round": 1234,
    "phase": "exchanging",
    "reason": "4 members train round 1234",
    "steps": {"committed": 1230, "skipped": 4, "total": 2000},
    "loss": 3.14159,
    "digests": {"agreed": True, "rounds_checked": 1229},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster of which nothing runs, with statuses as if it did."""
    cluster = Cluster(ClusterSettings(tmp_path, tmp_path / "run.toml", tmp_path / "data", 4))
    cluster.coordinator.status = dict(COORDINATOR)
    for node in cluster.nodes[1:]:
        node.status = dict(NODE)
    return cluster


def test_the_table_fits_80_columns_with_every_node_its_traffic_and_digest(cluster: Cluster) -> None:
    text = printed(live_table.render(cluster, 2000))
    assert max(map(len, text.splitlines())) <= 80
    for fact in (
        "node-0",
        "starting",
        "node-3",
        "123 MB",
        "988 MB",
        "e59463a1",
        "step 1230/2000",
        "equal",
    ):
        assert fact in text


def test_the_headline_of_a_long_run_still_fits_one_line() -> None:
    assert len(live_table.headline(COORDINATOR, 2000)) <= 80


def test_replicas_that_differ_are_shown_in_capitals(cluster: Cluster) -> None:
    cluster.coordinator.status["digests"] = {"agreed": False, "rounds_checked": 7}
    assert "DIFFERENT" in printed(live_table.render(cluster, 2000))


def test_before_the_first_step_the_reason_is_shown(cluster: Cluster) -> None:
    waiting = {
        "round": -1,
        "phase": "waiting",
        "reason": "1 of 4 members are ready",
        "steps": {"committed": 0},
    }
    assert live_table.headline(waiting, 60) == "waiting · 1 of 4 members are ready"
    assert "starting" in live_table.headline({}, 60)


def test_without_a_terminal_progress_is_a_line_now_and_then_and_events_are_printed_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(live_table.messages, "print", lambda text, **_: lines.append(str(text)))
    with live_table.shown(cluster, 60) as show:
        for committed in range(61):
            cluster.coordinator.status["steps"] = {"committed": committed, "skipped": 0}
            show(["node-2 was killed by signal 9; starting it again"] if committed == 30 else [])
            show([])
    assert live_table.LINES <= len(lines) <= live_table.LINES + 2
    assert lines.count("node-2 was killed by signal 9; starting it again") == 1
    assert "step 60/60" in lines[-1]
