"""The spread of a measured value."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    """Median, least and most of some values, rounded to a number of digits behind the point."""
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return found if digits is None else {name: round(each, digits) for name, each in found.items()}
