"""Counting: who has a say, when a digest has won, level votes, and reports that come too late."""

from coordinator.machine.digest_votes import ROUNDS_KEPT, DigestReports, DigestTally
from protocol.ids import PeerId
from tests.coordinator.machine.driver import PEERS, A, B, C, D, E


def ballot_of(votes: DigestTally, round: int, *voters: PeerId, **digests: int) -> DigestReports:
    """A ballot with these voters; then each lower-case name reports its digest."""
    votes.open(round, set(voters), frozenset())
    for name, digest in digests.items():
        votes.take(round, PEERS["abcde".index(name)], digest, b"")
    return votes.ballots[round]


def test_the_word_of_a_single_voter_wins_when_nobody_else_is_awaited() -> None:
    assert ballot_of(DigestTally(), 0, A, a=7).winner() == 7
    assert ballot_of(DigestTally(), 0, A, B, a=7).winner() is None


def test_a_digest_has_won_when_those_awaited_cannot_overtake_it() -> None:
    assert ballot_of(DigestTally(), 0, A, B, C, D, E, a=7, b=7).winner() is None
    assert ballot_of(DigestTally(), 0, A, B, C, D, E, a=7, b=7, c=7).winner() == 7
    assert ballot_of(DigestTally(), 0, A, B, C, D, E, a=7, b=8, c=7).winner() is None
    assert ballot_of(DigestTally(), 0, A, B, C, D, E, a=7, b=8, c=7, d=7).winner() == 7


def test_who_was_not_ready_at_the_commit_has_no_say_while_a_voter_is_awaited() -> None:
    ballot = ballot_of(DigestTally(), 0, A, B, c=8, d=8, e=8, a=7)
    assert ballot.winner() is None
    ballot.forget(B)
    assert ballot.winner() == 8  # nobody is awaited: everyone counts


def test_a_further_node_breaks_a_level_vote() -> None:
    votes = DigestTally()
    ballot = ballot_of(votes, 0, A, B, a=7, b=8)
    assert ballot.winner() is None
    votes.take(0, C, 8, b"")
    assert ballot.winner() == 8


def test_most_need_not_be_more_than_half() -> None:
    assert ballot_of(DigestTally(), 0, A, B, C, D, a=7, b=8, c=9, d=7).winner() == 7


def test_two_with_one_digest_make_it_final_and_one_alone_does_not() -> None:
    for digests, final in (({"a": 7}, False), ({"a": 7, "b": 7}, True)):
        ballot = ballot_of(DigestTally(), 0, A, B, **digests)
        ballot.decide(7)
        assert ballot.final == final


def test_a_closed_ballot_forgets_who_said_what_and_keeps_the_numbers() -> None:
    votes = DigestTally()
    ballot = ballot_of(votes, 0, A, B, C, a=7, b=7)
    ballot.decide(7)
    ballot.close()
    assert not ballot.closed  # C is awaited
    votes.take(0, C, 8, b"")
    ballot.decide(7)
    ballot.close()
    assert (ballot.closed, ballot.reports, ballot.reported, ballot.dissent) == (True, {}, 3, 1)
    votes.take(0, D, 9, b"")
    assert (ballot.reported, ballot.dissent, ballot.verdict) == (4, 2, 7)


def test_a_later_report_of_a_node_replaces_its_earlier_one() -> None:
    votes = DigestTally()
    ballot = ballot_of(votes, 0, A, B, C, a=7, b=8, c=7)
    votes.take(0, B, 7, b"")
    assert ballot.leading() == (7, 3)


def test_the_snapshot_is_the_majoritys_among_those_with_its_digest() -> None:
    votes = DigestTally()
    ballot = ballot_of(votes, 0, A, B, C)
    for peer, digest, sha in (
        (A, 7, b"x" * 32),
        (B, 8, b"y" * 32),
        (C, 7, b"x" * 32),
        (D, 8, b"y" * 32),
    ):
        votes.take(0, peer, digest, sha)
    ballot.decide(7)
    assert ballot.snapshot_sha256 == b"x" * 32


def test_rounds_are_checked_by_two_and_disputed_once() -> None:
    votes = DigestTally()
    ballot_of(votes, -1, a=1, b=2)
    assert (votes.rounds_checked, votes.rounds_disputed) == (0, 0)
    ballot_of(votes, 0, A, B, C, a=7)
    assert (votes.rounds_checked, votes.rounds_disputed) == (0, 0)
    for peer, digest in ((B, 8), (B, 7), (C, 9)):
        votes.take(0, peer, digest, b"")
    assert (votes.rounds_checked, votes.rounds_disputed) == (1, 1)


def test_who_reports_a_later_round_is_awaited_in_earlier_ones_no_more() -> None:
    votes = DigestTally()
    for round in range(3):
        ballot_of(votes, round, A, B)
    assert votes.pass_by(A, 2) == [0, 1]
    assert [votes.ballots[round].awaited for round in range(3)] == [{B}, {B}, {A, B}]


def test_memory_is_bounded_and_old_rounds_take_no_votes() -> None:
    votes = DigestTally()
    for round in range(1000):
        ballot_of(votes, round, A, a=round)
    assert len(votes.ballots) == ROUNDS_KEPT
    assert votes.take(1000 - ROUNDS_KEPT - 1, B, 666, b"") is None
    assert votes.take(1000 - ROUNDS_KEPT, B, 666, b"") is not None
