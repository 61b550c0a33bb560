"""Reservations at relays, which carry circuits to this node; and the address that relays see.

    use(relays) --> for each, one task:  connect --> reserve --> look --> ping, reserve again later
                                            ^                               |
                                            +------ pause, doubling <-- lost or refused

A relay carries circuits to a node that has reserved a place and stays connected. Reservations are
made here, over streams of the daemon, and not by the daemon: it knows only the relays of its start,
and after a restart of a relay, or half a minute without network, it waits an hour. So relays come,
go and come back without a new daemon. The pings also keep the router's mapping. A circuit that
comes in needs nothing of this node: the daemon takes it from any relay.

A look: the relay tells from which address it sees this node, and dials that address back from a
port that nobody has opened. If it gets through, a stranger can dial this node: `direct`. A relay
does not dial a private address. If it sees one, and the address is this machine's own, no router
translates between the two, and every node that is told of the relay's private address is inside the
same network.

Sources: libp2p/specs relay/circuit-v2.md, identify, autonat/autonat-v1.md.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from node.system.backoff import Backoff
from node.transports.libp2p.circuit_pb2 import (
    Dial,
    DialBackMessage,
    DialResponse,
    HopMessage,
    Identify,
    Target,
)
from node.transports.libp2p.daemon_control import DaemonClient, parsed, receive
from node.transports.libp2p.multiaddr import (
    CIRCUIT,
    decode,
    encode,
    id_bytes,
    ip_of,
    is_circuit,
    split_peer,
    tcp_port,
)
from protocol.errors import RemoteProtocolError, SettingsError, UnavailableError

RELAYS_MAX = 4
"""Relays that a node uses at once: it announces one address for each."""

CIRCUIT_BYTES_MIN = 1 << 30
"""Least bytes that a relay must carry for each circuit; libp2p's default of 128 KB breaks a link
with every payload."""

PING_INTERVAL_S = 15.0
"""Pause between pings: the mapping of a home router lasts 30 s at least, and libp2p hangs up after
60 s without one."""

PINGS = 80
"""Pings between two reservations: twenty minutes, of the hour that one lasts."""

ANSWER_TIMEOUT_S = 10
"""Longest wait for a relay's answer."""

LOOK_TIMEOUT_S = 30
"""Longest wait for a relay that dials us back: it gives up after 15 s."""

LOOK_INTERVAL_S = 600.0
"""Pause between looks; a relay answers three of one node, and thirty of all nodes, in a minute."""

RETRY_MS = (6_000, 60_000)
"""First and longest pause between attempts to reserve; libp2p itself does not dial again within
5 s."""

WAIT_S = 5.0
"""Longest wait of a start for the first reservation: more than it takes when nothing fails."""

LOOK_WAIT_S = 1.0
"""Longest wait of a start for the first look after that."""

_HOP = "/libp2p/circuit/relay/0.2.0/hop"
_IDENTIFY = "/ipfs/id/1.0.0"
_DIAL_BACK = "/libp2p/autonat/1.0.0"
_PING = "/ipfs/ping/1.0.0"
_PING_BYTES = 32
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reservation:
    """This node's reservation at one relay, or its wish for one."""

    relay: str
    """The relay's libp2p peer id."""
    where: str
    """The relay's address, without its peer id."""
    task: asyncio.Task[None] | None = None
    made: bool = False
    """Whether the relay has granted it since the relay is in use."""
    trouble: str = ""
    """Why the last attempt to make or hold it ended; empty during the first one and while it is
    held."""
    looked: bool = False
    look_s: float = 0.0
    """Time of the next look, by the monotonic clock."""
    direct: str = ""
    """Address at which the relay reached this node, without this node's peer id."""

    @property
    def circuit(self) -> str:
        """Address at which peers dial this node through the relay, without this node's peer id."""
        return f"{self.where}/p2p/{self.relay}{CIRCUIT}"


class Reservations:
    """The reservations of the daemon with the libp2p peer id `peer`. `changed` is called whenever
    `circuits` or `direct` may have changed; `port()` is the port on which the daemon listens;
    `looks`: whether relays are asked to look.
    """

    def __init__(
        self, peer: str, port: Callable[[], int], changed: Callable[[], None], *, looks: bool = True
    ) -> None:
        self.used = False
        """Whether any relay has ever granted a reservation."""
        self._peer = peer
        self._port = port
        self._changed = changed
        self._looks = looks
        self._last: tuple[str, ...] = ()
        self._client: DaemonClient | None = None
        self._reservations: dict[str, Reservation] = {}
        self._news = asyncio.Event()

    @property
    def circuits(self) -> tuple[str, ...]:
        """Addresses at which peers dial this node through relays, without this node's peer id. A
        relay that is lost for a while keeps its address.
        """
        return tuple(each.circuit for each in self._reservations.values() if each.made)

    @property
    def direct(self) -> tuple[str, ...]:
        """Addresses at which relays have reached this node, without its peer id; the last ones,
        when no relay is in use any more.
        """
        if not self._reservations:
            return self._last
        found = (each.direct for each in self._reservations.values() if each.direct)
        return tuple(dict.fromkeys(found))

    @property
    def trouble(self) -> str:
        """Why no relay has granted a reservation; empty while one has, or may soon."""
        troubles = [each.trouble for each in self._reservations.values()]
        return "; ".join(troubles) if all(troubles) else ""

    def use(self, relays: Sequence[str]) -> None:
        """Use these relays of the run from now on, each with its peer id; other addresses are
        skipped.
        """
        self._last = self.direct
        wanted = {each.relay: each for each in choose_relays(self._peer, relays)}
        old, self._reservations = self._reservations, {}
        for relay, reservation in wanted.items():
            same = old.get(relay)
            kept = same if same and same.where == reservation.where else reservation
            self._reservations[relay] = kept
        for gone in old.values():
            if gone.task and self._reservations.get(gone.relay) is not gone:
                gone.task.cancel()
        self._start()
        self._tell()

    def renew(self, client: DaemonClient) -> None:
        """Make every reservation anew: another daemon runs."""
        self._client = client
        for reservation in self._reservations.values():
            if reservation.task:
                reservation.task.cancel()
            reservation.task = None
        self._start()

    async def settle(self) -> None:
        """Wait a moment until peers can reach this node, for one that dials too early waits until
        its next try; return early when every relay has refused.
        """
        if not self._reservations:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._until(
                    lambda: any(each.made for each in self._reservations.values()) or self.trouble
                )
            if self.trouble:
                return
            async with asyncio.timeout(LOOK_WAIT_S if self._looks else 0):
                await self._until(lambda: any(each.looked for each in self._reservations.values()))

    async def stop(self) -> None:
        """Give up every reservation."""
        tasks = [each.task for each in self._reservations.values() if each.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client = None
        for reservation in self._reservations.values():
            reservation.task = None

    def _start(self) -> None:
        if self._client is not None:
            for each in self._reservations.values():
                each.task = each.task or asyncio.create_task(self._keep(self._client, each))

    def _tell(self) -> None:
        self._news.set()
        self._changed()

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    # ---- one reservation

    async def _keep(self, client: DaemonClient, reservation: Reservation) -> None:
        backoff = Backoff(*RETRY_MS)
        relay, where = reservation.relay, reservation.where
        while True:
            since_s = time.monotonic()
            try:
                await client.connect(relay, (where,), ANSWER_TIMEOUT_S)
                await self._hold(client, reservation)
            except (UnavailableError, RemoteProtocolError) as error:
                reservation.trouble = f"no reservation at the relay {where}/p2p/{relay}: {error}"
                _log.info(
                    "no reservation at a relay",
                    extra={"relay": f"{where}/p2p/{relay}", "reason": str(error)},
                )
                self._news.set()
            if 1000 * (time.monotonic() - since_s) > RETRY_MS[1]:  # it was held for a while
                backoff.reset()
            await asyncio.sleep(backoff.next() / 1000)

    async def _hold(self, client: DaemonClient, reservation: Reservation) -> None:
        """Hold a reservation until it is lost; `UnavailableError` or `RemoteProtocolError` says
        why.
        """
        try:
            stream, _ = await client.open(reservation.relay, _PING, ANSWER_TIMEOUT_S)
            with stream:
                while True:
                    await _reserve(client, reservation.relay)
                    reservation.made, reservation.trouble = True, ""
                    self.used = True
                    self._tell()
                    for _ in range(PINGS):
                        await self._look_again(client, reservation)
                        await _ping(stream)
        except UnavailableError:
            # The daemon would take a connection that died silently for a good one for most of a
            # minute.
            await client.disconnect(reservation.relay)
            raise

    async def _look_again(self, client: DaemonClient, reservation: Reservation) -> None:
        if not self._looks or time.monotonic() < reservation.look_s:
            return
        reservation.look_s = time.monotonic() + LOOK_INTERVAL_S
        try:
            reservation.direct = await self._look(client, reservation.relay)
        except (UnavailableError, RemoteProtocolError) as error:
            # An earlier result stays.
            _log.info(
                "a relay did not look", extra={"relay": reservation.relay, "reason": str(error)}
            )
        reservation.looked = True
        self._tell()

    async def _look(self, client: DaemonClient, relay: str) -> str:
        """The address at which a relay reaches this node directly; empty when it does not."""
        answer = await client.inquire(relay, _IDENTIFY, b"", ANSWER_TIMEOUT_S)
        identity = parsed(Identify, answer)
        if not identity.HasField("observed_address"):
            raise RemoteProtocolError("expected the address that the relay sees, got none")
        seen = decode(identity.observed_address)
        ip = ip_of(seen)
        if ip is None:
            return ""
        listens = f"/ip{ip.version}/{ip}/tcp/{self._port()}"
        if not ip.is_global:
            return seen if seen == listens and _is_ours(str(ip)) else ""
        question = dial_back_message(self._peer, listens).SerializeToString()
        answer = await client.inquire(relay, _DIAL_BACK, question, LOOK_TIMEOUT_S)
        reached = reached_port(parsed(DialBackMessage, answer))
        return listens if reached == self._port() else ""


def choose_relays(own: str, relays: Sequence[str]) -> list[Reservation]:
    """At most `RELAYS_MAX` relays, different ones for each node, so that no relay carries all."""
    found: dict[str, Reservation] = {}
    for address in relays:
        with suppress(SettingsError):
            where, relay = split_peer(address)
            if where and not is_circuit(where) and relay != own:
                found.setdefault(relay, Reservation(relay, where))  # the first address is preferred
    return sorted(found.values(), key=lambda each: sha256(f"{own} {each.relay}".encode()).digest())[
        :RELAYS_MAX
    ]


def reserve_message() -> HopMessage:
    """Asks a relay for a reservation."""
    return HopMessage(type=HopMessage.RESERVE)


def dial_back_message(peer: str, address: str) -> DialBackMessage:
    """Asks a relay to dial a peer back at an address."""
    target = Target(id=id_bytes(peer), addresses=[encode(address)])
    return DialBackMessage(type=DialBackMessage.DIAL, dial=Dial(target=target))


def reached_port(message: DialBackMessage) -> int:
    """The TCP port at which a relay got through, 0 when nobody answered it; `RemoteProtocolError`
    when it did not dial.
    """
    response = message.response
    if response.HasField("status") and response.status == DialResponse.OK:
        return tcp_port(decode(response.address))
    if response.HasField("status") and response.status == DialResponse.DIAL_ERROR:
        return 0
    status = DialResponse.Status.Name(response.status) if response.HasField("status") else "none"
    raise RemoteProtocolError(f"expected a relay that dials back, it refused with status {status}")


async def _reserve(client: DaemonClient, relay: str) -> None:
    question = reserve_message().SerializeToString()
    answer = parsed(HopMessage, await client.inquire(relay, _HOP, question, ANSWER_TIMEOUT_S))
    if not answer.HasField("reservation"):
        raise RemoteProtocolError("expected a reservation, the relay refused")
    if 0 < (carried := answer.limit.data_bytes) < CIRCUIT_BYTES_MIN:
        raise RemoteProtocolError(
            f"expected {CIRCUIT_BYTES_MIN} bytes for each circuit, the relay carries {carried}"
        )


async def _ping(stream: socket.socket) -> None:
    """Ping once, then wait for `PING_INTERVAL_S`, or until the stream ends; `UnavailableError` when
    it does.
    """
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await asyncio.get_running_loop().sock_sendall(stream, bytes(_PING_BYTES))
            await receive(stream, _PING_BYTES)
        with suppress(TimeoutError):
            async with asyncio.timeout(PING_INTERVAL_S):
                await receive(stream, 1)
                raise RemoteProtocolError("expected silence after a ping, got a byte")
    except TimeoutError:
        raise UnavailableError(f"no answer to a ping within {ANSWER_TIMEOUT_S} s") from None
    except OSError as error:
        raise UnavailableError(f"the connection is gone: {error}") from None


def _is_ours(ip: str) -> bool:
    """Whether an address belongs to this machine: no other address can be bound to."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
