"""What a study of either algorithm has found, as JSON keeps it."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.benchmarks.work_audit.demo import Study
from tests.benchmarks.work_audit.local_steps import LocalStudy


def summed_up(study: Study | LocalStudy) -> dict[str, Any]:
    """Least, median and most share of each kind, and every share: a row has the step, then what
    each author's payload has.
    """
    found = {
        "agreement": {
            kind: spread([share for _, share in rows]) for kind, rows in study.shares.items()
        },
        "shared_places": {name: spread(found) for name, found in study.places.items()},
        "by_step": {
            kind: _rows((step, round(share, 4)) for step, share in rows)
            for kind, rows in study.shares.items()
        },
    }
    if isinstance(study, LocalStudy):
        found["crossed"] = {kind: _rows(rows) for kind, rows in study.crossed.items()}
        found["uneven_parts"] = [[step, round(part, 3)] for step, part in study.parts]
    return found


def _rows(found: Iterable[tuple[float, ...]]) -> list[list[float]]:
    """One for each step, in the order of the steps."""
    rows: dict[float, list[float]] = {}
    for step, *values in found:
        rows.setdefault(step, [step]).extend(values)
    return list(rows.values())


def spread(shares: Sequence[float]) -> Mapping[str, float]:
    """The least, the median and the most of some shares, and their number."""
    if not shares:
        return {"audits": 0}
    found = {"least": min(shares), "median": statistics.median(shares), "most": max(shares)}
    return {name: round(value, 4) for name, value in found.items()} | {"audits": len(shares)}
