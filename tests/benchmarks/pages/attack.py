"""The computed parts of docs/results/attack.md."""

import itertools
import textwrap
from functools import cache
from statistics import fmean, stdev
from typing import Any

from tests.benchmarks.attack.cases import (
    ATTACKS,
    AUTHORS,
    HOSTILE,
    LEAVING_ROUNDS,
    ROUNDS,
    Defence,
)
from tests.benchmarks.attack.results import DEFENCES, read
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.tables import DATA, document

LABELS: dict[Defence, str] = {
    "unbounded": "no bound",
    "reach": "reach",
    "median": "reach and median",
    "audited": "bounds and audits",
}


RUINED = 100
"""Nats per byte behind, from which on the number says nothing any more."""


@cache
def data() -> Any:
    """The study's file."""
    return document("attack.json")


def quarter() -> str:
    """What each attack costs with a quarter of attackers, by defence, and when it was found."""
    rows = []
    for attack in ATTACKS:
        found = [_row(attack, AUTHORS // 4, defence) for defence in DEFENCES]
        rows.append((attack, *map(_behind, found), _removal(found[-1])))
    return table(("attack", *map(LABELS.get, DEFENCES), "lost their standing after"), rows, left=1)


def others() -> str:
    """The same with an eighth and three eighths, audited."""
    shares = [hostile for hostile in sorted(HOSTILE) if hostile != AUTHORS // 4]
    rows = []
    for attack in ATTACKS:
        found = [_row(attack, hostile, "audited") for hostile in shares]
        cells = [(_behind(row, ranged=False), _removal(row)) for row in found]
        rows.append((attack, *itertools.chain(*cells)))
    head = [(f"{hostile} of {AUTHORS}", "lost their standing after") for hostile in shares]
    return table(("attack", *itertools.chain(*head)), rows, left=1)


def searched() -> str:
    """What the candidates of the search cost, the worst first."""
    by: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in document("attack-search.json"):
        names = "hostile", "early", "later", "elsewhere", "every"
        key = tuple(each[name] for name in names)
        by.setdefault(key, []).append(each)
    rows = [
        (
            f"{hostile} of {AUTHORS}",
            f"{early:.0%}",
            f"{later:.0%}",
            elsewhere,
            "all" if every == 1 else f"1 of {every}",
            fmean(each["nats_behind"] for each in found),
            ", ".join(f"{each['seed']}: {each['nats_behind']:+.3f}" for each in found),
            "; ".join(_ends(each["attackers_removed"]) for each in found),
        )
        for (hostile, early, later, elsewhere, every), found in by.items()
    ]
    rows.sort(key=lambda row: -row[5])
    head = ("hostile", "first 32 rounds", "later", "scales elsewhere", "in rounds", "behind, mean")
    lines = [(*row[:5], f"{row[5]:+.3f}", *row[6:]) for row in rows]
    return table((*head, "by seed", "lost their standing after round"), lines, left=1)


def _ends(removed: list[int]) -> str:
    return " and ".join(map(str, removed)) or "none"


def _row(attack: str, hostile: int, defence: Defence) -> dict[str, Any] | None:
    wanted = (attack, hostile, defence)
    return next(
        (
            row
            for row in data()["rows"]
            if (row["attack"], row["hostile"], row["defence"]) == wanted
        ),
        None,
    )


def _behind(row: dict[str, Any] | None, *, ranged: bool = True) -> str:
    """The mean over seeds, with the least and the most, and the number of seeds if it is one."""
    if row is None:
        return "-"
    if "behind" not in row:
        return "blew up"
    behind, count = row["behind"], len(row["seeds"])
    if behind["mean"] > RUINED:
        return f"more than {RUINED}"
    if count == 1:
        return f"{behind['mean']:+.3f} (one seed)" if ranged else f"{behind['mean']:+.3f}"
    spread = f" ({behind['least']:+.3f} to {behind['most']:+.3f})" if ranged else f" ({count})"
    return f"{behind['mean']:+.3f}{spread}"


def _removal(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    gone, there = row["removed"], row["attackers"]
    if not gone:
        return f"none of {there}"
    part = "all" if gone == there else f"{gone} of {there}"
    return f"{part}: round {row['rounds']:g}, by {row['audits']:g} of their payloads"


def agreement() -> str:
    """The shares of signs that agree with the movement of an author's own share."""
    found = [
        f"{kind} {each['least']:.2f} to {each['most']:.2f} ({each['median']:.2f}; "
        f"{each['audits']:,})"
        for kind, each in data()["agreement"].items()
    ]
    return filled(
        "Signs that agree with the movement of the author's own share, by weight, least to most "
        f"(median; audits): {', '.join(found)}."
    )


def beside() -> str:
    """What helps to read the tables, in paragraphs."""
    return "\n\n".join((noise(), alarms(), agreement()))


def filled(text: str) -> str:
    """A paragraph of 100 columns."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def alarms() -> str:
    """The audits of honest authors in attacked runs, and those that lost their standing."""
    audited = [each for each in read(DATA / "attack.json") if each.case.defence == "audited"]
    shares = [share for each in audited for share in each.shares(hostile=False)]
    audits = len(shares) + sum(len(each.shares(hostile=True)) for each in audited)
    lost = sum(len(each.removals(hostile=False)) for each in audited)
    authors = sum(AUTHORS - each.case.hostile for each in audited)
    part = audits / (len(audited) * ROUNDS * AUTHORS)
    return filled(
        f"Honest authors in the {len(audited)} audited runs: {lost} of {authors} lost their "
        f"standing; in {len(shares)} audits of them at least {min(shares):.2f} of the signs "
        f"agreed. All audits took {part:.1%} of what eight authors compute."
    )


def noise() -> str:
    """How far runs end from their clean ones whose two authors left after two honest rounds."""
    results = {each.case: each for each in read(DATA / "attack.json")}
    apart = [
        each.nats_per_byte - there.nats_per_byte
        for case, each in results.items()
        if case.attack == "leaving"
        and (there := results.get(case.clean)) is not None
        and each.nats_per_byte is not None
        and there.nats_per_byte is not None
    ]
    spread = f", standard deviation {stdev(apart):.3f}" if len(apart) > 1 else ""
    return filled(
        f"Chance: in {len(apart)} runs one to three authors worked honestly for {LEAVING_ROUNDS} "
        f"rounds and were gone then. They end {fmean(apart):+.3f} from their clean runs on "
        f"average{spread} ({min(apart):+.3f} to {max(apart):+.3f})."
    )
