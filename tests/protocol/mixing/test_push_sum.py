"""Over one-way links plain averaging misses the mean, and push-sum does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.mixing.push_sum import Arrow, Pushed, exponential_arrows, push_matrix
from protocol.mixing.topologies import Topology, mixing_matrix


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{number:032x}") for number in range(count)]


def star_and_ring() -> list[Arrow]:
    """A ring one way, and everybody sends to member 0 besides, which answers nobody but the next:
    as with one well-reachable machine among four behind filters.
    """
    members = peers(5)
    ring = [(members[place], members[(place + 1) % 5]) for place in range(5)]
    return ring + [(members[place], members[0]) for place in (1, 2, 3)]


def plain(arrows: list[Arrow], count: int) -> np.ndarray:
    """Plain averaging: each takes equal parts of itself and of what it received."""
    matrix = np.eye(count)
    for sender, receiver in arrows:
        matrix[int(receiver, 16), int(sender, 16)] = 1
    averaged: np.ndarray = matrix / matrix.sum(axis=1, keepdims=True)
    return averaged


def test_plain_averaging_over_one_way_links_is_biased_and_push_sum_is_not() -> None:
    values = np.arange(5.0)[:, None] * [1, -3]
    averaged, pushed = values, Pushed.of(values)
    for _ in range(200):
        averaged = plain(star_and_ring(), 5) @ averaged
        pushed = pushed.mixed(push_matrix(star_and_ring(), peers(5)))
    mean = values.mean(axis=0)
    assert np.ptp(averaged, axis=0).max() < 1e-9  # they agree,
    assert abs(averaged[0] - mean).max() > 0.1  # and not on the mean
    np.testing.assert_allclose(pushed.values, np.broadcast_to(mean, (5, 2)), atol=1e-12)
    assert np.ptp(pushed.weights) > 0.5  # the weights took up the bias


def test_where_one_direction_is_lost_edges_that_fail_for_both_ends_keep_the_mean() -> None:
    """The rule of a run's commits: what crossed one way alone is left out. To take it moves the
    mean.
    """
    members, values = peers(8), np.arange(8.0)
    kept, taken = values, values
    for round in range(60):
        planned = Topology("one-peer-exponential").edges(round, members)
        arrows = {arrow for edge in planned for arrow in (edge, edge[::-1])}
        arrows.discard((members[0], members[1]))
        committed = [edge for edge in planned if {edge, edge[::-1]} <= arrows]
        kept = mixing_matrix(committed, members) @ kept
        taken = plain(sorted(arrows), 8) @ taken
    np.testing.assert_allclose(kept, values.mean(), atol=1e-6)
    assert np.ptp(taken) < 1e-6
    assert abs(taken[0] - values.mean()) > 0.05


@settings(max_examples=50)
@given(st.integers(2, 17), st.integers(0, 2**32 - 1))
def test_lost_arrows_and_local_changes_keep_the_mean(count: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    state = Pushed.of(chance.normal(size=(count, 3)))
    total = state.sums.sum(axis=0)
    for round in range(60):
        arrows = [
            arrow for arrow in exponential_arrows(round, peers(count)) if chance.random() < 0.8
        ]
        state = state.mixed(push_matrix(arrows, peers(count)))
        changes = chance.normal(size=(count, 3)) if round < 10 else np.zeros((count, 3))
        state, total = state.moved(changes), total + changes.sum(axis=0)
        np.testing.assert_allclose(state.sums.sum(axis=0), total, atol=1e-10)
        assert state.weights.sum() == pytest.approx(count)
        assert (state.weights > 0).all()


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 13])
def test_exponential_arrows_send_and_receive_once_and_reach_the_mean(count: int) -> None:
    state = Pushed.of(np.arange(count, dtype=float))
    for round in range(120):
        arrows = exponential_arrows(round, peers(count))
        assert sorted(sender for sender, _ in arrows) == peers(count)
        assert sorted(receiver for _, receiver in arrows) == peers(count)
        state = state.mixed(push_matrix(arrows, peers(count)))
    np.testing.assert_allclose(state.values, (count - 1) / 2, atol=1e-9)


def test_one_member_sends_to_nobody_and_wrong_arrows_are_named() -> None:
    a, b = peers(2)
    assert exponential_arrows(3, [a]) == ()
    with pytest.raises(LocalProtocolError, match="two members"):
        push_matrix([(a, PeerId("f" * 32))], [a, b])
    with pytest.raises(LocalProtocolError, match="twice"):
        push_matrix([(a, b), (a, b)], [a, b])
    with pytest.raises(LocalProtocolError, match="from 0 on"):
        exponential_arrows(-1, [a, b])
