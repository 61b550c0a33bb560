"""Gossip over home links, simulated: `python -m tests.benchmarks.gossip [--json PATH]`.

Real machines of a node on the fluid network of tests/simulation/gossip.py, in virtual time: the
same input gives the same table on every machine. Each row is several rounds of one group of homes:
the first, the median and the slowest of them in seconds, the bound that nothing can beat, the naive
push of every payload to all, and the bytes that came twice. "At once" is the same without the order
of uploads: every request is served at once, and a pull hears nothing of its progress.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.fluid import push_to_all_ms
from tests.simulation.gossip import gossip
from tests.simulation.gossip_setting import (
    EQUAL,
    PROFILES,
    Home,
    Setting,
    bound_ms,
    home,
    links_among,
)

SIZES = {"1 MB": 1_000_000, "30 kB": 30_000}
SLOW = home(2, 20, 25)
NEIGHBOURS = 8


class Row(NamedTuple):
    """A group of homes and how it gossips."""

    name: str
    setting: Setting


def rows(size: int, rounds: int) -> Iterator[Row]:
    """All rows for one payload size."""

    def row(name: str, homes: tuple[Home, ...], **how: Any) -> Row:
        return Row(
            name, Setting(homes, size, **{"neighbours": NEIGHBOURS, "rounds": rounds, **how})
        )

    for count in (4, 8, 16):
        yield row(f"{count} equal", (EQUAL,) * count)
    for count in (4, 8, 16):
        yield row(f"{count}, one slow", (*(EQUAL,) * (count - 1), SLOW))
    for profile in ("dsl", "cable", "fibre", "lte", "5g-fixed", "starlink"):
        yield row(f"8 {profile}", (PROFILES[profile],) * 8)
    unlike = tuple(PROFILES.values())
    yield row("7 unlike", unlike)
    yield row("14 unlike", unlike * 2)
    yield row("12 unlike, no dsl-poor", unlike[1:] * 2)
    yield row("12 of these, 4 neighbours", unlike[1:] * 2, neighbours=4)
    yield row("16 equal, 4 neighbours", (EQUAL,) * 16, neighbours=4)
    yield row("16 equal, jitter 1 s", (EQUAL,) * 16, jitter_ms=1000)
    yield row("64 equal, 4 neighbours", (EQUAL,) * 64, neighbours=4, rounds=1)
    behind_nat = links_among(*([8, other] for other in range(8)))
    yield row(
        "8 behind NAT, a relay", ((*(EQUAL,) * 8, PROFILES["fibre"])), relays=1, links=behind_nat
    )


def measured(row: Row, size_name: str) -> dict[str, Any]:
    """One row as a document."""
    setting = row.setting
    members = setting.homes[: len(setting.homes) - setting.relays]
    result = gossip(setting)
    bound, naive = bound_ms(members, setting.size), push_to_all_ms(members, setting.size)
    at_once = (
        gossip(Setting(setting.homes, setting.size, setting.neighbours, ordered=False))
        if not setting.links
        else None
    )
    median, slowest = statistics.median(result.round_ms), max(result.round_ms)
    return {
        "homes": row.name,
        "payload": size_name,
        "neighbours": setting.neighbours,
        "round_trip_ms": 4 * max(home.delay_ms for home in members),
        "bound_s": bound / 1000,
        "push_to_all_s": naive / 1000,
        "at_once_s": at_once and at_once.round_ms[0] / 1000,
        "first_s": result.round_ms[0] / 1000,
        "median_s": median / 1000,
        "slowest_s": slowest / 1000,
        "slowest_over_bound": slowest / bound,
        "push_to_all_over_median": naive / median,
        "push_to_all_over_slowest": naive / slowest,
        "duplicate_share": result.duplicate_share,
        "control_share": result.other_share,
    }


COLUMNS = (
    *("homes", "bound", "push to all", "at once", "first", "median", "slowest"),
    *("slowest/bound", "push/median", "twice", "control"),
)


def line(row: dict[str, Any]) -> str:
    """A row for people; seconds, shares in percent."""
    at_once = f"{row['at_once_s']:.2f}" if row["at_once_s"] else "-"
    seconds = " | ".join(f"{row[name]:.2f}" for name in ("first_s", "median_s", "slowest_s"))
    ratios = f"{row['slowest_over_bound']:.2f} | {row['push_to_all_over_median']:.1f}"
    shares = " | ".join(f"{100 * row[name]:.2f} %" for name in ("duplicate_share", "control_share"))
    times = f"{row['bound_s']:.2f} | {row['push_to_all_s']:.2f} | {at_once} | {seconds}"
    return f"| {row['homes']} | {times} | {ratios} | {shares} |"


def main() -> None:
    """Simulate everything and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gossip",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document = []
    for name, size in SIZES.items():
        usual = f"{arguments.rounds} rounds, {NEIGHBOURS} neighbours unless said"
        print(f"\nPayloads of {name}, {usual}; seconds\n")
        print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n")
        for row in rows(size, arguments.rounds):
            document.append(measured(row, name))
            print(line(document[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
