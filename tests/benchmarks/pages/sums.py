"""The computed part of docs/results/sums.md: a crowd behind home links, with summers and without
(`tests.benchmarks.sums.homes`).
"""

from functools import cache
from typing import Any

from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.tables import DATA
from tests.benchmarks.records import read_records

NAMES = {"everybody": "every payload to everybody", "sums": "summers"}


@cache
def data() -> list[dict[str, Any]]:
    """The kept runs."""
    return read_records(DATA / "sums-homes.jsonl")


def homes() -> str:
    """Bytes, seconds and loss of each run."""
    rows = [
        (
            each["profile"],
            NAMES[each["arm"]],
            _kilobytes(each["payloads"]["payload_up_bytes_per_node_round"]),
            _kilobytes(each["payloads"]["payload_down_bytes_per_node_round"]),
            f"{_kilobytes(each['up_bytes'])} / {_kilobytes(each['down_bytes'])}",
            "{1:.1f} ({0:.1f}-{2:.1f})".format(*each["round_s_quartiles"]),
            *to_loss(each, target(each["profile"])),
            f"{each['validation'][1]:.3f}",
        )
        for each in data()
    ]
    head = ("link", "what is sent", "payloads up, kB", "down", "whole line, up / down")
    more = ("s a round", "rounds to the loss", "s to the loss", "loss at the end")
    return table((*head, *more), rows, left=2)


def target(profile: str) -> float:
    """The smoothed loss that all runs on a link have reached: the worst of their ends."""
    return max(each["course"][-1][2] for each in data() if each["profile"] == profile)


def to_loss(run: dict[str, Any], loss: float) -> tuple[str, str]:
    """The rounds that a run needs to the loss, and its seconds since the first commit."""
    seconds, round, _ = next(each for each in run["course"] if each[2] <= loss)
    return str(round + 1), f"{seconds:.0f}"


def _kilobytes(count: float) -> str:
    return f"{count / 1000:.0f}"
