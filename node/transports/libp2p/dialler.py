"""Opens streams to peers: directly where that is possible, else through relays.

    dial(address) --> failed a moment ago? --> make way for a direct connection
                                                --> connect --> wait for a hole --> open a stream

libp2p opens no second connection to a peer. So a relayed connection is closed before a direct dial,
and before a new relayed one where the daemons may punch a hole (`hole_punching`).
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from cachetools import TTLCache

from node.transports.base import DIAL_S
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.daemon_control import DaemonClient
from node.transports.libp2p.hole_punching import Attempts
from node.transports.libp2p.multiaddr import CIRCUIT, host_of, split_peer, tcp_port
from protocol.errors import SettingsError, UnavailableError
from protocol.limits import TEXT_BYTES_MAX

PROTOCOL = "/lockstep/pipe/1"
"""libp2p's name of this project's streams."""

REDIAL_S = 5.2
"""Time for which an address that failed is not dialled again: libp2p refuses for 5 s, and need not
be asked."""

FAILURES_MAX = 1024
"""Addresses remembered as failed; the least recently used is forgotten first."""

PROBE_S = 5
"""Longest wait for the direct address of a peer to which a relayed connection exists."""

LOOK_S = 0.05
"""Pause between two looks at the daemon's connections: it does not report new ones."""


class Dialler:
    """Dials for the node with the libp2p peer id `own`. `client()` is the daemon's client;
    `direct_wait_s`: time that a dial through a relay waits for a hole.
    """

    def __init__(self, own: str, client: Callable[[], DaemonClient], direct_wait_s: float) -> None:
        self._client = client
        self._direct_wait_s = direct_wait_s
        self._attempts = Attempts(own)
        self._failures: TTLCache[str, tuple[float, str]] = TTLCache(
            FAILURES_MAX, REDIAL_S, time.monotonic
        )
        """By address, the time and the reason of the last failure."""

    async def dial(self, address: str) -> tuple[socket.socket, Contact]:
        """Open a stream to the peer that an address names, at the address or over a connection to
        the peer that exists already: (its socket, which the caller closes, its contact).
        `UnavailableError` within `DIAL_S`.
        """
        if failure := self._failures.get(address):
            failed_s, reason = failure
            rest_s = failed_s + REDIAL_S - time.monotonic()
            raise UnavailableError(f"{address} is dialled again in {rest_s:.1f} s: {reason}")
        try:
            where, peer = split_peer(address)
            async with asyncio.timeout(DIAL_S):
                return await self._open(where, peer)
        except SettingsError as error:
            raise UnavailableError(
                f"a peer announced an address that cannot be dialled: {error}"
            ) from None
        except TimeoutError:
            raise self._failed(address, f"no answer within {DIAL_S} s") from None
        except UnavailableError as error:
            raise self._failed(address, " ".join(str(error).split())[:TEXT_BYTES_MAX]) from None

    def forget_failures(self) -> None:
        """Let every address be dialled at once: another daemon runs."""
        self._failures.clear()

    async def _open(self, where: str, peer: str) -> tuple[socket.socket, Contact]:
        client = self._client()
        if where:
            await self._make_way(where, peer)
            await client.connect(peer, (where,), DIAL_S)
        if where.endswith(CIRCUIT):
            await self._until_direct(peer)
        return await client.open(peer, PROTOCOL, DIAL_S)

    async def _make_way(self, where: str, peer: str) -> None:
        """Close a relayed connection when a direct one is likely."""
        contacts = await self._client().contacts()
        ours = [contact for contact in contacts if contact.peer == peer]
        if not ours or not all(contact.relayed for contact in ours):
            return
        if where.endswith(CIRCUIT):
            if not self._attempts.begin(peer, contacts, time.monotonic_ns() // 1_000_000):
                return
        elif not await _answers(where):
            raise UnavailableError("nobody answers at this address; a relay connects the two")
        await self._client().disconnect(peer)

    async def _until_direct(self, peer: str) -> None:
        """Wait a moment for a direct connection beside the relayed one: libp2p opens new streams
        over it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._direct_wait_s):
                # The daemon does not report new connections by itself.
                while not _is_direct(peer, await self._client().contacts()):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)

    def _failed(self, address: str, reason: str) -> UnavailableError:
        self._failures[address] = time.monotonic(), reason
        return UnavailableError(f"{address}: {reason}")


def _is_direct(peer: str, contacts: list[Contact]) -> bool:
    return any(contact.peer == peer and not contact.relayed for contact in contacts)


async def _answers(where: str) -> bool:
    """Whether anything listens at an address."""
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host_of(where), tcp_port(where))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
