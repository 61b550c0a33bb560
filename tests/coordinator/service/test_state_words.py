"""What a member says of a state is bounded before the machine hears it."""

import pytest

from coordinator.machine.evaluation.events import AskEvaluation, Evaluated
from coordinator.machine.evaluation.state import Point
from coordinator.machine.events import LinksMeasured
from coordinator.machine.run_state import new_state
from coordinator.service import state_words, wire_messages
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.limits import LOSS_NATS_MAX, VALIDATION_WINDOWS_MAX
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX, MeasuredLink
from protocol.runfile import RunSpec
from tests.coordinator.machine.driver import RUN, A, B, C


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


def measured(*links: tuple[str, int, int]) -> wire.NodeMessage:
    told = (
        wire.MeasuredLink(peer_id=peer, round_trip_ms=round_trip_ms, bit_per_second=bit_s)
        for peer, round_trip_ms, bit_s in links
    )
    return wire.NodeMessage(links=wire.LinksMeasured(links=told))


def test_measured_links_are_taken_as_they_are_said() -> None:
    event = wire_messages.event_of(A, measured((B, 0, 0), (C, ROUND_TRIP_MS_MAX, BIT_S_MAX)))
    links = MeasuredLink(B, 0, 0), MeasuredLink(C, ROUND_TRIP_MS_MAX, BIT_S_MAX)
    assert event == LinksMeasured(A, links)
    assert wire_messages.event_of(A, measured()) == LinksMeasured(A, ())


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([(f"{number:032x}", 1, 1) for number in range(9, LINKS_MAX + 10)], "at most 64 measured"),
        ([("short", 1, 1)], "expected"),
        ([(C, 1, 1), (B, 1, 1)], "each once and sorted"),
        ([(B, 1, 1), (B, 1, 1)], "each once and sorted"),
        ([(A, 1, 1)], "to other nodes"),
        ([(B, ROUND_TRIP_MS_MAX + 1, 1)], "expected a round trip of at most"),
        ([(B, 1, BIT_S_MAX + 1)], "expected a round trip of at most"),
    ],
)
def test_links_out_of_bounds_end_the_session(
    links: list[tuple[str, int, int]], expected: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        wire_messages.event_of(A, measured(*links))


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
