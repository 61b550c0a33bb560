"""Keeps a node's session, and opens another one when the node's addresses change.

    member list --relays--> transport that uses relays --other addresses--> coordinator --> nodes

The coordinator takes a node's addresses with its hello, so it hears of other addresses in another
session.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from node.control.client import CoordinatorClient, Listener
from node.control.members import MemberList
from node.transports.base import Transport
from protocol import wire_pb2 as wire
from protocol.limits import ADDRESSES_MAX
from protocol.run_info import RunInfo

SETTLE_S = 1.0
"""Time for which addresses must stay unchanged before they are told: several relays come and go
together, in any order."""

TELL_S = 30.0
"""Pause between two sessions that only tell addresses, each of which may cost a node its part in a
round; and time for which an address that is gone, with none in its place, stays announced, because
another relay may come."""

log = logging.getLogger("lockstep.node")


@runtime_checkable
class Relayed(Protocol):
    """A transport whose addresses depend on relays."""

    def dials(self, address: str) -> bool:
        """See `node.transports.base.Transport`."""

    def use_relays(self, relays: Sequence[str]) -> None:
        """Use these addresses of the run's relays from now on."""

    async def moved(self, announced: tuple[str, ...]) -> tuple[str, ...]:
        """Wait until other addresses are to be announced than these; returns them."""


class RelayWatch:
    """A coordinator client's listener that tells a transport of the run's relays, and hands
    everything on to another listener.
    """

    def __init__(self, listener: Listener, transport: Relayed) -> None:
        self._listener, self._transport = listener, transport

    def members_changed(self, members: MemberList) -> None:
        known = [address for addresses in members.relays.values() for address in addresses]
        self._transport.use_relays([address for address in known if self._transport.dials(address)])
        self._listener.members_changed(members)

    def welcomed(self, welcome: wire.Welcome) -> None:
        self._listener.welcomed(welcome)

    def received(self, message: wire.CoordinatorMessage) -> None:
        self._listener.received(message)


async def keep_session(
    client: CoordinatorClient,
    info: RunInfo,
    hello: wire.Hello,
    listener: Listener,
    transports: Sequence[Transport],
) -> None:
    """Keep a session open until cancelled, and open another one whenever the addresses of this node
    change.

    Changes `hello`. Raises what `CoordinatorClient.run` raises.
    """
    moving = next((transport for transport in transports if isinstance(transport, Relayed)), None)
    if moving is None:
        await client.run(info, hello, listener)
        return
    watch, earliest_s = RelayWatch(listener, moving), time.monotonic()
    while True:
        session = asyncio.create_task(client.run(info, hello, watch))
        moved = asyncio.create_task(_moved(moving, tuple(hello.addresses), earliest_s))
        try:
            await asyncio.wait({session, moved}, return_when=asyncio.FIRST_COMPLETED)
            if session.done():
                session.result()
            addresses = moved.result()
        finally:
            session.cancel()
            moved.cancel()
            await asyncio.gather(session, moved, return_exceptions=True)
        log.info("addresses changed", extra={"addresses": ",".join(addresses)})
        hello.addresses[:] = addresses
        earliest_s = time.monotonic() + TELL_S


async def _moved(transport: Relayed, told: tuple[str, ...], earliest_s: float) -> tuple[str, ...]:
    """All addresses of this node, once those of a transport have changed and settled, and not
    before `earliest_s`.
    """
    before = tuple(address for address in told if transport.dials(address))
    settled = False
    while not settled:
        now = await transport.moved(before)
        pause_s = SETTLE_S if set(now) - set(before) else TELL_S
        try:
            async with asyncio.timeout(max(pause_s, earliest_s - time.monotonic())):
                await transport.moved(now)
        except TimeoutError:
            settled = True
    place = next((at for at, address in enumerate(told) if transport.dials(address)), len(told))
    others = [address for address in told if not transport.dials(address)]
    return tuple([*others[:place], *now, *others[place:]][:ADDRESSES_MAX])
