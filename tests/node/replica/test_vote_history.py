"""A step adds up the votes of the last rounds, from a round on, and none from before a snapshot."""

from typing import Any

import numpy as np
import pytest
import torch

from node.demo.vote_sum import Contribution
from node.replica.vote_history import CountedPayload, VoteHistory
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode
from protocol.errors import StorageError
from protocol.ids import PeerId
from protocol.runfile import AlgorithmSpec
from protocol.sections.retention import RetentionSpec
from tests.node.links.net import RUN

SHAPE = PayloadShape(1, 4, 1)
ONE, OTHER = PeerId("01" * 16), PeerId("02" * 16)


def votes_of(vote_rounds: int, start: int = 0, snapshot_every: int = 100) -> VoteHistory:
    algorithm = AlgorithmSpec(vote_rounds=vote_rounds, vote_rounds_from=start)
    return VoteHistory(algorithm, RetentionSpec(snapshot_every=snapshot_every))


def counting(round: int, author: PeerId = ONE, weight: int = 1) -> CountedPayload:
    """It votes for the place of its round."""
    coefficients = Coefficients(
        np.ones(1, np.uint16), np.array([round], np.uint16), np.ones(1, np.int16)
    )
    payload = encode(Header(RUN, round, author), coefficients, SHAPE)
    return CountedPayload(round, payload, Contribution(weight, coefficients))


def counted(
    votes: VoteHistory, round: int, *payloads: CountedPayload, step: int | None = None
) -> list[tuple[int, int]]:
    """(round, weight) of all that a step is made of, sorted."""
    joined = votes.joined(round, round if step is None else step, payloads or [counting(round)])
    return sorted((int(each.coefficients.indices[0]), each.weight) for each in joined)


def rounds(votes: VoteHistory, count: int) -> list[list[int]]:
    return [[round for round, _ in counted(votes, number)] for number in range(count)]


def test_a_step_has_the_votes_of_so_many_rounds() -> None:
    assert rounds(votes_of(1), 3) == [[0], [1], [2]]
    assert rounds(votes_of(2), 4) == [[0], [0, 1], [1, 2], [2, 3]]
    assert rounds(votes_of(3), 4) == [[0], [0, 1], [0, 1, 2], [1, 2, 3]]


def test_from_the_first_such_round_on_those_before_it_count_too() -> None:
    assert rounds(votes_of(3, start=2), 4) == [[0], [1], [0, 1, 2], [1, 2, 3]]


def test_over_a_snapshot_nothing_is_remembered() -> None:
    assert rounds(votes_of(3, snapshot_every=3), 7) == [
        [0],
        [0, 1],
        [0, 1, 2],
        [3],
        [3, 4],
        [3, 4, 5],
        [6],
    ]


def test_a_snapshot_is_due_by_steps_and_not_by_rounds() -> None:
    votes = votes_of(2, snapshot_every=2)
    assert [counted(votes, round, step=step) for step, round in enumerate((5, 8, 9, 12))] == [
        [(5, 1)], [(5, 1), (8, 1)], [(9, 1)], [(9, 1), (12, 1)],
    ]  # fmt: skip


def test_votes_keep_their_weights_and_a_commit_without_any_is_passed_over() -> None:
    votes = votes_of(2)
    assert counted(votes, 0, counting(0, ONE, 2), counting(0, OTHER, 3)) == [(0, 2), (0, 3)]
    assert votes.joined(1, 1, []) != []
    assert counted(votes, 2) == [(0, 2), (0, 3), (2, 1)]


def test_who_forgets_begins_anew() -> None:
    votes = votes_of(4)
    rounds(votes, 3)
    votes.forget()
    assert counted(votes, 3) == [(3, 1)]


@pytest.mark.parametrize("vote_rounds", [1, 2, 4])
def test_what_was_saved_is_remembered(vote_rounds: int) -> None:
    votes, again = votes_of(vote_rounds), votes_of(vote_rounds)
    for round in range(6):
        counted(votes, round, counting(round, ONE, 2), counting(round, OTHER))
    rounds(again, 9)  # whatever it remembered before
    again.restore(dict(sorted(votes.tensors().items(), reverse=True)), lambda round: SHAPE)
    for round in (6, 7):
        assert counted(again, round) == counted(votes, round)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda name, tensor: (name, tensor[:-1]),
        lambda name, tensor: (name, torch.cat([tensor, tensor])),
        lambda name, tensor: (name.replace("0/1/", "0/2/"), tensor.flip(0)),
        lambda name, tensor: (name[:-1] + "x", tensor),
        lambda name, tensor: ("of no round", tensor),
    ],
)
def test_what_is_not_what_was_saved_is_refused(damaged: Any) -> None:
    votes = votes_of(2)
    rounds(votes, 1)
    saved = dict(damaged(name, tensor) for name, tensor in votes.tensors().items())
    assert len(saved) == 1
    with pytest.raises(StorageError, match="expected a payload that counted as"):
        votes_of(2).restore(saved, lambda round: SHAPE)
