"""Nodes measure real links over gRPC on loopback, and the planner has the matrix."""

import secrets

from coordinator.machine.events.inputs import LinksMeasured
from coordinator.service.node_messages import event_of
from node.links.quality.reports import LinkReports
from protocol.mixing.measured_links import matrix_of, network_of
from tests.node.links.net import Faulty, Member, clock_ms, grpc, meshes
from tests.support.waiting import until

DELAY_MS = 150

BLOB = secrets.token_bytes(2_000_000)


def measures_all(member: Member, count: int) -> bool:
    return sum(link.round_trip_ms is not None for link in member.mesh.links) == count


def trip_ms(one: Member, other: Member) -> int:
    found = (link.round_trip_ms for link in one.mesh.links if link.peer == other.peer)
    return next(found) or 0


async def test_round_trips_and_rates_of_real_links_reach_the_planners_network() -> None:
    transports: list[Faulty] = []

    def make() -> Faulty:
        transports.append(Faulty(grpc()))
        return transports[-1]

    async with meshes(3, make) as members:
        await until(lambda: all(len(member.linked) == 2 for member in members))
        far = members[2]
        for pipe in transports[2].pipes:
            pipe.delay_s = DELAY_MS / 1000  # what the third member sends comes late
        await members[1].fetched(members[0].remote, members[0].hold(BLOB))
        await until(lambda: all(measures_all(member, 2) for member in members))
        await until(lambda: all((link.round_trip_ms or 0) >= DELAY_MS for link in far.mesh.links))
        await until(lambda: trip_ms(members[0], members[1]) < DELAY_MS)

        said = {}
        for member in members:
            report = LinkReports().due(member.mesh.links, 0, clock_ms())
            assert report is not None
            event = event_of(member.peer, report)
            assert isinstance(event, LinksMeasured)
            said[member.peer] = event.links
        peers = [member.peer for member in members]
        matrix = matrix_of(said, peers)
        assert matrix.measured_pairs == 3
        assert 1000 * matrix.round_trip_s[2, :2].min() >= DELAY_MS
        assert matrix.bit_s[0, 1] > 0, "a blob went there"
        network = network_of(peers, [1e6] * 3, matrix)
        assert 2000 * network.delay_s[0, 2] >= DELAY_MS
        assert network.rate_bit_s[0, 1] == matrix.bit_s[0, 1]
