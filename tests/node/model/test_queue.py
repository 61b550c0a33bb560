"""A card never waits for the host, and the host knows how far the card is. The card is virtual: no
test here needs one.
"""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from node.model.queue import AtOnce, MadePass, queue_of
from protocol.errors import UnavailableError
from tests.support.card import Card
from tests.support.waiting import PATIENCE_SECONDS

PASS_S, LAUNCH_S = 1.0, 0.3


def give(card: Card, queue: object, passes: int) -> None:
    for _ in range(passes):
        with queue.given(4):  # type: ignore[attr-defined]
            card.now_s += LAUNCH_S
            card.work(PASS_S)


def test_a_card_never_waits_for_the_host_once_it_has_its_first_pass() -> None:
    card = Card()
    queue = card.queue()
    give(card, queue, 1)
    assert card.now_s == card.busy_until_s, "the first one's time is found out"
    card.idle_s = 0.0
    give(card, queue, 5)
    assert card.idle_s == pytest.approx(LAUNCH_S), "only before the second"
    assert card.busy_until_s - card.now_s == pytest.approx(PASS_S), "one pass is behind"
    queue.wait()
    assert card.now_s == card.busy_until_s
    assert queue.newest == MadePass(4, pytest.approx(PASS_S))


def test_the_host_knows_when_the_card_will_have_made_what_it_has() -> None:
    card = Card()
    queue = card.queue()
    assert queue.ahead_s() == 0.0
    give(card, queue, 4)
    assert queue.ahead_s() == pytest.approx(PASS_S)
    card.now_s += 0.25
    assert queue.ahead_s() == pytest.approx(PASS_S - 0.25)
    card.now_s += 5.0
    assert queue.ahead_s() == 0.0
    give(card, queue, 1)
    assert queue.ahead_s() == pytest.approx(PASS_S), "it was idle: what it is given begins now"


def test_a_pass_that_fails_is_not_waited_for() -> None:
    queue = Card().queue()
    with pytest.raises(torch.OutOfMemoryError), queue.given(4):
        raise torch.OutOfMemoryError
    queue.wait()
    assert queue.newest is None


def test_the_next_batch_is_fetched_while_one_is_used_and_no_further_one() -> None:
    drawn = [threading.Event() for _ in range(3)]

    def batches() -> Iterator[np.ndarray]:
        for each in drawn:
            each.set()
            yield np.zeros((2, 9), np.int64)

    card = Card()
    fetched = card.queue().fetched(batches())
    assert not drawn[0].is_set(), "nothing is fetched before the round begins"
    assert next(fetched).shape == (2, 9)
    assert drawn[1].wait(10)
    assert not drawn[2].is_set()
    assert len([*fetched]) == 2
    assert len(card.pinned) == 3


def test_data_that_do_not_come_are_told_where_they_are_missing() -> None:
    def batches() -> Iterator[np.ndarray]:
        yield np.zeros((2, 9), np.int64)
        raise UnavailableError("the data's server is away")

    fetched = Card().queue().fetched(batches())
    next(fetched)
    with pytest.raises(UnavailableError, match="away"):
        next(fetched)
    assert [*fetched] == []


def test_a_round_that_ends_early_leaves_no_thread_behind() -> None:
    others = set(threading.enumerate())
    fetched = Card().queue().fetched(iter([np.zeros((2, 9), np.int64)] * 9))
    next(fetched)
    fetching = set(threading.enumerate()) - others
    assert [each.name for each in fetching] == ["samples_0"]
    fetched.close()  # type: ignore[attr-defined]
    for thread in fetching:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in fetching)


def test_a_processor_makes_a_pass_when_it_is_given_one() -> None:
    queue = queue_of(torch.device("cpu"))
    assert isinstance(queue, AtOnce)
    assert (queue.ahead_s(), queue.newest, queue.is_behind) == (0.0, None, False)
    batches = iter([1, 2])
    assert queue.fetched(batches) is batches
