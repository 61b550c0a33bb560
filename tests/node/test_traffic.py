"""Promises of the traffic figures: each byte has its owner, and no counter falls."""

import asyncio
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from node.control.client import CoordinatorClient
from node.control.members import MemberList
from node.status import NodeStatus, registry
from node.traffic import Statistics, Traffic
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.traffic import unknown_overhead
from tests.coordinator.client import ScriptedNode, node_key, quiet_spec, running, train
from tests.support.waiting import until

LINKS = Traffic(100, 200, 30, 40, 5, 6, late_down=50)
SESSION = Traffic(catch_up_down=1_000, control_up=2_000, control_down=3_000)


def counters(metrics: CollectorRegistry) -> dict[tuple[str, str], float]:
    (family,) = [
        family for family in metrics.collect() if family.name == "lockstep_node_traffic_bytes"
    ]
    return {(each.labels["kind"], each.labels["direction"]): each.value for each in family.samples}


# ---- owners


def test_links_session_and_overhead_are_told_together() -> None:
    asked = list[tuple[int, int]]()

    def overhead(up: int, down: int) -> tuple[int, int]:
        asked.append((up, down))
        return 7, 8

    complete = Statistics.of(LINKS, discarded=9).complete(SESSION, overhead)
    assert asked == [(100 + 30 + 2_005, 200 + 1_040 + 3_006)], "of all that has an owner"
    assert complete.document() == {
        "payload_up_bytes": 100,
        "payload_down_bytes": 200,
        "catch_up_up_bytes": 30,
        "catch_up_down_bytes": 1_040,
        "control_up_bytes": 2_005,
        "control_down_bytes": 3_006,
        "duplicate_bytes": 59,
        "overhead_up_bytes": 7,
        "overhead_down_bytes": 8,
    }
    assert (complete.up_bytes, complete.down_bytes) == (asked[0][0] + 7, asked[0][1] + 8)


def test_overhead_that_is_not_known_is_told_as_such_and_counts_nothing() -> None:
    complete = Statistics.of(LINKS, 0).complete(SESSION, unknown_overhead)
    assert (complete.overhead_up_bytes, complete.overhead_down_bytes) == (None, None)
    assert complete.up_bytes == 100 + 30 + 2_005


def test_data_of_each_purpose_has_its_owner_both_ways() -> None:
    traffic = Traffic()
    for size, catch_up in ((1, False), (2, True)):
        traffic.count_up(size, catch_up=catch_up)
        traffic.count_down(10 * size, catch_up=catch_up)
    assert traffic == Traffic(payload_up=1, catch_up_up=2, payload_down=10, catch_up_down=20)


# ---- metrics


def test_overhead_is_exported_where_it_is_known_and_absent_where_it_is_not() -> None:
    known, unknown = NodeStatus("a peer", "a name"), NodeStatus("a peer", "a name")
    statistics = Statistics.of(LINKS, 0)
    known.traffic = statistics.complete(SESSION, lambda up, down: (7, 8)).document()
    unknown.traffic = statistics.complete(SESSION, unknown_overhead).document()
    both = counters(registry(known))
    assert both == counters(registry(unknown)) | {("overhead", "up"): 7, ("overhead", "down"): 8}
    assert both["catch_up", "down"] == 1_040
    assert (
        sum(both.values())
        == sum(getattr(LINKS, name) for name in LINKS.__slots__) - 50 + 6_000 + 15
    )


# ---- the session with the coordinator


class Listening:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def members_changed(self, members: MemberList) -> None:
        pass

    def welcomed(self, welcome: wire.Welcome) -> None:
        self.heard.append("welcome")

    def received(self, message: wire.CoordinatorMessage) -> None:
        self.heard.append(str(message.WhichOneof("kind")))


async def test_both_ends_of_a_session_count_the_same_bytes_for_the_same_owners(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        ScriptedNode(process.address, process.run_id, node_key(1)) as one,
        ScriptedNode(process.address, process.run_id, node_key(2)) as two,
    ):
        await one.join()
        await two.join()
        await train([one, two], 3)
    async with running(
        tmp_path, quiet_spec()
    ) as process:  # goes on, and has said nothing to anybody yet
        client = CoordinatorClient(parse_link(process.address), Ed25519PrivateKey.generate())
        info = await client.calls.fetch_run()
        await client.calls.fetch_members()
        assert len((await client.calls.fetch_commits(-1)).commits) == 3
        listening = Listening()
        session = asyncio.create_task(
            client.run(info, wire.Hello(addresses=["127.0.0.1:1"], name="n"), listening)
        )
        await until(lambda: listening.heard)
        client.send(wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=1)))

        def told(name: str) -> int:
            return int(process.status()["traffic"][name])

        def same() -> bool:
            up = (told("control_down_bytes"), told("control_up_bytes"), told("catch_up_up_bytes"))
            return up == (
                client.traffic.control_up,
                client.traffic.control_down,
                client.traffic.catch_up_down,
            )

        await until(same)
        assert client.traffic.catch_up_down > 3 * 100
        assert min(client.traffic.control_up, client.traffic.control_down) > 100
        assert client.traffic.catch_up_up == client.traffic.payload_down == 0
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        await client.close()
