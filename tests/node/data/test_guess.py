"""The place of the next round's samples."""

from node.data.guess import next_spans


def test_the_newest_samples_go_on_at_the_pace_of_all_members() -> None:
    assert next_spans([(0, 10)], [(40, 12)]) == [(80, 12)]
    assert next_spans([(3, 2), (30, 10)], [(5, 1), (70, 10)]) == [(110, 10)]


def test_nothing_is_guessed_from_one_round_or_from_samples_that_came_back() -> None:
    assert next_spans([], [(40, 12)]) == []
    assert next_spans([(40, 12)], []) == []
    assert next_spans([(40, 12)], [(3, 12)]) == []
    assert next_spans([(0, 1)], [(5, 0)]) == []
