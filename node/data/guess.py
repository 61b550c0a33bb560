"""The samples that a node will most likely train in the next round. Pure.

While the members of a run and their speeds stay, each round's shares lie as far behind the last
one's as all members train in a round. A wrong guess costs some ranges that others will need.
"""

from collections.abc import Sequence

Span = tuple[int, int]
"""First position in the data order, and the number of positions."""


def next_spans(before: Sequence[Span], now: Sequence[Span]) -> list[Span]:
    """Where the last span of a round, its newest samples, would lie in the next one; `before` and
    `now` are the spans of two rounds in a row. Empty where they tell nothing.
    """
    if not before or not now:
        return []
    first, count = now[-1]
    ahead = first - before[-1][0]
    return [(first + ahead, count)] if ahead > 0 and count else []
