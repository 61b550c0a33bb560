"""The transports of a node, as its settings name them. libp2p is imported only
when it is named.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import Transport
from node.transports.dial_guard import DialGuard
from node.transports.grpc_transport import GrpcTransport
from protocol.addresses import parse_address
from protocol.limits import CONNECTIONS_MAX


def make_transports(
    kinds: Sequence[str],
    key: Ed25519PrivateKey,
    listen: str,
    advertise: tuple[str, ...],
    relays: Sequence[str],
    *,
    relay: bool = False,
    secure: bool = False,
    guard: DialGuard | None = None,
    p2pd_sha256: str = "",
    connections_max: int = CONNECTIONS_MAX,
) -> list[Transport]:
    """The transports, not started yet.

    `listen` is HOST:PORT. With both kinds gRPC takes this port and libp2p the next one, or each a
    free one where the port is 0. `advertise` may name addresses of both. `relays` are libp2p
    addresses of the relays known now; `relay`: be one. `secure`: gRPC with TLS; libp2p encrypts
    always. `guard` says which addresses may be dialled; None: all. `p2pd_sha256` is the digest of
    the libp2p daemon to use; empty: those that are known. Peers may open `connections_max`
    connections to all transports together.
    """
    transports = list[Transport]()
    room = max(1, connections_max // len(kinds))
    for kind in kinds:
        if kind == "grpc":
            named = tuple(each for each in advertise if not each.startswith("/"))
            vouching = key if secure else None
            transports.append(GrpcTransport(listen, named, vouching, guard, connections_max=room))
        else:
            named = tuple(each for each in advertise if each.startswith("/"))
            where = _next_port(listen) if "grpc" in kinds else listen
            libp2p = partial(_libp2p, key, where, named, relays, relay=relay)
            transports.append(libp2p(guard=guard, p2pd_sha256=p2pd_sha256, accepted_max=room))
    return transports


def _next_port(listen: str) -> str:
    host, _, port = parse_address(listen).rpartition(":")
    return f"{host}:{int(port) + 1 if int(port) else 0}"


def _libp2p(
    key: Ed25519PrivateKey,
    listen: str,
    advertise: tuple[str, ...],
    relays: Sequence[str],
    *,
    relay: bool,
    guard: DialGuard | None,
    p2pd_sha256: str,
    accepted_max: int,
) -> Transport:
    from node.transports.libp2p.relay_proof import make_relay
    from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport

    settings = Libp2pSettings(
        listen, advertise, guard=guard, p2pd_sha256=p2pd_sha256, accepted_max=accepted_max
    )
    if relay:
        return make_relay(key, settings)
    return Libp2pTransport(key, replace(settings, relays=tuple(relays), public=bool(advertise)))
