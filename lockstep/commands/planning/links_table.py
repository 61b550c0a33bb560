"""The links between nodes as a person sees them: rates and round trips of each pair."""

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from protocol.planner.advice import seconds_text
from protocol.planner.links import Network

SHOWN_NODES = 8
"""Nodes for which every pair fits 80 columns; with more, the ends of the ranges are shown."""

NAME_LENGTH = 14
"""Characters of a node's name."""


def links_words(network: Network, measured_pairs: int | None) -> str:
    """The range of round trips and, where `measured_pairs` is known, how much was measured."""
    pairs = [
        2 * float(network.delay_s[first, second])
        for first in range(len(network))
        for second in range(first)
    ]
    if not pairs:
        return "none"
    least, most = min(pairs), max(pairs)
    trips = (
        seconds_text(least) if least == most else f"{seconds_text(least)} to {seconds_text(most)}"
    )
    told = "" if measured_pairs is None else f"; {measured_pairs} of {len(pairs)} pairs measured"
    return f"round trips {trips}{told}"


def links_table(network: Network) -> Group | None:
    """Each pair's rate and round trip, at most 80 columns wide; None for too many nodes, or one."""
    if not 1 < len(network) <= SHOWN_NODES:
        return None
    title = Text("links: Mbit/s from the row to the column, below it ms there and back", "italic")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("node", no_wrap=True)
    for column in range(len(network)):
        table.add_column(str(column + 1), justify="right", no_wrap=True)
    for row, line in enumerate(network.lines):
        cells = [
            "" if row == column else _cell(network, row, column) for column in range(len(network))
        ]
        table.add_row(f"{row + 1} {line.name[:NAME_LENGTH]}", *cells)
    return Group(title, table)


def links_document(network: Network) -> dict[str, object]:
    """Rates and delays of all pairs, in the form that `--matrix` takes."""
    nodes = range(len(network))
    rates, delays = network.rate_bit_s, network.delay_s
    return {
        "nodes": [line.name for line in network.lines],
        "mbit_s": [[0.0 if i == j else float(rates[i, j]) / 1e6 for j in nodes] for i in nodes],
        "one_way_ms": [[1000 * float(delays[i, j]) for j in nodes] for i in nodes],
    }


def _cell(network: Network, row: int, column: int) -> str:
    rate = float(network.rate_bit_s[row, column]) / 1e6
    return f"{rate:.3g}\n{2000 * float(network.delay_s[row, column]):.3g}"
