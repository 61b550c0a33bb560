"""The summary's figures, against a cluster whose counts are known by hand."""

from typing import Any

import pytest

from lockstep.cluster.summary import FinishedRun, MeasuredLoss, summary, traffic
from protocol.errors import LocalProtocolError
from protocol.runfile import RunSpec

COORDINATOR: dict[str, Any] = {
    "run_id": "ab" * 16,
    "steps": {"committed": 4, "skipped": 1, "total": 4},
    "digests": {
        "agreed": True,
        "rounds_checked": 4,
        "rounds_disputed": 0,
        "last": "e59463a125c7b231",
    },
    "traffic": {"payload_bytes": 8000, "payloads": 8},
    "data": {"samples_trained": 100, "samples_lost": 0},
}
COUNTS = {
    "payload_up_bytes": 4000,
    "payload_down_bytes": 5000,
    "catch_up_up_bytes": 700,
    "catch_up_down_bytes": 1500,
    "control_up_bytes": 300,
    "control_down_bytes": 500,
    "overhead_up_bytes": 500,
    "overhead_down_bytes": None,  # its kernel does not tell
    "duplicate_bytes": 123,
}
NODES = [{"traffic": COUNTS, "payload": {"bits_per_value": bits}} for bits in (9.0, 10.0)]
LOSSES = {3: 2.5, 0: 5.0, 1: 4.0}


def finished(**changes: Any) -> FinishedRun:
    values = {
        "nodes": 2,
        "coordinator": COORDINATOR,
        "node_statuses": NODES,
        "losses": LOSSES,
        "seconds": 12.34,
    }
    return FinishedRun(**(values | changes))


def test_every_promised_figure_is_there_and_right() -> None:
    assert summary(RunSpec(), finished(), MeasuredLoss(1_000_000, 5.5, 2.25)) == {
        "run_id": "ab" * 16,
        "nodes": 2,
        "parameters": 1_000_000,
        "tokens": 100 * 128,
        "rounds": {"committed": 4, "skipped": 1},
        "loss": {"first": 5.0, "last": 2.5, "validation_first": 5.5, "validation_last": 2.25},
        "digests": {"agreed": True, "rounds_checked": 4, "last": "e59463a125c7b231"},
        "consensus": None,  # of nodes that mix parameters
        "traffic": {
            "payload_bytes": 1000,
            "bits_per_value": 9.5,
            # 4000 * 2 nodes / (2 nodes * 5 rounds)
            "payload_up_bytes_per_node_round": 800,
            "payload_down_bytes_per_node_round": 1000,
            "other_up_bytes": 2 * (700 + 300 + 500),
            "other_down_bytes": 2 * (1500 + 500),
            "dense_bf16_bytes": 2_000_000,
            # 2 MB against 800 B of payloads up per node and round
            "times_less_than_dense": 2500.0,
        },
        "seconds": 12.3,
    }


def test_traffic_of_a_node_before_it_was_killed_counts_too() -> None:
    before = traffic(finished(), 1_000_000)
    killed = [*NODES, {"traffic": COUNTS}]
    after = traffic(finished(node_statuses=killed), 1_000_000)
    for name in ("payload_up_bytes_per_node_round", "other_up_bytes"):
        assert after[name] == 1.5 * before[name]
    assert after["times_less_than_dense"] == pytest.approx(
        before["times_less_than_dense"] / 1.5, rel=1e-3
    )
    assert after["bits_per_value"] == before["bits_per_value"]


def test_one_node_alone_uploads_nothing_and_divides_by_nothing() -> None:
    alone = finished(nodes=1, node_statuses=[{"traffic": {}, "payload": {"bits_per_value": None}}])
    assert traffic(alone, 1000)["times_less_than_dense"] == 0.0


def test_a_run_without_a_commit_has_no_summary() -> None:
    with pytest.raises(LocalProtocolError, match="without a committed round"):
        summary(RunSpec(), finished(losses={}), MeasuredLoss(1, 1.0, 1.0))
