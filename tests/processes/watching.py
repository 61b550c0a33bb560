"""Watching a cluster until something holds."""

import time
from collections.abc import Callable

from lockstep.cluster.local import Cluster

PATIENCE_S = 300.0
"""Longer than anything takes on a machine that others use too."""


def watch_until(
    cluster: Cluster, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S
) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            seen = {child.name: (child.status, child.last_words()) for child in cluster.children}
            raise AssertionError(f"expected {what} within {patience_s:.0f} s, got {seen}")
        cluster.watch()
        time.sleep(0.05)


def committed(cluster: Cluster) -> int:
    return int(cluster.coordinator.status.get("steps", {}).get("committed", 0))
