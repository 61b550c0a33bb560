"""What a member says of a state is bounded before the machine hears it."""

import pytest

from coordinator.machine.evaluation.events import AskEvaluation, Evaluated
from coordinator.machine.evaluation.state import Point
from coordinator.machine.run_state import new_state
from coordinator.service import state_words, wire_messages
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.limits import LOSS_NATS_MAX, VALIDATION_WINDOWS_MAX
from protocol.runfile import RunSpec
from tests.coordinator.machine.driver import RUN, A


def said(**changes: object) -> wire.NodeMessage:
    fields = {"round": 3, "loss": 1.5, "samples": 8, "data_sha256": b"d" * 32}
    return wire.NodeMessage(evaluated=wire.Evaluated(**(fields | changes)))  # type: ignore[arg-type]


def test_a_measured_loss_and_the_word_that_there_is_none() -> None:
    assert wire_messages.event_of(A, said()) == Evaluated(A, 3, 1.5, 8, b"d" * 32)
    failed = wire_messages.event_of(A, said(failure="too\nbusy", loss=float("nan")))
    assert failed == Evaluated(A, 3, 0.0, 0, b"", "too?busy")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": float("nan")}, "expected a validation loss from 0 to"),
        ({"loss": float("inf")}, "expected a validation loss from 0 to"),
        ({"loss": -0.1}, "expected a validation loss from 0 to"),
        ({"loss": LOSS_NATS_MAX + 1}, "expected a validation loss from 0 to"),
        ({"samples": 0}, "expected a validation loss over 1 to"),
        ({"samples": VALIDATION_WINDOWS_MAX + 1}, "expected a validation loss over 1 to"),
        ({"round": -1}, "expected a round of at least 0"),
        ({"data_sha256": b"short"}, "expected"),
    ],
)
def test_what_is_out_of_bounds_ends_the_session(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        wire_messages.event_of(A, said(**changes))


def test_the_request_names_the_round_and_the_samples() -> None:
    asked = state_words.evaluation_asked(AskEvaluation(7, A, 64)).evaluation
    assert (asked.round, asked.samples) == (7, 64)


def test_a_reply_to_a_heartbeat_tells_length_and_newest_loss() -> None:
    spec = RunSpec()
    state, reply = new_state(spec, RUN), wire_messages.heartbeat_reply(1, 2, 3)
    state_words.add_course(reply, state, spec)
    assert reply.heartbeat.steps == spec.schedule.steps
    assert not reply.heartbeat.HasField("validation_loss")
    state.evaluation.points.append(Point(9, 9, 2.5, 8, b"", A, "attic"))
    state_words.add_course(reply, state, spec)
    assert (reply.heartbeat.validation_loss, reply.heartbeat.validation_round) == (2.5, 9)
