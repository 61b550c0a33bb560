"""Shows a cluster while it trains: a live table on a terminal, else a line now and then."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster
from lockstep.console import (
    NARROWEST_COLUMNS,
    agreement,
    apart_text,
    bytes_text,
    messages,
    number,
)

LINES = 12
"""Number of progress lines of a whole run where the output is no terminal."""

PHASE_COLUMNS = 22
"""Width of a node's phase; longer phases are cut, so that the table fits 80 columns."""

Show = Callable[[Sequence[str]], None]
"""Function that prints the given events and shows the cluster as it is now."""


@contextmanager
def shown(cluster: Cluster, steps: int) -> Iterator[Show]:
    """Yields the function that shows the cluster's newest statuses."""
    if not messages.is_terminal:
        yield _line_printer(cluster, steps)
        return
    with Live(console=messages, auto_refresh=False, transient=True) as live:

        def show(events: Sequence[str]) -> None:
            for text in events:
                live.console.print(text, soft_wrap=True)
            live.update(render(cluster, steps), refresh=True)

        yield show


def _line_printer(cluster: Cluster, steps: int) -> Show:
    every = max(1, steps // LINES)
    due, phase_shown = every, ""

    def show(events: Sequence[str]) -> None:
        nonlocal due, phase_shown
        for text in events:
            messages.print(text, soft_wrap=True)
        status = cluster.coordinator.status
        committed = committed_steps(status)
        if committed >= due or (committed == 0 and status.get("phase", "") != phase_shown):
            due, phase_shown = committed - committed % every + every, str(status.get("phase", ""))
            messages.print(headline(status, steps), soft_wrap=True)

    return show


def render(cluster: Cluster, steps: int) -> RenderableType:
    """A table of nodes, a line about the run and a bar, in at most 80 columns."""
    table = Table("node", "phase", width=NARROWEST_COLUMNS)
    for heading in ("round", "loss", "up", "down", "digest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for node in cluster.nodes:
        table.add_row(*_cells(node))
    status = cluster.coordinator.status
    bar = ProgressBar(total=steps, completed=committed_steps(status), width=NARROWEST_COLUMNS)
    return Group(table, Text(headline(status, steps)), bar)


def headline(status: Mapping[str, Any], steps: int) -> str:
    """The run in one line."""
    if not status:
        return "starting the coordinator"
    counts, digests = status.get("steps", {}), status.get("digests", {})
    phase, newest = status.get("phase"), int(status.get("round", -1))
    facts = [f"round {newest} {phase}" if newest >= 0 else f"{phase}"]
    if counts.get("committed"):
        facts += [
            f"step {counts['committed']}/{steps}",
            f"loss {status.get('loss') or math.nan:.3f}",
        ]
        facts += [f"{counts['skipped']} skipped"] if counts.get("skipped") else []
        facts.append(
            apart_text(status.get("consensus"))
            or (
                f"replicas {agreement(digests.get('agreed'))}"
                if digests.get("rounds_checked")
                else "no digest yet"
            )
        )
    elif status.get("reason"):
        facts.append(str(status["reason"]))
    return " · ".join(facts)


def committed_steps(status: Mapping[str, Any]) -> int:
    """Steps committed so far, 0 before the first."""
    return int(status.get("steps", {}).get("committed") or 0)


def _cells(node: Child) -> tuple[str, ...]:
    status = node.status
    if not status:
        seconds = f"{time.monotonic() - node.started_s:.0f} s"
        return node.name, f"starting, {seconds}", "", "", "", "", ""
    traffic = status.get("traffic", {})
    up, down = (bytes_text(total_bytes(traffic, way)) for way in ("up", "down"))
    phase = str(status.get("phase", ""))[:PHASE_COLUMNS]
    digest = str(status.get("state_digest") or "")[:8]
    return (
        node.name,
        phase,
        str(status.get("round", "")),
        number(status.get("loss")),
        up,
        down,
        digest,
    )


def total_bytes(traffic: Mapping[str, Any], way: str) -> int:
    """Bytes of one node in one direction ("up" or "down"), all owners together."""
    owners = ("payload", "catch_up", "control", "overhead")
    return sum(int(traffic.get(f"{owner}_{way}_bytes") or 0) for owner in owners)
