"""The transports and the swarm of a node, as its owner's settings and the run file want them."""

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.addresses import address_towards, announced
from node.control.client import CoordinatorClient
from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.mesh import Mesh
from node.replica.replica import Replica
from node.replica.snapshot import Snapshots
from node.settings import NodeSettings
from node.sums.reports import PartReports
from node.system.clock import own_clock_ms
from node.transports.base import Transport
from node.transports.dial_guard import DialGuard
from node.transports.factory import make_transports
from node.transports.kinds import parse_kinds
from protocol.handshake import public_bytes
from protocol.ids import Digest, peer_id
from protocol.run_info import RunInfo


def own_transports(
    settings: NodeSettings,
    key: Ed25519PrivateKey,
    client: CoordinatorClient,
    connections_max: int,
) -> list[Transport]:
    """The transports of the node with this key, not started yet, to which peers may open
    `connections_max` connections. `client` knows the coordinator's address and the relays.
    """
    coordinator = client.address
    listen = settings.listen if settings.listen != "auto" else address_towards(coordinator)
    relays = client.members.relays.values()
    by_libp2p = [
        address for addresses in relays for address in addresses if address.startswith("/")
    ]
    advertise = announced(listen, settings.advertise, coordinator)
    return make_transports(
        parse_kinds(settings.links),
        key,
        listen,
        advertise,
        by_libp2p,
        secure=client.secure,
        guard=DialGuard(coordinator, private=settings.dial_private),
        p2pd_sha256=settings.p2pd_sha256,
        connections_max=connections_max,
    )


def own_swarm(
    settings: NodeSettings,
    key: Ed25519PrivateKey,
    info: RunInfo,
    mesh: Mesh,
    replica: Replica,
    client: CoordinatorClient,
    *,
    snapshots: Snapshots,
    check: PayloadCheck,
    report_holding: Callable[[int, list[Digest]], None],
) -> Swarm:
    """The swarm of the node with this key, not started yet; its payload log holds as many rounds as
    the run file wants. `StorageError`.
    """
    retention, algorithm = info.spec.retention, info.spec.algorithm
    payloads = PayloadLog(
        settings.directory / "payloads",
        algorithm.kept_rounds(retention.log_rounds, settings.save_every),
        retention.log_bytes_max,
        snapshots.held_round,
    )
    return Swarm(
        peer_id(public_bytes(key)),
        info.run_id,
        SwarmLimits(replica.payload_bytes_max, info.spec.membership.neighbours),
        log=payloads,
        network=mesh,
        check=check,
        key=key,
        report_holding=report_holding,
        report_parts=PartReports(client.send).add,
        clock_ms=own_clock_ms,
        snapshots=snapshots,
    )
