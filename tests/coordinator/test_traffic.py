"""Bytes of the coordinator by owner, counted where messages become bytes."""

from coordinator.traffic import CoordinatorTraffic
from protocol import wire_pb2 as wire


def test_messages_are_counted_as_they_become_bytes_and_bytes_become_messages() -> None:
    traffic, heartbeat = (
        CoordinatorTraffic(),
        wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=77)),
    )
    data = heartbeat.SerializeToString()
    assert traffic.counted_decoder(wire.NodeMessage.FromString)(data) == heartbeat
    assert traffic.counted_encoder(wire.NodeMessage.SerializeToString)(heartbeat) == data
    assert traffic.counted_encoder(bytes, "catch_up")(b"x" * 1_000) == b"x" * 1_000
    assert traffic.document() == {
        "control_up_bytes": len(data),
        "control_down_bytes": len(data),
        "catch_up_up_bytes": 1_000,
        "catch_up_down_bytes": 0,
        "overhead_up_bytes": None,
        "overhead_down_bytes": None,
    }


def test_an_overhead_is_asked_for_with_the_bytes_of_all_owners() -> None:
    traffic = CoordinatorTraffic(lambda up, down: (10 * up, 10 * down))
    traffic.counted_encoder(bytes)(b"four")
    traffic.counted_encoder(bytes, "catch_up")(b"fifteen")
    traffic.counted_decoder(bytes)(b"six")
    document = traffic.document()
    assert (document["overhead_up_bytes"], document["overhead_down_bytes"]) == (110, 30)
