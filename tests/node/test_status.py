"""What a node's status page knows of the run, from the replies to its heartbeats."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import generate_latest

from node.control.client import CoordinatorClient
from node.owner_view import owner_view
from node.status import NodeStatus, registry
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec

INFO = RunInfo(RunSpec(), RunId("12" * 16), b"k" * 32)


def test_the_newest_validation_loss_is_kept_whoever_measured_it() -> None:
    status = NodeStatus("peer", "name")
    assert status.document()["validation"] == {"loss": None, "round": None}
    assert b"validation" not in generate_latest(registry(status))
    status.heard(wire.HeartbeatReply(validation_loss=2.5, validation_round=9))
    status.heard(wire.HeartbeatReply())
    status.heard_validation(1.5, 4)
    assert status.document()["validation"] == {"loss": 2.5, "round": 9}
    assert b"lockstep_node_validation_loss 2.5" in generate_latest(registry(status))


def test_of_the_largest_passes_the_quickest_is_told() -> None:
    status = NodeStatus("peer", "name")
    for samples, seconds in [(4, 9.0), (8, 5.0), (8, 2.0), (8, 3.0), (3, 0.1)]:
        status.work.passes.note(samples, seconds)
    assert status.document()["passes"] == {"samples": 8, "quickest_s": 2.0, "made": 3}


def test_the_length_of_a_run_follows_what_the_operator_has_changed() -> None:
    status = NodeStatus("peer", "name")
    client = CoordinatorClient(parse_link("127.0.0.1:1"), Ed25519PrivateKey.generate())

    def steps() -> int:
        return int(owner_view(client, status, INFO, "")["run"]["steps"])

    assert steps() == INFO.spec.schedule.steps
    status.heard(wire.HeartbeatReply(steps=3000))
    assert steps() == 3000
    status.heard(wire.HeartbeatReply())  # of a coordinator that does not say it
    assert steps() == 3000


def test_the_owner_sees_the_time_left_the_part_and_the_way_of_a_new_key() -> None:
    status = NodeStatus("peer", "name")
    client = CoordinatorClient(parse_link("127.0.0.1:1"), Ed25519PrivateKey.generate())
    view = owner_view(client, status, INFO, "")
    assert (view["run"]["seconds_left"], view["part"], view["key"]) == (None, 0, None)
    new = {"fresh_rounds": 21, "standing_rounds": 50, "standing_round": 131}
    status.heard(wire.HeartbeatReply(left_ms=7_200_000, part=0.25, **new))
    view = owner_view(client, status, INFO, "")
    assert (view["run"]["seconds_left"], view["part"]) == (7200, 0.25)
    assert view["key"] == {"rounds": 21, "needed": 50, "counts_after": 131}
