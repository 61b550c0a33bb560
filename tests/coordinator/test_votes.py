"""The majority of digests, level votes, and reports that come too late."""

from coordinator.votes import ROUNDS_KEPT, Tally, Votes
from tests.coordinator.driver import A, B, C, D


def test_one_report_is_a_majority_of_one() -> None:
    assert Votes().report(0, A, 7, b"") == Tally(7, 1, (), b"")


def test_two_against_one_name_the_dissenter() -> None:
    votes = Votes()
    votes.report(0, A, 7, b"")
    votes.report(0, B, 8, b"")
    assert votes.report(0, C, 7, b"") == Tally(7, 3, (B,), b"")


def test_level_votes_have_no_majority_and_no_dissenter() -> None:
    votes = Votes()
    for peer, digest in ((A, 7), (B, 8), (C, 7)):
        votes.report(0, peer, digest, b"")
    assert votes.report(0, D, 8, b"") == Tally(None, 4, (), b"")


def test_most_need_not_be_more_than_half() -> None:
    votes = Votes()
    for peer, digest in ((A, 7), (B, 8), (C, 9)):
        votes.report(0, peer, digest, b"")
    assert votes.report(0, D, 7, b"") == Tally(7, 4, (B, C), b"")


def test_a_later_report_of_a_node_replaces_its_earlier_one() -> None:
    votes = Votes()
    votes.report(0, A, 7, b"")
    votes.report(0, B, 8, b"")
    assert votes.report(0, B, 7, b"") == Tally(7, 2, (), b"")


def test_the_snapshot_is_the_majoritys_among_those_with_its_digest() -> None:
    votes = Votes()
    votes.report(0, A, 7, b"x" * 32)
    votes.report(0, B, 7, b"x" * 32)
    votes.report(0, C, 8, b"y" * 32)
    assert votes.tally(0).snapshot_sha256 == b"x" * 32
    assert votes.report(0, D, 7, b"").snapshot_sha256 == b"x" * 32


def test_rounds_are_checked_by_two_and_disputed_once() -> None:
    votes = Votes()
    votes.report(-1, A, 1, b"")
    votes.report(-1, B, 2, b"")
    assert (votes.rounds_checked, votes.rounds_disputed) == (0, 0)
    votes.report(0, A, 7, b"")
    assert (votes.rounds_checked, votes.rounds_disputed) == (0, 0)
    votes.report(0, B, 8, b"")
    votes.report(0, B, 7, b"")
    votes.report(0, C, 9, b"")
    assert (votes.rounds_checked, votes.rounds_disputed) == (1, 1)


def test_last_is_the_newest_majority() -> None:
    votes = Votes()
    votes.report(4, A, 7, b"")
    votes.report(3, A, 6, b"")
    assert votes.last == 7
    votes.report(5, A, 8, b"")
    votes.report(5, B, 9, b"")
    assert votes.last == 8


def test_memory_is_bounded_and_old_rounds_take_no_votes() -> None:
    votes = Votes()
    for round in range(1000):
        votes.report(round, A, round, b"")
    oldest = 1000 - ROUNDS_KEPT
    assert votes.tally(oldest - 1) == Tally(None, 0, (), b"")
    assert votes.tally(oldest) == Tally(oldest, 1, (), b"")
    assert votes.report(oldest - 1, B, 666, b"") == Tally(None, 0, (), b"")
    assert votes.report(oldest, B, oldest, b"") == Tally(oldest, 2, (), b"")
    assert len(votes.ballots) == ROUNDS_KEPT
    assert votes.last == 999
