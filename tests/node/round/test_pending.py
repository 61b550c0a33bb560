"""The undecided rounds of a node: each is in one place from its extraction to its decision."""

from node.replica.position import Pending
from node.round.pending import PendingRounds
from protocol import wire_pb2 as wire


def pending(round: int) -> Pending:
    announcement = wire.NodeMessage(announced=wire.Announced(round=round))
    return Pending(announcement, None)


def test_a_round_is_extracted_then_announced_then_settled() -> None:
    rounds = PendingRounds()
    extracted = pending(3)
    rounds.add(extracted)
    assert (rounds.extracted, rounds.announced) == ([extracted], [])
    assert rounds.announce(3) is extracted
    assert (rounds.extracted, rounds.announced, rounds.of(3)) == ([], [extracted], extracted)
    assert rounds.settle(3) is extracted
    assert rounds.saved == ()
    assert rounds.of(3) is None


def test_every_undecided_round_is_saved_oldest_first_announced_or_not() -> None:
    rounds = PendingRounds([pending(5), pending(4)])
    rounds.add(pending(6))
    rounds.announce(4)
    assert [each.round for each in rounds.saved] == [4, 5, 6]
    assert [each.round for each in rounds.extracted] == [5, 6]


def test_a_decision_of_a_round_in_which_nothing_was_announced_settles_nothing() -> None:
    rounds = PendingRounds([pending(5)])
    assert rounds.settle(5) is None
    assert [each.round for each in rounds.extracted] == [5]


def test_with_the_state_every_round_is_discarded() -> None:
    rounds = PendingRounds([pending(5), pending(6)])
    rounds.announce(5)
    rounds.clear()
    assert rounds.saved == ()
