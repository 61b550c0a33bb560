"""What a person sees of a laboratory: nothing wider than 80 columns, nothing left out that
matters.
"""

from pathlib import Path
from typing import Any

from lockstep.cluster.local import ClusterSettings
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.laboratory import Counters
from lockstep.wan.live_table import links_table, render
from tests.lockstep.shared import NODE, printed
from tests.lockstep.wan.test_cluster import PaperLaboratory
from tests.lockstep.wan.test_link_check import GOOD


def test_the_table_fits_80_columns_with_every_node_its_traffic_and_the_use_of_its_line(
    tmp_path: Path,
) -> None:
    laboratory: Any = PaperLaboratory()
    cluster = WanCluster(
        ClusterSettings(tmp_path, tmp_path / "r", tmp_path / "d", nodes=12), laboratory
    )
    cluster.coordinator.status = {
        "round": 1234,
        "phase": "exchanging",
        "steps": {"committed": 1230, "skipped": 4},
    }
    for node in cluster.nodes[1:]:
        node.status = dict(NODE)
    use = cluster.usage["node-11"]
    use.up_bit_s, use.down_bit_s, use.total = 10e6, 220e6, Counters(1, 1)
    links = {
        node.name: HomeLink(LinkDirection(20_000_000), LinkDirection(220_000_000))
        for node in cluster.nodes
    }
    text = printed(render(cluster, links, 2000))
    assert max(map(len, text.splitlines())) <= 80
    for fact in (
        "node-0 ",
        "starting",
        "node-11",
        "123 MB",
        "988 MB",
        "3.2100",
        "1233",
        "50% 100%",
        "step 1230/2000",
    ):
        assert fact in text


def test_the_links_table_shows_asked_and_measured_figures() -> None:
    text = printed(links_table([GOOD]))
    assert max(map(len, text.splitlines())) <= 80
    for fact in ("node-0", "cable", "20 20", "220 220", "25 25", "0.1 0.1"):
        assert fact in text
