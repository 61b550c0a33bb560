"""A peer to which a mesh keeps a link, and what its task waits for."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from node.links.network import PeerAddress


@dataclass(slots=True)
class Kept:
    """One such peer."""

    remote: PeerAddress
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for its task: the addresses changed, or a link opened or ended."""
    linked: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = "not dialled yet"
    task: asyncio.Task[None] | None = None

    @property
    def hosts(self) -> set[str]:
        """The hosts of its addresses."""
        return {host_part(address) for address in self.remote.addresses}

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until its addresses or its link change, or for `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        self.changed.clear()


def host_part(address: str) -> str:
    """The part of an address that its connections have in common: all but the port."""
    return address.rpartition(":")[0]
