"""The computed parts of docs/results/strangers.md."""

from collections.abc import Mapping
from functools import cache, partial

from tests.benchmarks.pages.attack import filled
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.pages.tables import document
from tests.processes.strangers.catalogue import ATTACKS

data = cache(partial(document, "strangers.json"))
"""The kept measurement."""


def attacks() -> str:
    """What each attack cost."""
    rows = [
        (
            each["finding"],
            ATTACKS[each["attack"]].words,
            _parts(each["during"]),
            _parts(each["after"]),
            f"{each['memory_bytes']['median'] / 1e6:.1f}",
            *(
                f"{max(0, each[what]['median']) / 1e3:.0f}"
                for what in ("journal_bytes", "log_bytes")
            ),
            str(len(each["faults"])),
        )
        for each in data()["attacks"]
    ]
    head = (
        *("finding", "attack", "commits during", "commits after", "MB"),
        *("journal kB", "logs kB", "lost"),
    )
    return table(head, rows, left=2)


def worst() -> str:
    """The worst of all, beside the aims."""
    found, seconds = data(), data()["seconds"]
    rows = found["attacks"]
    during, after = (min(rows, key=lambda row: row[of]["least"]) for of in ("during", "after"))
    memory, journal, logs = (
        max(rows, key=lambda row: row[of]["most"])
        for of in ("memory_bytes", "journal_bytes", "log_bytes")
    )
    honest = min(row[of]["least"] for row in rows for of in ("honest_during", "honest_after"))
    quiet = [row["quiet_rate"] for row in rows]
    settled = max(row["seconds_to_settle"]["most"] for row in rows)
    return filled(
        f"{rows[0]['repetitions']} repetitions, {len(rows)} attacks of {seconds['attack_s']:g} s. "
        f"Quiet rates {min(each['least'] for each in quiet):.2f} to "
        f"{max(each['most'] for each in quiet):.2f} commits a second. The worst single "
        f"measurements: commits during an attack {during['during']['least']:.2f} of the quiet rate "
        f"({during['attack']}), after it {after['after']['least']:.2f} ({after['attack']}), honest "
        f"payloads in them {honest:.2f}; "
        f"memory {memory['memory_bytes']['most'] / 1e6:.1f} MB ({memory['attack']}), journal "
        f"{journal['journal_bytes']['most'] / 1e3:.0f} kB ({journal['attack']}), logs "
        f"{logs['log_bytes']['most'] / 1e3:.0f} kB ({logs['attack']}); the next commit of a whole "
        f"run {settled:.1f} s after an attack. Faults of honest processes "
        f"{sum(len(row['faults']) for row in rows)}, disputed states "
        f"{sum(row['disputed'] for row in rows)}; the largest loss that the run stated "
        f"{max(row['loss']['most'] for row in rows):.2f}."
    )


def _parts(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['least']:.2f}-{spread['most']:.2f})"
