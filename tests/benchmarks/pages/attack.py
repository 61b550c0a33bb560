"""The computed parts of docs/results/attack.md."""

from functools import cache
from statistics import fmean
from typing import Any

from tests.benchmarks.attack.cases import ATTACKS, AUTHORS, HOSTILE, Defence
from tests.benchmarks.attack.results import DEFENCES, read
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.tables import DATA, document

LABELS: dict[Defence, str] = {
    "magnitudes": "magnitudes, no bound",
    "votes": "votes",
    "audited": "votes and audits",
}


@cache
def data() -> Any:
    """The study's file."""
    return document("attack.json")


def costs() -> str:
    """What each attack costs at each number of attackers, by defence, and when it was found."""
    by_key = {(row["attack"], row["hostile"], row["defence"]): row for row in data()["rows"]}
    rows = []
    for attack in ATTACKS:
        for hostile in sorted(HOSTILE):
            found = [by_key.get((attack, hostile, defence)) for defence in DEFENCES]
            if any(found):
                seeds = " / ".join(str(len(row["seeds"])) if row else "0" for row in found)
                head = (attack, f"{hostile} of {AUTHORS}", seeds)
                rows.append((*head, *map(_behind, found), _removal(found[-1])))
    head = ("attack", "attackers", "seeds", *(LABELS[each] for each in DEFENCES))
    return table((*head, "lost their votes after"), rows, left=1)


def _behind(row: dict[str, Any] | None) -> str:
    """The mean over seeds, with the least and the most."""
    if row is None:
        return "-"
    if "behind" not in row:
        return "blew up"
    behind = row["behind"]
    if len(row["seeds"]) == 1:
        return f"{behind['mean']:+.3f}"
    return f"{behind['mean']:+.3f} ({behind['least']:+.3f} to {behind['most']:+.3f})"


def _removal(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    gone, there = row["removed"], row["attackers"]
    if not gone:
        return f"none of {there}"
    part = "all" if gone == there else f"{gone} of {there}"
    return f"{part}: round {row['rounds']:g}, {row['audits']:g} audits"


def clean() -> str:
    """The losses of the honest authors alone."""
    results = [each for each in read(DATA / "attack.json") if each.case.attack == "none"]
    rows = []
    for defence in ("votes", "magnitudes"):
        for hostile in sorted(HOSTILE):
            ends = [
                each.nats_per_byte
                for each in sorted(results, key=lambda each: each.case.seed)
                if (each.case.defence, each.case.hostile) == (defence, hostile)
                and each.nats_per_byte is not None
            ]
            if ends:
                shown = ", ".join(f"{end:.3f}" for end in ends)
                rows.append((LABELS[defence], str(AUTHORS - hostile), shown, f"{fmean(ends):.3f}"))
    return table(("payloads", "honest authors", "by seed", "mean"), rows, left=1)


def agreement() -> str:
    """The shares of signs that agree with the gradient of an author's own share."""
    rows = [
        (kind, f"{found['audits']:,}", *(f"{found[each]:.2f}" for each in SPREAD))
        for kind, found in data()["agreement"].items()
    ]
    return table(("author", "audits", *SPREAD), rows, left=1)


SPREAD = ("least", "median", "most")


def alarms() -> str:
    """Audits of honest authors in attacked runs, and honest authors that lost their votes."""
    rows = [row for row in data()["rows"] if row["defence"] == "audited"]
    audits, removed = (
        sum(row[each] for row in rows) for each in ("honest_audits", "honest_removed")
    )
    return f"Honest authors in these runs: {audits:,} audits, {removed} votes lost."
