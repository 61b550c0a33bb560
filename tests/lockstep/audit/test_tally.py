"""The comparison of replayed states, and the judgement whether an auditor keeps up, in virtual
time.
"""

from lockstep.audit.tally import (
    BEHIND_ROUNDS,
    SAY_EVERY_S,
    WAITING_MAX,
    WINDOW_S,
    KeepingUp,
    Tally,
)


def test_a_state_is_equal_whenever_the_majority_s_digest_comes() -> None:
    tally = Tally()
    for round in range(3):
        tally.replayed(round, 100 + round)
    assert [tally.reported(round, 100 + round, 1) for round in (2, 0, 1)] == ["", "", ""]
    assert (tally.compared, tally.differences, tally.waiting) == (3, 0, {})


def test_another_digest_is_a_difference_only_at_the_second_look() -> None:
    tally = Tally()
    tally.replayed(4, 1)
    assert tally.reported(4, 2, look=1) == ""
    assert tally.reported(4, 2, look=1) == "", "the same look"
    assert "leads to state 0000000000000001" in tally.reported(4, 2, look=2)
    assert (tally.differences, tally.compared) == (1, 0)
    assert tally.reported(4, 2, look=3) == "", "said once"
    assert tally.first_difference is not None
    assert tally.first_difference.round == 4


def test_a_digest_that_is_corrected_before_the_second_look_is_no_difference() -> None:
    tally = Tally()
    tally.replayed(4, 1)
    assert tally.reported(4, 2, look=1) == ""
    assert tally.reported(4, 3, look=2) == "", "yet another one"
    assert tally.reported(4, 1, look=3) == ""
    assert (tally.compared, tally.differences, tally.suspected) == (1, 0, {})


def test_the_first_difference_stays_the_first() -> None:
    tally = Tally()
    for round in (5, 6):
        tally.replayed(round, 1)
        tally.reported(round, 2, look=round)
        assert tally.reported(round, 2, look=round + 1)
    assert tally.first_difference is not None
    assert (tally.first_difference.round, tally.differences) == (5, 2)


def test_rounds_that_nobody_reports_are_given_up_and_counted() -> None:
    tally = Tally()
    for round in range(WAITING_MAX + 3):
        tally.replayed(round, 1)
    assert (tally.unreported, min(tally.waiting)) == (3, 3)
    assert tally.reported(1, 2, look=9) == ""


def test_one_that_catches_up_keeps_up_and_one_whose_lag_grows_does_not() -> None:
    pace = KeepingUp()
    assert not pace.look(0, 900)
    assert not pace.look(WINDOW_S, 700)
    assert pace.words == "", "it comes nearer"
    assert pace.look(2 * WINDOW_S, 710)
    assert "710 rounds behind, 700 were it 60 s ago" in pace.words
    assert not pace.look(2.5 * WINDOW_S, 600), "not looked at before the window is over"
    assert pace.look(3 * WINDOW_S, 500)
    assert pace.words == ""


def test_the_newest_rounds_are_no_lag() -> None:
    pace = KeepingUp()
    assert not any(pace.look(second * WINDOW_S, BEHIND_ROUNDS) for second in range(5))
    assert pace.look(6 * WINDOW_S, BEHIND_ROUNDS + 1), "it grows"
    assert pace.look(6 * WINDOW_S + 1, BEHIND_ROUNDS), "back at once"


def test_it_says_how_far_it_is_from_time_to_time() -> None:
    pace = KeepingUp()
    assert [pace.due(second) for second in (0, 1, SAY_EVERY_S, SAY_EVERY_S + 1)] == [
        True,
        False,
        True,
        False,
    ]
