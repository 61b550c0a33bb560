"""Where peers can reach this machine, when nobody says; and how the run hears of it when that
changes.

    member list --relays--> transport that uses relays --other addresses--> coordinator --> every node

The coordinator takes a node's addresses with its hello, so another session is opened to tell it of
others.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from node.control.client import CoordinatorClient, Listener, RunInfo
from node.control.members import MemberList
from node.transports.base import Transport
from protocol import wire_pb2 as wire
from protocol.errors import UnavailableError
from protocol.limits import ADDRESSES_MAX

SETTLE_SECONDS = 1.0
"""How long addresses must stay as they are before they are told: relays come in twos and threes, in
any order."""

TELL_SECONDS = 30.0
"""Pause between two sessions for the sake of addresses, each of which may cost a node its part in a
round; and how long one that is gone, with none in its place, stays told: another relay may come."""

_log = logging.getLogger("lockstep.node")


@runtime_checkable
class Relayed(Protocol):
    """A transport whose addresses depend on relays."""

    def dials(self, address: str) -> bool:
        """See `node.transports.base.Transport`."""

    def use_relays(self, relays: Sequence[str]) -> None:
        """The addresses of the run's relays from now on."""

    async def moved(self, announced: tuple[str, ...]) -> tuple[str, ...]:
        """Wait until other addresses are to be announced than these; returns them."""


class RelayWatch:
    """A coordinator client's listener that tells a transport of the run's relays, and another
    listener everything.
    """

    def __init__(self, listener: Listener, transport: Relayed) -> None:
        self._listener, self._transport, self._roster = listener, transport, MemberList()

    def welcomed(self, welcome: wire.Welcome) -> None:
        """See `Listener.welcomed`."""
        self._take(welcome.members)
        self._listener.welcomed(welcome)

    def received(self, message: wire.CoordinatorMessage) -> None:
        """See `Listener.received`."""
        if message.WhichOneof("kind") == "members":
            self._take(message.members)
        self._listener.received(message)

    def _take(self, told: wire.Members) -> None:
        self._roster.take(told)
        known = [address for addresses in self._roster.relays.values() for address in addresses]
        self._transport.use_relays([address for address in known if self._transport.dials(address)])


async def keep_session(
    client: CoordinatorClient,
    info: RunInfo,
    hello: wire.Hello,
    listener: Listener,
    transports: Sequence[Transport],
) -> None:
    """Keep a session open until cancelled, and open another one whenever peers reach this node
    elsewhere.

    `hello` is changed then. Raises what `CoordinatorClient.run` raises.
    """
    moving = next((transport for transport in transports if isinstance(transport, Relayed)), None)
    if moving is None:
        await client.run(info, hello, listener)
        return
    watch, pause = RelayWatch(listener, moving), 0.0
    while True:
        session = asyncio.create_task(client.run(info, hello, watch))
        moved = asyncio.create_task(
            _moved(moving, tuple(hello.addresses), time.monotonic() + pause)
        )
        try:
            await asyncio.wait({session, moved}, return_when=asyncio.FIRST_COMPLETED)
            if session.done():
                session.result()
            addresses = moved.result()
        finally:
            session.cancel()
            moved.cancel()
            await asyncio.gather(session, moved, return_exceptions=True)
        _log.info("tells the coordinator of other addresses addresses=%s", ",".join(addresses))
        hello.addresses[:] = addresses
        pause = TELL_SECONDS


async def _moved(transport: Relayed, told: tuple[str, ...], earliest_s: float) -> tuple[str, ...]:
    """All addresses of this node, once those of a transport are others than it told and have
    settled, and not before the given time.
    """
    before = tuple(address for address in told if transport.dials(address))
    settled = False
    while not settled:
        now = await transport.moved(before)
        pause = SETTLE_SECONDS if set(now) - set(before) else TELL_SECONDS
        try:
            async with asyncio.timeout(max(pause, earliest_s - time.monotonic())):
                await transport.moved(now)
        except TimeoutError:
            settled = True
    place = next((at for at, address in enumerate(told) if transport.dials(address)), len(told))
    others = [address for address in told if not transport.dials(address)]
    return tuple([*others[:place], *now, *others[place:]][:ADDRESSES_MAX])


def announced(listen: str, advertise: tuple[str, ...], coordinator: str) -> tuple[str, ...]:
    """What to announce: "0.0.0.0" is where to listen and no address for anybody to dial."""
    host, _, port = listen.rpartition(":")
    if any(not address.startswith("/") for address in advertise) or host not in ("0.0.0.0", "[::]"):
        return advertise
    return (f"{address_towards(coordinator).rpartition(':')[0]}:{port}", *advertise)


def address_towards(coordinator: str) -> str:
    """HOST:0 of the local interface that leads to `coordinator` (HOST:PORT), for a link to listen
    on.

    A node of a coordinator on loopback listens on loopback, one of a coordinator in the house on
    the house's network, one behind a router on its private address: there peers from outside cannot
    dial it, and it dials them. No packet is sent. Raises `UnavailableError` when the name does not
    resolve or nothing leads there.
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
            f"no way from this machine to a coordinator at {coordinator}: {error.strerror or error}; check the address "
            "and this machine's network, or name an address to listen on with --listen"
        ) from error
    return f"[{own}]:0" if family == socket.AF_INET6 else f"{own}:0"
