"""Keeps a node from dialling its owner's own networks on a stranger's word.

Members announce addresses, any they like, and all others dial them. A node whose coordinator is
outside, somewhere in the public Internet, has nothing to look for at private addresses that
strangers name: whatever listens there is its owner's. So it dials public addresses alone, and where
a name leads the address that it was checked with, not what a name server says a moment later. A
node whose coordinator is on its own machine, or in its own network, dials as it is told.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from protocol.addresses import split_address
from protocol.border.networks import dialled_host, ip_of, is_outside
from protocol.errors import SettingsError, UnavailableError

RESOLVE_S = 5
"""Longest wait for a name server."""

Resolve = Callable[[str], Awaitable[list[str]]]


class DialGuard:
    """The guard of one node. `coordinator` is HOST:PORT; `private`: the owner lets private
    addresses be dialled all the same.
    """

    def __init__(
        self, coordinator: str, *, private: bool = False, resolve: Resolve | None = None
    ) -> None:
        self._coordinator, self._private = coordinator, private
        self._resolve = resolve or resolved
        self._outside: bool | None = None

    async def checked(self, address: str) -> str:
        """The address to dial in place of an announced one, HOST:PORT or libp2p's.

        Raises `UnavailableError` for one that leads into a network which is not public.
        """
        over_existing = address.startswith("/p2p/")  # a connection that the peer made
        if self._private or over_existing or not await self._is_outside():
            return address
        host = dialled_host(address)
        ips = [host] if ip_of(host) else await self._lookup(host)
        if not ips or not all(map(is_outside, ips)):
            raise UnavailableError(
                f"{address[:80]}: not dialled: the address is not public, and this node's "
                "coordinator is outside; --dial-private allows it"
            )
        if address.startswith("/") or ip_of(host):
            return address
        port = address.rpartition(":")[2]
        return f"[{ips[0]}]:{port}" if ":" in ips[0] else f"{ips[0]}:{port}"

    async def _is_outside(self) -> bool:
        """Whether the coordinator is in the public Internet; asked for once."""
        if self._outside is None:
            try:
                host, _ = split_address(self._coordinator)
            except SettingsError:
                host = self._coordinator
            ips = [host] if ip_of(host) else await self._lookup(host)
            self._outside = all(map(is_outside, ips))
        return self._outside

    async def _lookup(self, host: str) -> list[str]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                return await self._resolve(host)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "the name server did not answer"
            raise UnavailableError(f"{host[:80]} has no address: {reason}") from None


async def resolved(host: str) -> list[str]:
    """The IP addresses of a name, the best first; `OSError` when it has none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
