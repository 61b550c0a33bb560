"""Chooses the addresses to listen on and to announce when none are configured."""

import socket

from protocol.errors import UnavailableError


def announced(listen: str, advertise: tuple[str, ...], coordinator: str) -> tuple[str, ...]:
    """The configured addresses of this node. One that listens on all interfaces (0.0.0.0) and is
    given no HOST:PORT to advertise announces its interface towards the coordinator.
    """
    host, _, port = listen.rpartition(":")
    if any(not address.startswith("/") for address in advertise) or host not in ("0.0.0.0", "[::]"):
        return advertise
    return (f"{address_towards(coordinator).rpartition(':')[0]}:{port}", *advertise)


def address_towards(coordinator: str) -> str:
    """HOST:0 of the local interface that leads to `coordinator` (HOST:PORT), for links to listen
    on.

    A node whose coordinator is on loopback listens on loopback, one whose coordinator is in the
    house on the house's network, one behind a router on its private address: there peers from
    outside cannot dial it, and it dials them. No packet is sent. Raises `UnavailableError` when the
    name does not resolve or no interface leads there.
    """
    host, _, port = coordinator.rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host.removeprefix("[").removesuffix("]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            own = probe.getsockname()[0]
    except OSError as error:
        raise UnavailableError(
            f"no way from this machine to a coordinator at {coordinator}: "
            f"{error.strerror or error}; check the address and this machine's network, or name an "
            "address to listen on with --listen"
        ) from error
    return f"[{own}]:0" if family == socket.AF_INET6 else f"{own}:0"
