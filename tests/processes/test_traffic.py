"""The traffic that processes report, compared with the kernel's counts on their lines; and uploads
under a limit.

    coordinator ======== internet ======== node-0, node-1, node-2

==== is a shaped line with an address of its own. Its counters are those of its interface at the
internet's end. They count whole frames: TCP may hand over many segments in one piece, but a shaped
line cuts them before they cross it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockstep.cluster.child import Child
from lockstep.cluster.live_table import total_bytes
from lockstep.cluster.local import ClusterSettings
from lockstep.run_file import write_run_file
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.laboratory import Counters, Laboratory
from lockstep.wan.lab.topology import LabHome, Plan
from protocol.runfile import RunSpec
from tests.lockstep.wan.lab.fixture import needs_ground
from tests.node.transports.libp2p.p2pd import needs_p2pd
from tests.processes.watching import committed, watch_until
from tests.support.tiny import CONFIG, tiny_corpus, tiny_spec

pytestmark = [needs_ground, needs_p2pd]

LINK = HomeLink(
    up=LinkDirection(20_000_000, 0.01, loss=0.001), down=LinkDirection(50_000_000, 0.01, loss=0.001)
)

WIDE = CONFIG | {"hidden_size": 256, "intermediate_size": 512}
"""A model whose payloads are large beside everything else: some 100 KB."""

OWNERS = ("payload", "catch_up", "control", "overhead")

AGREEMENT = 0.03

COORDINATOR_AGREEMENT = 0.08
"""The same for the coordinator: nodes ask for its certificate over connections that end before the
next look at the kernel's counters, a few per cent of what it sends in so short a run."""

NEVER = 100_000
"""Steps of a run that is not waited for."""


def wide_spec(*, steps: int, members: int) -> RunSpec:
    """A run with payloads of some 100 KB whose commits need all members, and with heartbeats enough
    to be measured.
    """
    spec = tiny_spec(steps=steps, members=members, quorum=members)
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"config": WIDE}),
            "algorithm": spec.algorithm.model_copy(update={"top_k": 1024}),
            "membership": spec.membership.model_copy(update={"heartbeat_ms": 100}),
        }
    )


@contextmanager
def cluster_of(directory: Path, spec: RunSpec, links: tuple[str, ...]) -> Iterator[WanCluster]:
    """A coordinator that serves, and as many nodes as `links`, which are not started; each has a
    line of its own.
    """
    write_run_file(directory / "run.toml", spec)
    data = tiny_corpus(directory / "data")
    settings = ClusterSettings(directory, directory / "run.toml", data, len(links), links=links)
    homes = tuple(
        LabHome(name, LINK)
        for name in ("coordinator", *(f"node-{number}" for number in range(len(links))))
    )
    with Laboratory(Plan(homes)) as laboratory, WanCluster(settings, laboratory) as cluster:
        cluster.coordinator.start(
            str(settings.run_file), "--listen", cluster.listens("coordinator")
        )
        cluster.address = cluster.wait_for_coordinator()
        yield cluster
        assert all(child.restarts == 0 for child in cluster.children)


# ---- every byte has an owner


def owned(child: Child) -> Counters:
    """All bytes that a process told of in its last status."""
    traffic = child.status["traffic"]
    return Counters(total_bytes(traffic, "up"), total_bytes(traffic, "down"))


def scraped(cluster: WanCluster, child: Child) -> dict[tuple[str, str], float]:
    """Owner and direction of every traffic counter on a process's metrics page."""
    note = child.note()
    assert note is not None
    connection = HTTPConnection(urlsplit(str(note["admin"])).netloc, timeout=10)
    with cluster.laboratory.inside(child.name):
        connection.connect()
    connection.request("GET", "/metrics")
    families = text_string_to_metric_families(connection.getresponse().read().decode())
    connection.close()
    name = f"lockstep_{child.name.partition('-')[0]}_traffic_bytes"
    (family,) = [family for family in families if family.name == name]
    return {(each.labels["kind"], each.labels["direction"]): each.value for each in family.samples}


@pytest.mark.slow
def test_the_owners_of_all_bytes_add_up_to_what_the_kernel_counted_on_each_line(
    tmp_path: Path,
) -> None:
    """Two nodes over gRPC; one leaves, and one that joins over libp2p catches up and ends the run
    with the other.
    """
    with cluster_of(
        tmp_path, wide_spec(steps=20, members=2), ("grpc,libp2p", "grpc", "libp2p")
    ) as cluster:
        stays, leaves, late = cluster.nodes
        for node in (stays, leaves):
            node.start(cluster.address)
        watch_until(cluster, lambda: committed(cluster) >= 6, "six commits")
        seen = {child.name: scraped(cluster, child) for child in (cluster.coordinator, stays)}
        leaves.ask_to_leave()
        watch_until(cluster, lambda: leaves.exit_status is not None, "the end of the leaving node")
        late.start(cluster.address)
        watch_until(cluster, lambda: cluster.finished, "the end of the run")
        cluster.wait()

        off = {}
        for child in cluster.children:
            counted, told = cluster.laboratory.counters(child.name), owned(child)
            off[child.name] = (
                told.up_bytes / counted.up_bytes - 1,
                told.down_bytes / counted.down_bytes - 1,
            )
        print(
            "owners beside the kernel:",
            {name: f"up {up:+.2%}, down {down:+.2%}" for name, (up, down) in off.items()},
        )
        bounds = dict.fromkeys(off, AGREEMENT) | {"coordinator": COORDINATOR_AGREEMENT}
        assert {
            name: both for name, both in off.items() if max(map(abs, both)) > bounds[name]
        } == {}

        for child in (cluster.coordinator, stays):
            assert {(owner, way) for owner in OWNERS[1:] for way in ("up", "down")} <= seen[
                child.name
            ].keys()
            traffic = child.status["traffic"]
            counts = {
                (kind, way): count
                for (kind, way), count in seen[child.name].items()
                if kind != "overhead"
            }
            assert all(
                0 <= count <= traffic[f"{kind}_{way}_bytes"]
                for (kind, way), count in counts.items()
            )
        payload = (
            cluster.coordinator.status["traffic"]["payload_bytes"] / 40
        )  # of two nodes, in each of twenty rounds
        assert late.status["traffic"]["catch_up_down_bytes"] > 6 * 2 * payload
        assert stays.status["traffic"]["catch_up_up_bytes"] > 6 * 2 * payload
        assert leaves.status["traffic"]["catch_up_up_bytes"] == 0
        assert all(child.status["traffic"]["overhead_up_bytes"] > 0 for child in cluster.children)


# ---- an upload limit holds on the wire


LIMIT = 25_000
"""Bytes per second: a payload is four seconds of it, and what no bucket holds up a good part."""

SAMPLED_S = 15.0
WINDOW_S = 5.0


def heaviest(samples: list[tuple[float, int]]) -> float:
    """Most bytes per second over the shortest stretches of at least five seconds between two
    samples.
    """
    rates, last = list[float](), 0
    for first, (from_s, from_bytes) in enumerate(samples):
        last = max(last, first)
        while last < len(samples) and samples[last][0] - from_s < WINDOW_S:
            last += 1
        if last < len(samples):
            until_s, until_bytes = samples[last]
            rates.append((until_bytes - from_bytes) / (until_s - from_s))
    return max(rates)


@pytest.mark.slow
def test_on_the_wire_no_five_seconds_carry_more_than_the_upload_limit(tmp_path: Path) -> None:
    """Headers, heartbeats, acknowledgements and the session with the coordinator included; to a
    peer of each kind.
    """
    with cluster_of(
        tmp_path, wide_spec(steps=NEVER, members=3), ("grpc,libp2p", "grpc", "libp2p")
    ) as cluster:
        limited, *others = cluster.nodes
        limited.start(cluster.address, "--upload-limit", str(LIMIT))
        for node in others:
            node.start(cluster.address)
        watch_until(cluster, lambda: committed(cluster) >= 1, "a commit")
        began_s, samples = time.monotonic(), list[tuple[float, int]]()
        while not samples or samples[-1][0] < began_s + SAMPLED_S:
            samples.append((time.monotonic(), cluster.laboratory.counters(limited.name).up_bytes))
            time.sleep(0.1)
        mean = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
        print(
            f"of the limit: the heaviest five seconds {heaviest(samples) / LIMIT:.3f}, "
            f"the mean {mean / LIMIT:.3f}"
        )
        assert heaviest(samples) <= LIMIT
        assert mean > 0.5 * LIMIT, "the limit is what holds it back"
        ways = {link["transport"] for link in limited.status["links"]["open"]}
        assert ways == {"grpc", "libp2p"}


@pytest.mark.parametrize(("step", "heavy"), [(50_000, 50_000.0), (0, 100_000.0)])
def test_the_heaviest_window_is_found(step: int, heavy: float) -> None:
    """Steady bytes; and half a megabyte at once after a silence."""
    samples = [
        (0.1 * tick, step * tick // 10 + (500_000 if not step and tick > 70 else 0))
        for tick in range(150)
    ]
    assert heaviest(samples) == pytest.approx(heavy, rel=0.03)
