"""The ages of momenta, as far as the log shows them."""

from lockstep.audit.work.ages import GAP_ROUNDS, SETTLE_PAYLOADS, Ages
from protocol.ids import PeerId

A, B = PeerId("a" * 32), PeerId("b" * 32)


def test_an_author_is_as_old_as_its_payloads_are_many() -> None:
    ages = Ages()
    for round in range(0, 20, 2):
        ages.committed(round, {A: 1})
    assert (ages.of(A), ages.of(B)) == (10, 0)
    assert ages.is_settled(A)


def test_one_that_was_away_is_not_settled_for_some_payloads() -> None:
    ages = Ages()
    ages.committed(0, {A: 1, B: 1})
    back = 2 + GAP_ROUNDS
    for round in range(1, back):
        ages.committed(round, {B: 1})
    for number in range(SETTLE_PAYLOADS):
        ages.committed(back + number, {A: 1})
        assert not ages.is_settled(A)
    ages.committed(back + SETTLE_PAYLOADS, {A: 1})
    assert ages.is_settled(A)
    assert ages.of(A) == 2 + SETTLE_PAYLOADS
    assert ages.is_settled(B)


def test_rounds_that_a_replay_comes_to_again_count_once() -> None:
    ages = Ages()
    for round in (0, 1, 2, 1, 2, 3):
        ages.committed(round, {A: 1})
    assert ages.of(A) == 4


def test_a_round_of_far_fewer_samples_than_before_is_not_even_and_one_of_more_is() -> None:
    ages = Ages()
    for round, samples in enumerate((40, 40, 40, 20)):
        assert ages.is_even(A)
        ages.committed(round, {A: samples})
    assert not ages.is_even(A)
    ages.committed(4, {A: 60})
    assert ages.is_even(A)
    for round in range(5, 30):  # it has become slower, and that is usual by now
        ages.committed(round, {A: 20})
    assert ages.is_even(A)
