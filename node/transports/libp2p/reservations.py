"""Places at relays, each of which carries circuits to this node; and what relays see of it.

    use(relays) --> for each, one task:  connect --> reserve --> look --> ping, and reserve again now and then
                                            ^                                 |
                                            +------- pause, doubling <-- lost or refused

A relay carries circuits to who has reserved a place and stays connected. Places are taken here,
over streams of the daemon, and not by the daemon: its own way knows the relays of its start alone,
and after a restart of a relay, or half a minute without network, it waits an hour. So relays come,
go and come back without a new daemon. The pings also keep the router's mapping. A circuit that
comes in needs nothing of us: the daemon takes it from any relay.

A look: the relay says from which address it sees us, and dials that back from a port that nobody
has opened. When it gets through, a stranger can dial us: `direct`. A private address it does not
dial; one that it sees and that is our own has no translation between, and whoever is told of this
relay at its private address is inside too.

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

from node.transports.libp2p.daemon_control import DaemonClient, receive
from node.transports.libp2p.multiaddr import decode, encode, id_bytes, ip_of, split_peer, tcp_port
from node.transports.libp2p.protobuf import field, fields, numbers
from protocol.errors import RemoteProtocolError, SettingsError, UnavailableError

PLACES_MAX = 4
"""Relays that a node uses at once: it announces one address for each."""

CIRCUIT_BYTES_MIN = 1 << 30
"""What a relay lets through a circuit at least; libp2p's default of 128 KB breaks a link with every
payload."""

PING_INTERVAL_S = 15.0
"""Pause between pings: the mapping of a home router lasts 30 s at least, and libp2p hangs up after
60 s without one."""

PINGS = 80
"""Between two reservations: twenty minutes, of the hour that one lasts."""

ANSWER_TIMEOUT_S = 10
"""Longest wait for a relay's answer."""

LOOK_TIMEOUT_S = 30
"""Longest wait for a relay that dials us back: it gives up after 15 s."""

LOOK_INTERVAL_S = 600.0
"""Pause between looks; a relay answers three of a node, and thirty of all nodes, in a minute."""

RETRY_S = (6.0, 60.0)
"""First and longest pause between attempts to take a place; libp2p itself does not dial again
within 5 s."""

WAIT_S, LOOK_WAIT_S = 5.0, 1.0
"""How long a start waits for the first place, and then for the first look: long enough when it goes
well."""

_HOP, _IDENTIFY, _DIAL_BACK = (
    "/libp2p/circuit/relay/0.2.0/hop",
    "/ipfs/id/1.0.0",
    "/libp2p/autonat/1.0.0",
)
_PING, _PING_BYTES = "/ipfs/ping/1.0.0", 32
_CIRCUIT = "/p2p-circuit"
_RESERVE, _RESERVATION, _LIMIT, _LIMIT_DATA = 0, 3, 4, 2
_OBSERVED = 4
_DIAL, _DIAL_ANSWER, _REACHED, _UNREACHED = 0, 3, 0, 100
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Place:
    """What is known of one relay."""

    peer: str
    where: str
    task: asyncio.Task[None] | None = None
    taken: bool = False
    """Whether it has been ours since the relay is in use."""
    trouble: str = ""
    """Why the last attempt to take or hold it ended; empty while there is hope."""
    looked: bool = False
    look_s: float = 0.0
    """When the next look is due, by the monotonic clock."""
    direct: str = ""
    """Where the relay found us, without our peer id."""

    @property
    def circuit(self) -> str:
        """Where peers dial us through this relay, without our peer id."""
        return f"{self.where}/p2p/{self.peer}{_CIRCUIT}"


class Reservations:
    """The places of the daemon with the libp2p peer id `peer`. `changed` is called whenever
    `circuits` or `direct` may have; `port()` is where the daemon listens; `looks`: whether relays
    are asked to look."""

    def __init__(
        self, peer: str, port: Callable[[], int], changed: Callable[[], None], *, looks: bool = True
    ) -> None:
        self.used = False
        """Whether a relay has ever given us a place."""
        self._peer = peer
        self._port = port
        self._changed = changed
        self._looks = looks
        self._last: tuple[str, ...] = ()
        self._client: DaemonClient | None = None
        self._places: dict[str, _Place] = {}
        self._news = asyncio.Event()

    @property
    def circuits(self) -> tuple[str, ...]:
        """Where peers dial us through relays, without our peer id. A relay that is lost for a while
        keeps its line."""
        return tuple(place.circuit for place in self._places.values() if place.taken)

    @property
    def direct(self) -> tuple[str, ...]:
        """Where relays have reached us directly, without our peer id; the last ones to do so, when
        all are gone."""
        if not self._places:
            return self._last
        return tuple(dict.fromkeys(place.direct for place in self._places.values() if place.direct))

    @property
    def trouble(self) -> str:
        """Why there is no place at any relay; empty while there is one, or hope."""
        places = self._places.values()
        return (
            "; ".join(place.trouble for place in places)
            if all(place.trouble for place in places)
            else ""
        )

    def use(self, relays: Sequence[str]) -> None:
        """The relays of the run from now on, each with its peer id; what is none is passed over."""
        self._last = self.direct
        wanted = {place.peer: place for place in _chosen(self._peer, relays)}
        old, self._places = self._places, {}
        for peer, place in wanted.items():
            same = old.get(peer)
            self._places[peer] = same if same and same.where == place.where else place
        for gone in old.values():
            if gone.task and self._places.get(gone.peer) is not gone:
                gone.task.cancel()
        self._start()
        self._tell()

    def renew(self, client: DaemonClient) -> None:
        """Take every place anew: there is another daemon."""
        self._client = client
        for place in self._places.values():
            if place.task:
                place.task.cancel()
            place.task = None
        self._start()

    async def settle(self) -> None:
        """Wait a moment until peers can reach us: one that dials too early waits for its second
        try. No longer than until every relay has refused."""
        if not self._places:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._until(
                    lambda: any(place.taken for place in self._places.values()) or self.trouble
                )
            if self.trouble:
                return
            async with asyncio.timeout(LOOK_WAIT_S if self._looks else 0):
                await self._until(lambda: any(place.looked for place in self._places.values()))

    async def stop(self) -> None:
        """Give up every place."""
        tasks = [place.task for place in self._places.values() if place.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client = None
        for place in self._places.values():
            place.task = None

    def _start(self) -> None:
        if self._client is not None:
            for place in self._places.values():
                place.task = place.task or asyncio.create_task(self._keep(self._client, place))

    def _tell(self) -> None:
        self._news.set()
        self._changed()

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    # ---- one place

    async def _keep(self, client: DaemonClient, place: _Place) -> None:
        pause_s = RETRY_S[0]
        while True:
            since_s = time.monotonic()
            try:
                await client.connect(place.peer, (place.where,), ANSWER_TIMEOUT_S)
                await self._hold(client, place)
            except (UnavailableError, RemoteProtocolError) as error:
                place.trouble = f"no place at the relay {place.circuit}: {error}"
                _log.info("%s", place.trouble)
                self._news.set()
            if time.monotonic() - since_s > RETRY_S[1]:  # it was ours for a while
                pause_s = RETRY_S[0]
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def _hold(self, client: DaemonClient, place: _Place) -> None:
        """Hold a place until it is lost; `UnavailableError` or `RemoteProtocolError` says how."""
        try:
            stream, _ = await client.open(place.peer, _PING, ANSWER_TIMEOUT_S)
            with stream:
                while True:
                    await _reserve(client, place.peer)
                    place.taken, place.trouble = True, ""
                    self.used = True
                    self._tell()
                    for _ in range(PINGS):
                        await self._look_again(client, place)
                        await _ping(stream)
        except UnavailableError:
            # A connection that is dead in silence would be taken for a good one for most of a
            # minute.
            await client.disconnect(place.peer)
            raise

    async def _look_again(self, client: DaemonClient, place: _Place) -> None:
        if not self._looks or time.monotonic() < place.look_s:
            return
        place.look_s = time.monotonic() + LOOK_INTERVAL_S
        try:
            place.direct = await self._look(client, place)
        except (UnavailableError, RemoteProtocolError) as error:
            _log.info("the relay %s did not look: %s", place.circuit, error)  # what was known holds
        place.looked = True
        self._tell()

    async def _look(self, client: DaemonClient, place: _Place) -> str:
        """Where the relay reaches us directly, or nothing."""
        seen = decode(
            _only(
                fields(await client.inquire(place.peer, _IDENTIFY, b"", ANSWER_TIMEOUT_S)),
                _OBSERVED,
            )
        )
        ip = ip_of(seen)
        if ip is None:
            return ""
        listens = f"/ip{ip.version}/{ip}/tcp/{self._port()}"
        if not ip.is_global:
            return seen if seen == listens and _is_ours(str(ip)) else ""
        us = field(1, id_bytes(self._peer)) + field(2, encode(listens))
        question = field(1, _DIAL) + field(2, field(1, us))
        found = _only(
            fields(await client.inquire(place.peer, _DIAL_BACK, question, LOOK_TIMEOUT_S)),
            _DIAL_ANSWER,
        )
        status = numbers(found).get(1)
        if status not in (_REACHED, _UNREACHED):
            raise UnavailableError(f"it refused to dial back, status {status}")
        return (
            listens
            if status == _REACHED and tcp_port(decode(_only(fields(found), 3))) == self._port()
            else ""
        )


def _chosen(own: str, relays: Sequence[str]) -> list[_Place]:
    """At most `PLACES_MAX` relays, others for each node, so that none has to carry all of them."""
    places: dict[str, _Place] = {}
    for relay in relays:
        with suppress(SettingsError):
            where, peer = split_peer(relay)
            if where and _CIRCUIT not in where and peer != own:
                places.setdefault(peer, _Place(peer, where))  # its favourite address
    return sorted(
        places.values(), key=lambda place: sha256(f"{own} {place.peer}".encode()).digest()
    )[:PLACES_MAX]


async def _reserve(client: DaemonClient, peer: str) -> None:
    answer = fields(await client.inquire(peer, _HOP, field(1, _RESERVE), ANSWER_TIMEOUT_S))
    if _RESERVATION not in answer:
        raise RemoteProtocolError("expected a reservation, it refused")
    for limit in answer.get(_LIMIT, []):
        if 0 < (carried := numbers(limit).get(_LIMIT_DATA, 0)) < CIRCUIT_BYTES_MIN:
            raise RemoteProtocolError(
                f"expected {CIRCUIT_BYTES_MIN} bytes for each circuit, it carries {carried}"
            )


async def _ping(stream: socket.socket) -> None:
    """Ping once, then wait for `PING_INTERVAL_S`, or until the stream ends; `UnavailableError` when
    it does."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await asyncio.get_running_loop().sock_sendall(stream, bytes(_PING_BYTES))
            await receive(stream, _PING_BYTES)
        with suppress(TimeoutError):
            async with asyncio.timeout(PING_INTERVAL_S):
                await receive(stream, 1)
                raise RemoteProtocolError("expected silence after a ping, it said something")
    except TimeoutError:
        raise UnavailableError(f"it did not answer within {ANSWER_TIMEOUT_S} s") from None
    except OSError as error:
        raise UnavailableError(f"it is gone: {error}") from None


def _only(message: dict[int, list[bytes]], number: int) -> bytes:
    values = message.get(number, [])
    if len(values) != 1:
        raise RemoteProtocolError(f"expected one field {number}, got {len(values)}")
    return values[0]


def _is_ours(ip: str) -> bool:
    """Whether an address belongs to this machine: nobody else's can be bound to."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True
