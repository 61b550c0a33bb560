"""A word about a state that was lost with its session is said again in the next one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.round.state_requests.publisher import Outlet, Publisher
from node.round.state_requests.requests import PublisherAndEvaluator
from node.round.state_requests.said import WORDS_MAX, Said
from node.system.duty_cycle import DutyKeeper
from protocol import wire_pb2 as wire
from tests.node.round.state_requests.test_publisher import INFO, PARAMETERS, no_loss


def checkpoint(round: int, **about: Any) -> wire.NodeMessage:
    return wire.NodeMessage(checkpoint=wire.CheckpointSaid(round=round, **about))


def evaluated(round: int) -> wire.NodeMessage:
    return wire.NodeMessage(evaluated=wire.Evaluated(round=round, failure="no time"))


def test_the_words_about_the_newest_state_are_repeated_and_no_others() -> None:
    heard: list[wire.NodeMessage] = []
    said = Said(heard.append)
    words = [checkpoint(7), checkpoint(8), evaluated(9), checkpoint(8, failure="disk full")]
    for word in words:
        said.say(word)
    assert heard == words
    heard.clear()
    said.repeat()
    assert heard == [checkpoint(8), checkpoint(8, failure="disk full"), evaluated(9)]


def test_they_are_bounded() -> None:
    heard: list[wire.NodeMessage] = []
    said = Said(heard.append)
    for number in range(3 * WORDS_MAX):
        said.say(checkpoint(7, failure=str(number)))
    heard.clear()
    said.repeat()
    assert len(heard) == WORDS_MAX


@pytest.mark.parametrize("new_request", [False, True])
async def test_a_failure_that_no_session_carried_is_told_in_the_next_one(
    tmp_path: Path, new_request: bool
) -> None:
    sessions: list[list[wire.NodeMessage]] = [[]]

    def send(message: wire.NodeMessage) -> None:
        sessions[-1].append(message)

    said = Said(send)
    outlet = Outlet(tmp_path / "published", said.say, None)  # type: ignore[arg-type]
    publisher = Publisher(INFO, outlet, lambda: PARAMETERS, lambda *_: None, no_loss)
    evaluator = SimpleNamespace(asked=lambda _: None, show_state=None)
    requests = PublisherAndEvaluator(publisher, evaluator, said, DutyKeeper())  # type: ignore[arg-type]
    asked = wire.CoordinatorMessage(checkpoint=wire.CheckpointAsked(round=7, write=True))
    requests.asked(asked)
    await publisher.show_state(8)  # too late: it declines
    sessions.append([])
    if new_request:
        requests.asked(asked)
    requests.repeat()
    lost, heard = sessions
    assert [word.checkpoint.failure for word in lost] == ["its state holds round 8 already"]
    assert heard == ([] if new_request else lost)
