import pytest

from protocol.errors import LocalProtocolError
from protocol.mixing.consensus import PROJECTION_SIZE, distance, should_only_mix


def test_the_distance_is_the_root_mean_square_of_the_reports_distances_to_their_mean() -> None:
    left, right = [3.0] + [0.0] * 63, [-3.0] + [0.0] * 63
    assert distance([left, right]) == pytest.approx(3)
    assert distance([left, left, left]) == 0
    assert distance([left]) == distance([]) == 0


def test_a_report_of_another_length_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=f"expected {PROJECTION_SIZE} numbers .* got 3"):
        distance([[1.0, 2.0, 3.0]] * 2)


def test_a_round_only_mixes_past_the_critical_multiple_of_an_update() -> None:
    assert not should_only_mix(8.0, update=2.0, critical=4.0)
    assert should_only_mix(8.001, update=2.0, critical=4.0)
    assert not should_only_mix(1e9, update=2.0, critical=0)
