"""The plan of a round's summers, as an opening tells it."""

import pytest

from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.sums.plan import SumPlan

A, B, C = (PeerId(letter * 32) for letter in "abc")


def told(pairs: list[tuple[PeerId, ...]]) -> wire.RoundOpened:
    peers, rows = SumPlan.told(pairs)
    return wire.RoundOpened(
        round=1, summers=peers, ranges=[wire.RangeSummers(places=row) for row in rows]
    )


def test_a_plan_is_what_was_told() -> None:
    plan = SumPlan.of(told([(C, A), (B, C)]))
    assert plan == SumPlan((frozenset({A, C}), frozenset({B, C})))
    assert plan.ranges == 2
    assert plan.ranges_of(C) == (0, 1)
    assert plan.ranges_of(B) == (1,)
    assert SumPlan.of(wire.RoundOpened(round=1)) is None


def test_one_more_summer_has_the_range_too() -> None:
    plan = SumPlan.of(told([(C, A), (B, C)]))
    assert plan.added(0, B).ranges_of(B) == (0, 1)
    assert plan.added(2, B) == plan.added(-1, B) == plan


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (wire.RoundOpened(summers=[A]), "of 1..64 ranges"),
        (wire.RoundOpened(summers=["nobody"], ranges=[wire.RangeSummers()]), "peer id"),
        (wire.RoundOpened(summers=[A], ranges=[wire.RangeSummers(places=[1])]), "below 1, got 1"),
        (wire.RoundOpened(summers=[A], ranges=[wire.RangeSummers()] * 65), "of 1..64 ranges"),
    ],
)
def test_a_plan_that_names_nobody_is_an_error(opened: wire.RoundOpened, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        SumPlan.of(opened)
