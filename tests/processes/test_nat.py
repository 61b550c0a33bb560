"""Real processes on computers that cannot all dial each other: behind home routers, of other
transports, moving about.

    coordinator ------ internet ------ node-0
    relay ---------------|  |--------- router -- node-1

Each computer is a network namespace; each router is a port-restricted masquerade without any open
port. Every round needs all nodes, so each commit shows that payloads passed between any two.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import ClusterSettings
from lockstep.run_file import write_run_file
from lockstep.service.keys import KEY_NAME
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.topology import LabHome, Nat, Plan
from protocol.sections.retention import RetentionSpec
from tests.lockstep.wan.lab.fixture import needs_ground
from tests.node.transports.libp2p.p2pd import needs_p2pd
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = [needs_ground, pytest.mark.slow]

ENOUGH = 3
"""Rounds that make a point: each of them needed every node."""

PATIENCE_OF_A_ROUND_MS = 5_000
"""For each of its instants: what broken ways cost is a few such rounds; others end as soon as all
have announced."""

CABLE_PULLED_S = 30.0

LOG_ROUNDS = 10_000
"""More rounds than this tiny model does in half a minute: a node that was away replays them."""

NEVER = 100_000
"""Steps of a run that is not waited for."""


@contextmanager
def training(
    directory: Path,
    nats: tuple[Nat, ...],
    *,
    links: tuple[str, ...] = ("grpc",),
    relay: bool = False,
    quorum: int = 0,
) -> Iterator[WanCluster]:
    """A cluster that trains until the block ends; unless `quorum` says otherwise, a commit needs
    every node.
    """
    count = len(nats)
    instants = dict.fromkeys(("compute_ms", "publish_ms", "exchange_ms"), PATIENCE_OF_A_ROUND_MS)
    spec = tiny_spec(steps=NEVER, members=count, quorum=quorum or count, lease_ms=5_000, **instants)
    spec = spec.model_copy(update={"retention": RetentionSpec(log_rounds=LOG_ROUNDS)})
    write_run_file(directory / "run.toml", spec)
    settings = ClusterSettings(
        directory,
        directory / "run.toml",
        tiny_corpus(directory / "data"),
        count,
        links=links,
        relay=relay,
    )
    homes = [LabHome(f"node-{number}", nat=nat) for number, nat in enumerate(nats)]
    public = [LabHome(name) for name in ("coordinator", "relay")[: 1 + relay]]
    with (
        Laboratory(Plan((*homes, *public))) as laboratory,
        WanCluster(settings, laboratory) as cluster,
    ):
        cluster.start()
        yield cluster
        assert cluster.coordinator.restarts == 0
        assert [node.restarts for node in cluster.nodes] == [0] * count


def train_on(cluster: WanCluster) -> None:
    """Waits for commits that are younger than the call, whose state every node reports, and which
    all of them share.
    """
    cluster.watch()
    first = (
        int(cluster.coordinator.status.get("round", -1)) + 2
    )  # the round that is open, and the one in exchange
    everybody = len(cluster.nodes)

    def agreed() -> bool:
        commits = cluster.coordinator.status.get("last_commits", ())
        young = [commit for commit in commits if commit["round"] >= first]
        return (
            sum(len(one["contributors"]) == everybody == one["digest_reports"] for one in young)
            >= ENOUGH
        )

    watch_until(cluster, agreed, f"{ENOUGH} commits of all nodes after round {first}")
    digests = cluster.coordinator.status["digests"]
    assert (digests["agreed"], digests["rounds_disputed"]) == (True, 0)


def link(node: Child, other: Child) -> dict[str, Any]:
    """The open link of a node to another process in its status; empty when there is none."""
    opened = node.status.get("links", {}).get("open", ())
    return next((each for each in opened if each["peer"] == other.status.get("peer_id")), {})


@needs_p2pd
def test_nodes_of_unlike_transports_train_through_one_that_has_both_and_one_may_move(
    tmp_path: Path,
) -> None:
    kinds = ("grpc,libp2p", "grpc", "libp2p")
    with training(tmp_path, ("none", "masquerade", "masquerade"), links=kinds) as cluster:
        train_on(cluster)
        public, laptop, other = cluster.nodes
        assert cluster.link_kinds == {
            "node-0": {
                "node-1": {"transport": "grpc", "relayed": False, "dialled": False},
                "node-2": {"transport": "libp2p", "relayed": False, "dialled": False},
            },
            "node-1": {"node-0": {"transport": "grpc", "relayed": False, "dialled": True}},
            "node-2": {"node-0": {"transport": "libp2p", "relayed": False, "dialled": True}},
        }
        cluster.laboratory.move(laptop.name)
        there = cluster.laboratory.places[laptop.name].public_address(moved=True)
        watch_until(
            cluster,
            lambda: link(public, laptop).get("remote", "").startswith(f"{there}:"),
            "the new address",
        )
        train_on(cluster)
        assert link(public, other), "a node that did not move keeps its link"


def kill_relay(cluster: WanCluster) -> None:
    """Kills it, and waits until the next one is linked to every node."""
    (relay,) = cluster.relays
    assert relay.pid is not None
    os.kill(relay.pid, signal.SIGKILL)
    watch_until(cluster, lambda: relay.restarts == 1, "the end of the relay")
    watch_until(
        cluster, lambda: all(link(node, relay) for node in cluster.nodes), "links to the new relay"
    )


def test_through_a_relay_two_nodes_behind_routers_train_also_after_it_was_killed(
    tmp_path: Path,
) -> None:
    with training(tmp_path, ("masquerade", "masquerade"), relay=True) as cluster:
        train_on(cluster)
        assert cluster.link_kinds == {
            node.name: {"relay": {"transport": "grpc", "relayed": False, "dialled": True}}
            for node in cluster.nodes
        }
        kill_relay(cluster)
        train_on(cluster)
        assert not link(*cluster.nodes), "no way between the two appeared"


def relay_id(cluster: WanCluster) -> str:
    """The libp2p peer id of the relay."""
    return str(cluster.relays[0].status["addresses"][0]).rpartition("/")[2]


@needs_p2pd
def test_over_libp2p_two_nodes_behind_routers_are_linked_through_the_relay_and_say_so(
    tmp_path: Path,
) -> None:
    """Direct where a hole is punched, see below: that takes four others around, and here is one.

    The new relay has another key: nodes that run have never heard of it.
    """
    with training(tmp_path, ("masquerade", "masquerade"), links=("libp2p",), relay=True) as cluster:
        one, other = cluster.nodes

        def through(relay: str) -> bool:
            both = (link(one, other), link(other, one))
            return all(
                each and each["transport"] == "libp2p" and each["relayed"] for each in both
            ) and any(f"/p2p/{relay}/p2p-circuit" in each["remote"] for each in both)

        train_on(cluster)
        first = relay_id(cluster)
        watch_until(cluster, lambda: through(first), "a relayed link between the two")
        (cluster.relays[0].directory / KEY_NAME).unlink()
        kill_relay(cluster)
        second = relay_id(cluster)
        assert second != first
        watch_until(cluster, lambda: through(second), "a link through the new relay")
        train_on(cluster)


@needs_p2pd
def test_with_four_others_around_two_nodes_behind_routers_train_over_a_direct_link(
    tmp_path: Path,
) -> None:
    """The relay and three public nodes see both, so each knows its own public address."""
    nats: tuple[Nat, ...] = ("masquerade", "masquerade", "none", "none", "none")
    with training(tmp_path, nats, links=("libp2p",), relay=True) as cluster:
        one, other = cluster.nodes[:2]

        def direct() -> bool:
            both = (link(one, other), link(other, one))
            return all(
                each and each["transport"] == "libp2p" and not each["relayed"] for each in both
            )

        train_on(cluster)
        watch_until(cluster, direct, "a hole through both routers")
        train_on(cluster)
        assert direct(), "it holds"


def test_a_cable_pulled_for_half_a_minute_stops_only_its_owner_who_comes_back_to_the_same_state(
    tmp_path: Path,
) -> None:
    with training(tmp_path, ("none", "none", "masquerade"), quorum=2) as cluster:
        train_on(cluster)
        stays, _, goes = cluster.nodes
        before, pulled_s = committed(cluster), time.monotonic()
        cluster.laboratory.cut(goes.name)
        watch_until(
            cluster, lambda: not link(stays, goes) and not link(goes, stays), "both ends to notice"
        )
        watch_until(
            cluster, lambda: committed(cluster) >= before + ENOUGH, "rounds of those that stayed"
        )
        watch_until(
            cluster, lambda: time.monotonic() > pulled_s + CABLE_PULLED_S, "the end of the pull"
        )
        cluster.laboratory.restore(goes.name)
        watch_until(cluster, lambda: link(stays, goes) and link(goes, stays), "the link to be back")
        train_on(cluster)
