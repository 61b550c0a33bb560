"""Whether relays still carry circuits to a daemon, which it does not do well by itself.

    every relay lost --> one answers again --> the daemon has to be replaced

A daemon that loses a relay dials it again at once, and when that fails it puts the relay aside for an hour: after a
restart of the relay, or half a minute without network, nobody could reach a node behind a router. It cannot be told to
try again; a new daemon reserves within milliseconds. So each relay is pinged, which also keeps the router's mapping.
"""

import asyncio

from node.links.daemon_client import DaemonClient, receive
from node.links.multiaddr import split_peer
from protocol.errors import UnavailableError

PING_INTERVAL_S = 15.0
"""Pause between pings: the mapping of a home router lasts 30 s at least, and libp2p hangs up after 60 s without one."""

PING_TIMEOUT_S = 10
"""Longest wait for a relay's answer."""

RETRY_S = 6.0
"""Pause between attempts to find a lost relay; libp2p itself does not dial again within 5 s."""

_PING = "/ipfs/ping/1.0.0"
_PING_BYTES = 32


async def until_unreserved(client: DaemonClient, relays: tuple[str, ...]) -> str:
    """Wait until no relay carries circuits to the daemon although one could; returns that in words."""
    await asyncio.gather(*(_until_lost(client, relay) for relay in relays))
    while True:
        for relay in relays:
            try:
                await _ping(client, relay, forever=False)
                return f"it has lost its relays, and {relay} is back"
            except UnavailableError:
                pass  # the next may be back
        await asyncio.sleep(RETRY_S)


async def _until_lost(client: DaemonClient, relay: str) -> None:
    try:
        await _ping(client, relay, forever=True)
    except UnavailableError:
        return


async def _ping(client: DaemonClient, relay: str, forever: bool) -> None:
    """Ping a relay once or until it does not answer any more; `UnavailableError` when it does not."""
    where, peer = split_peer(relay)
    await client.connect(peer, (where,), PING_TIMEOUT_S)
    stream, _ = await client.open(peer, _PING, PING_TIMEOUT_S)
    loop = asyncio.get_running_loop()
    with stream:
        while True:
            try:
                async with asyncio.timeout(PING_TIMEOUT_S):
                    await loop.sock_sendall(stream, bytes(_PING_BYTES))
                    await receive(stream, _PING_BYTES)
            except (OSError, TimeoutError) as error:
                raise UnavailableError(f"the relay {relay} does not answer: {error}") from None
            if not forever:
                return
            await asyncio.sleep(PING_INTERVAL_S)
