"""Tables of the laboratory, at 80 columns: links as asked and as measured, and the training."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lockstep.cluster.child import Child
from lockstep.cluster.live_table import Show, committed_steps, headline, shown, total_bytes
from lockstep.console import NARROWEST_COLUMNS, bytes_text, messages, number
from lockstep.wan.cluster import LineUse, WanCluster
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.link_check import CheckedLink

PHASE_COLUMNS = 20
"""Width of a node's phase; longer phases are cut."""


def links_table(links: Sequence[CheckedLink]) -> Table:
    """Each home's line as asked and as measured."""
    table = Table("home", "link", width=NARROWEST_COLUMNS)
    for heading in ("up Mbit/s", "down Mbit/s", "rtt ms", "loss %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for link in links:
        table.add_row(
            link.home,
            link.profile,
            _pair(link.asked_up_bit_s / 1e6, link.measured_up_bit_s / 1e6),
            _pair(link.asked_down_bit_s / 1e6, link.measured_down_bit_s / 1e6),
            _pair(1e3 * link.asked_rtt_s, 1e3 * link.measured_rtt_s),
            _pair(100 * link.asked_loss, 100 * link.measured_loss),
        )
    return table


@contextmanager
def shown_wan(cluster: WanCluster, links: Mapping[str, HomeLink], steps: int) -> Iterator[Show]:
    """Yields the function that shows the cluster's newest statuses; where the output is no terminal
    it prints a line now and then.
    """
    if not messages.is_terminal:
        with shown(cluster, steps) as show:
            yield show
        return
    with Live(console=messages, auto_refresh=False, transient=True) as live:

        def update(events: Sequence[str]) -> None:
            for text in events:
                live.console.print(text, soft_wrap=True)
            live.update(render(cluster, links, steps), refresh=True)

        yield update


def render(cluster: WanCluster, links: Mapping[str, HomeLink], steps: int) -> RenderableType:
    """A table of nodes with the use of their lines, a line about the run and a bar."""
    table = Table("node", "phase", width=NARROWEST_COLUMNS)
    for heading in ("round", "loss", "up", "down", "line use"):
        table.add_column(heading, justify="right", no_wrap=True)
    for node in cluster.nodes:
        table.add_row(*_cells(node, links[node.name], cluster.usage[node.name]))
    status = cluster.coordinator.status
    bar = ProgressBar(total=steps, completed=committed_steps(status), width=NARROWEST_COLUMNS)
    return Group(table, Text(headline(status, steps)), bar)


def _cells(node: Child, link: HomeLink, usage: LineUse) -> tuple[str, ...]:
    use = f"{_share(usage.up_bit_s, link.up)} {_share(usage.down_bit_s, link.down)}"
    status = node.status
    if not status:
        return (
            node.name,
            f"starting, {time.monotonic() - node.started_s:.0f} s",
            "",
            "",
            "",
            "",
            use,
        )
    traffic = status.get("traffic", {})
    up, down = (bytes_text(total_bytes(traffic, way)) for way in ("up", "down"))
    phase = str(status.get("phase", ""))[:PHASE_COLUMNS]
    return node.name, phase, str(status.get("round", "")), number(status.get("loss")), up, down, use


def _share(bit_s: float, way: LinkDirection | None) -> str:
    rate = way.rate_bit_s if way else 0
    return f"{100 * bit_s / rate:.0f}%" if rate else ""


def _pair(asked: float, measured: float) -> str:
    return f"{asked:g} {measured:.3g}"
