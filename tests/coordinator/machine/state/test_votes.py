"""Counting digests: whose report counts, when a digest has won, level votes, late reports."""

from coordinator.machine.state.votes import AWAITED_ROUNDS, ROUNDS_KEPT, DigestReports, DigestTally
from protocol.ids import PeerId
from tests.coordinator.machine.driver import PEERS, A, B, C, D, E


def reports_on(tally: DigestTally, round: int, *voters: PeerId, **digests: int) -> DigestReports:
    """The reports of a round with these voters, once each lower-case name has reported."""
    tally.open(round, set(voters), frozenset())
    for name, digest in digests.items():
        tally.report(round, PEERS["abcde".index(name)], digest, b"")
    return tally.by_round[round]


def test_the_report_of_a_single_voter_wins_when_no_other_is_awaited() -> None:
    assert reports_on(DigestTally(), 0, A, a=7).winner() == 7
    assert reports_on(DigestTally(), 0, A, B, a=7).winner() is None


def test_a_digest_has_won_when_the_awaited_reports_cannot_overtake_it() -> None:
    assert reports_on(DigestTally(), 0, A, B, C, D, E, a=7, b=7).winner() is None
    assert reports_on(DigestTally(), 0, A, B, C, D, E, a=7, b=7, c=7).winner() == 7
    assert reports_on(DigestTally(), 0, A, B, C, D, E, a=7, b=8, c=7).winner() is None
    assert reports_on(DigestTally(), 0, A, B, C, D, E, a=7, b=8, c=7, d=7).winner() == 7


def test_only_voters_count_while_one_of_them_is_awaited() -> None:
    reports = reports_on(DigestTally(), 0, A, B, c=8, d=8, e=8, a=7)
    assert reports.winner() is None
    reports.forget(B)
    assert reports.winner() == 8  # no voter is awaited: every report counts


def test_a_further_node_breaks_a_level_vote() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, B, a=7, b=8)
    assert reports.winner() is None
    tally.report(0, C, 8, b"")
    assert reports.winner() == 8


def test_a_digest_wins_with_the_most_reports_even_if_below_half() -> None:
    assert reports_on(DigestTally(), 0, A, B, C, D, a=7, b=8, c=9, d=7).winner() == 7


def test_two_reports_of_one_digest_make_it_final_and_one_does_not() -> None:
    for digests, final in (({"a": 7}, False), ({"a": 7, "b": 7}, True)):
        reports = reports_on(DigestTally(), 0, A, B, **digests)
        reports.decide(7)
        assert reports.final == final


def test_a_closed_round_drops_its_reports_and_keeps_the_numbers() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, B, C, a=7, b=7)
    reports.decide(7)
    reports.close()
    assert not reports.closed  # C is awaited
    tally.report(0, C, 8, b"")
    reports.decide(7)
    reports.close()
    assert (reports.closed, reports.by_peer, reports.reported, reports.dissent) == (True, {}, 3, 1)
    tally.report(0, D, 9, b"")
    assert (reports.reported, reports.dissent, reports.verdict) == (4, 2, 7)


def test_a_later_report_of_a_node_replaces_its_earlier_one() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, B, C, a=7, b=8, c=7)
    tally.report(0, B, 7, b"")
    assert reports.leading() == (7, 3)


def test_the_snapshot_is_the_majoritys_among_those_with_its_digest() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, B, C)
    for peer, digest, sha in (
        (A, 7, b"x" * 32),
        (B, 8, b"y" * 32),
        (C, 7, b"x" * 32),
        (D, 8, b"y" * 32),
    ):
        tally.report(0, peer, digest, sha)
    reports.decide(7)
    assert reports.snapshot_sha256 == b"x" * 32


def test_a_round_with_two_reports_is_checked_and_is_disputed_at_most_once() -> None:
    tally = DigestTally()
    reports_on(tally, -1, a=1, b=2)
    assert (tally.rounds_checked, tally.rounds_disputed) == (0, 0)
    reports_on(tally, 0, A, B, C, a=7)
    assert (tally.rounds_checked, tally.rounds_disputed) == (0, 0)
    for peer, digest in ((B, 8), (B, 7), (C, 9)):
        tally.report(0, peer, digest, b"")
    assert (tally.rounds_checked, tally.rounds_disputed) == (1, 1)


def test_a_node_that_reports_a_later_round_is_not_awaited_in_earlier_ones() -> None:
    tally = DigestTally()
    for round in range(3):
        reports_on(tally, round, A, B)
    assert tally.skip_earlier(A, 2) == [0, 1]
    assert [tally.by_round[round].awaited for round in range(3)] == [{B}, {B}, {A, B}]


def test_only_the_newest_rounds_are_kept_and_older_ones_take_no_reports() -> None:
    tally = DigestTally()
    for round in range(1000):
        reports_on(tally, round, A, a=round)
    assert len(tally.by_round) == ROUNDS_KEPT
    assert tally.report(1000 - ROUNDS_KEPT - 1, B, 666, b"") is None
    assert tally.report(1000 - ROUNDS_KEPT, B, 666, b"") is not None


def test_a_node_that_is_sent_through_the_log_is_awaited_again_and_its_old_digest_is_kept() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, B, a=7, b=8)
    other = reports_on(tally, 1, A, B, a=1)
    for peer in (A, B):
        tally.send_through_log(0, peer)
    assert (reports.by_peer, reports.before, reports.awaited) == ({}, {A: 7, B: 8}, {A, B})
    assert tally.replays(A, 0)
    assert not tally.replays(A, 1)
    assert (other.by_peer, other.awaited) == ({}, set())  # made on a state that is discarded


def test_the_end_of_a_replay_names_the_nodes_that_returned_and_those_that_changed() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, B, C, a=7, b=8, c=9)
    for peer in (A, B, C):
        tally.send_through_log(0, peer)
    tally.report(0, A, 7, b"")
    tally.report(0, B, 7, b"")
    assert not reports.has_replayed
    assert tally.forget(C) == [0]
    assert reports.has_replayed
    assert tally.end_replay(0) == ([A, B], [B])
    assert not reports.has_replayed


def test_a_verdict_that_is_withdrawn_leaves_the_round_open() -> None:
    tally = DigestTally()
    reports = reports_on(tally, 0, A, a=7)
    reports.decide(7)
    assert tally.recount(0).verdict == 7
    assert tally.last == 7
    tally.reopen(0)
    assert tally.recount(0).verdict is None


def test_no_report_is_awaited_for_ever() -> None:
    tally = DigestTally()
    for round in range(AWAITED_ROUNDS + 1):
        reports_on(tally, round, A, B, a=7)
    assert tally.give_up_overdue() == [0]
    assert tally.by_round[0].awaited == set()
    assert tally.by_round[1].awaited == {B}
    assert tally.give_up_overdue() == []
