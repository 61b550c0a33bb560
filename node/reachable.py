"""Where peers can reach this machine, when nobody says."""

import socket

from protocol.errors import UnavailableError


def announced(listen: str, advertise: tuple[str, ...], coordinator: str) -> tuple[str, ...]:
    """What to announce: "0.0.0.0" is where to listen and no address for anybody to dial."""
    host, _, port = listen.rpartition(":")
    if any(not address.startswith("/") for address in advertise) or host not in ("0.0.0.0", "[::]"):
        return advertise
    return (f"{address_towards(coordinator).rpartition(':')[0]}:{port}", *advertise)


def address_towards(coordinator: str) -> str:
    """HOST:0 of the local interface that leads to `coordinator` (HOST:PORT), for a link to listen on.

    A node of a coordinator on loopback listens on loopback, one of a coordinator in the house on the house's network,
    one behind a router on its private address: there peers from outside cannot dial it, and it dials them. No packet
    is sent. Raises `UnavailableError` when the name does not resolve or nothing leads there."""
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
            f"no way from this machine to a coordinator at {coordinator}: {error.strerror or error}; check the address "
            "and this machine's network, or name an address to listen on with --listen"
        ) from error
    return f"[{own}]:0" if family == socket.AF_INET6 else f"{own}:0"
