"""What a node says becomes an event: everything that a stranger can write is bounded."""

import pytest

from coordinator.machine.events.inputs import (
    Announced,
    Applied,
    Audited,
    CheckpointSaid,
    Evaluated,
    Heartbeat,
    Holding,
    Joined,
    Left,
    LinksMeasured,
    Ready,
)
from coordinator.service import node_messages
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError
from protocol.limits import (
    ADDRESSES_MAX,
    LOSS_NATS_MAX,
    MEMBERS_MAX,
    TEXT_BYTES_MAX,
    VALIDATION_WINDOWS_MAX,
)
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX, MeasuredLink
from tests.coordinator.machine.driver import A, B, C

NAN, INFINITY = float("nan"), float("inf")


def announced(**changes: object) -> wire.NodeMessage:
    fields = {
        "round": 3,
        "digest": b"d" * 32,
        "payload_bytes": 9,
        "samples": 8,
        "compute_ms": 7,
        "loss": 1.5,
    }
    return wire.NodeMessage(announced=wire.Announced(**(fields | changes)))


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=5)), Heartbeat(A)),
        (
            wire.NodeMessage(ready=wire.Ready(round=-1, state_digest=2**64 - 1)),
            Ready(A, -1, 2**64 - 1),
        ),
        (announced(), Announced(A, 3, b"d" * 32, 9, 8, 7, 1.5)),
        (announced(digest=b""), Announced(A, 3, b"", 9, 8, 7, 1.5)),
        (
            wire.NodeMessage(holding=wire.Holding(round=3, digests=[b"d" * 32])),
            Holding(A, 3, (b"d" * 32,)),
        ),
        (wire.NodeMessage(applied=wire.Applied(round=3, state_digest=4)), Applied(A, 3, 4, b"")),
        (
            wire.NodeMessage(applied=wire.Applied(round=3, projection=[0.5] * 64)),
            Applied(A, 3, 0, b"", 0, (0.5,) * 64),
        ),
        (
            wire.NodeMessage(audited=wire.Audited(round=-1, state_digest=4, voids=2)),
            Audited(A, -1, 4, b"", 2),
        ),
        (wire.NodeMessage(leave=wire.Leave(reason="x" * 999)), Left(A, "x" * TEXT_BYTES_MAX)),
    ],
)
def test_a_message_becomes_an_event_under_the_senders_proven_name(
    message: wire.NodeMessage, event: object
) -> None:
    assert node_messages.event_of(A, message) == event


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.NodeMessage(), "expected an event of a round, got an empty message"),
        (wire.NodeMessage(hello=wire.Hello()), "expected an event of a round, got hello"),
        (wire.NodeMessage(ready=wire.Ready(round=-2)), "expected a round of at least -1, got -2"),
        (announced(round=-1), "expected a round of at least 0, got -1"),
        (announced(digest=b"d" * 31), "expected a digest of 32 bytes, got 31 bytes"),
        (announced(loss=NAN), "expected a finite loss, got nan"),
        (announced(loss=-INFINITY), "expected a finite loss, got -inf"),
        (announced(samples=2**48), r"expected counts below 2\*\*48"),
        (announced(compute_ms=2**64 - 1), r"expected counts below 2\*\*48"),
        (announced(payload_bytes=2**63), r"expected counts below 2\*\*48"),
        (
            wire.NodeMessage(holding=wire.Holding(round=-1)),
            "expected a round of at least 0, got -1",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"d" * 32], authors=["", ""])),
            "authors of 1",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"d" * 32], authors=["x"])),
            "peer",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"x"])),
            "expected a digest of 32 bytes, got 1 bytes",
        ),
        (
            wire.NodeMessage(holding=wire.Holding(digests=[b"d" * 32] * (MEMBERS_MAX + 1))),
            "expected at most 4096",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(round=-1)),
            "expected a round of at least 0, got -1",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(snapshot_sha256=b"s")),
            "expected a digest of 32 bytes, got 1 bytes",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(projection=[0.5] * 64, update=-1.0)),
            "an update of 0 or more, got -1",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(projection=[0.5] * 63)),
            "expected a projection of 64 finite numbers, or none, got 63",
        ),
        (
            wire.NodeMessage(applied=wire.Applied(projection=[float("nan")] * 64)),
            "expected a projection of 64 finite numbers",
        ),
    ],
)
def test_a_dishonest_message_is_refused(message: wire.NodeMessage, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        node_messages.event_of(A, message)


@pytest.mark.parametrize(("told", "taken"), [(1e308, LOSS_NATS_MAX), (-1e308, 0.0), (2.5, 2.5)])
def test_a_loss_beyond_all_bounds_is_taken_as_the_bound(told: float, taken: float) -> None:
    message = wire.NodeMessage(announced=wire.Announced(round=1, loss=told))
    event = node_messages.event_of(A, message)
    assert isinstance(event, Announced)
    assert event.loss == taken


def test_a_hello_becomes_an_event() -> None:
    hello = wire.Hello(addresses=["a:1", "b:2"], name="n", hardware="h", software="s")
    assert node_messages.joined(A, hello, "9.9.9.9") == Joined(A, ("a:1", "b:2"), "n", "h", "s")


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (
            wire.Hello(addresses=["a:1"] * (ADDRESSES_MAX + 1)),
            f"expected at most {ADDRESSES_MAX} addresses, got 9",
        ),
        (
            wire.Hello(addresses=["a" * (TEXT_BYTES_MAX + 1)]),
            f"expected texts of at most {TEXT_BYTES_MAX} bytes",
        ),
        (
            wire.Hello(name="é" * (TEXT_BYTES_MAX // 2 + 1)),
            f"expected texts of at most {TEXT_BYTES_MAX} bytes",
        ),
        (wire.Hello(hardware="h" * 10_000), "expected texts of at most"),
        (wire.Hello(software="s" * 10_000), "expected texts of at most"),
    ],
)
def test_a_hello_is_bounded(hello: wire.Hello, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{A}: {words}"):
        node_messages.joined(A, hello, "9.9.9.9")


def test_an_address_that_leads_back_to_its_reader_is_told_to_nobody_but_neighbours() -> None:
    hello = wire.Hello(addresses=["127.0.0.1:22", "192.0.2.1:1", "localhost:80", "node:1"])
    assert node_messages.joined(A, hello, "9.9.9.9").addresses == ("192.0.2.1:1", "node:1")
    assert node_messages.joined(A, hello, "127.0.0.1").addresses == tuple(hello.addresses)


def said(**changes: object) -> wire.NodeMessage:
    fields = {"round": 3, "loss": 1.5, "samples": 8, "data_sha256": b"d" * 32}
    return wire.NodeMessage(evaluated=wire.Evaluated(**(fields | changes)))  # type: ignore[arg-type]


def test_a_measured_loss_and_the_word_that_there_is_none() -> None:
    assert node_messages.event_of(A, said()) == Evaluated(A, 3, 1.5, 8, b"d" * 32)
    failed = node_messages.event_of(A, said(failure="too\nbusy", loss=float("nan")))
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
        node_messages.event_of(A, said(**changes))


def measured(*links: tuple[str, int, int]) -> wire.NodeMessage:
    told = (
        wire.MeasuredLink(peer_id=peer, round_trip_ms=round_trip_ms, bit_per_second=bit_s)
        for peer, round_trip_ms, bit_s in links
    )
    return wire.NodeMessage(links=wire.LinksMeasured(links=told))


def test_measured_links_are_taken_as_they_are_said() -> None:
    event = node_messages.event_of(A, measured((B, 0, 0), (C, ROUND_TRIP_MS_MAX, BIT_S_MAX)))
    links = MeasuredLink(B, 0, 0), MeasuredLink(C, ROUND_TRIP_MS_MAX, BIT_S_MAX)
    assert event == LinksMeasured(A, links)
    assert node_messages.event_of(A, measured()) == LinksMeasured(A, ())
    for fault in ({"greedy": True}, {"breaks": True}):
        said = wire.LinksMeasured(links=[wire.MeasuredLink(peer_id=B, **fault)])
        event = node_messages.event_of(A, wire.NodeMessage(links=said))
        assert event == LinksMeasured(A, (MeasuredLink(B, 0, **fault),))


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
        node_messages.event_of(A, measured(*links))


def placed(url: str) -> wire.NodeMessage:
    return wire.NodeMessage(checkpoint=wire.CheckpointSaid(round=3, sha256=b"s" * 32, url=url))


@pytest.mark.parametrize("url", ["", "hf://me/model", "https://example.org/model"])
def test_the_place_of_a_model_is_taken_where_everybody_reaches_it(url: str) -> None:
    event = node_messages.event_of(A, placed(url))
    assert isinstance(event, CheckpointSaid)
    assert event.url == url


@pytest.mark.parametrize(
    "url", ["file:///etc", "http://192.168.1.1/a", "https://me:secret@example.org/a"]
)
def test_another_place_of_a_model_ends_the_session(url: str) -> None:
    with pytest.raises(RemoteProtocolError, match="the URL of a model that everybody can reach"):
        node_messages.event_of(A, placed(url))
