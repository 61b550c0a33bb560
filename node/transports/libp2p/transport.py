"""Pipes over libp2p: encrypted TCP between two daemons, through a relay where no direct way exists.

    this process                 p2pd                      p2pd                 that process
    SocketPipe --- unix socket --- libp2p stream over TCP --- unix socket --- SocketPipe
                                      (or TCP - relay - TCP)

One stream of libp2p is one pipe, kept open as long as its owner likes, so that its window has grown
when bytes come. A libp2p peer id is a function of the node's own key (`multiaddr.libp2p_id`); a
connection proves it: `SocketPipe.peer`.

    public     dialled at /ip4/192.0.2.7/tcp/50702/p2p/ID: it was told so, or carries circuits for others
    any other  dialled there when a relay has done so from outside (`node.transports.libp2p.reservations`), else through relays,
               /ip4/198.51.100.1/tcp/50702/p2p/RELAY/p2p-circuit/p2p/ID, or over a connection that it made, /p2p/ID

A relayed connection gives way to a direct one: when the peer's own address answers, and when the
daemons punch a hole, which they try where four others see both ends
(`node.transports.libp2p.hole_punching`); else the relay carries the pipe. libp2p opens no second
connection to a peer, so the relayed one is closed first.

The daemon is watched: when it dies or does not answer, every pipe breaks at once and another daemon
starts in its place, with the same identity and port. It is driven without hivemind's Python, which
would import torch and cannot pass the flags that make relays usable
(`node.transports.libp2p.daemon`)."""

import asyncio
import contextlib
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import Accept
from node.transports.libp2p.daemon import Daemon, DaemonSettings
from node.transports.libp2p.daemon_control import Contact, receive_caller
from node.transports.libp2p.hole_punching import Attempts
from node.transports.libp2p.multiaddr import (
    encode,
    from_host_port,
    host_of,
    ip_of,
    split_peer,
    tcp_port,
    with_port,
)
from node.transports.libp2p.pipe import SocketPipe
from node.transports.libp2p.reservations import Reservations
from node.transports.libp2p.supervisor import DaemonSupervisor
from protocol.errors import LocalProtocolError, SettingsError, UnavailableError
from protocol.limits import ADDRESSES_MAX, TEXT_BYTES_MAX

PROTOCOL = "/lockstep/pipe/1"
"""libp2p's name of our streams."""

DIAL_TIMEOUT_S = 9
"""Longest time for a dial: TCP has sent its first packet four times by then."""

REDIAL_S = 5.2
"""libp2p refuses to dial an address for 5 s after it failed; we say so without asking it."""

FAILURES_MAX = 1024
"""Addresses remembered as failed; the oldest is forgotten first."""

ACCEPTED_MAX = 512
"""Pipes that peers have open to us; a further one is closed at once."""

PROBE_TIMEOUT_S = 5
"""Longest wait for a direct address of a peer that a relay connects already."""

PROVEN_STARTS_MAX = 24
"""Daemons tried until one proves itself as a relay: three of four do, on a busy machine less than
half. The others are found out in less than a second."""

_LOOK_S = 0.05
_CIRCUIT = "/p2p-circuit"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Libp2pSettings:
    """Where a transport listens and how it is reached."""

    listen: str = "0.0.0.0:0"
    """HOST:PORT, or [HOST]:PORT; port 0 for any free one."""

    advertise: tuple[str, ...] = ()
    """Addresses to announce as dialled directly, HOST:PORT or libp2p's; port 0 stands for the port
    that is bound."""

    relays: tuple[str, ...] = ()
    """libp2p addresses of the relays known at the start, each with its peer id; see
    `Libp2pTransport.use_relays`."""

    public: bool = False
    """Whether peers can dial it directly for sure."""

    hidden: bool = False
    """Whether it never announces a direct address, as if it were behind a router: to try a
    relay."""

    upnp: bool = False
    """Whether it asks the home router for a port; `addresses` has it once a relay has dialled
    it."""

    direct_wait_s: float = 1.0
    """How long a dial through a relay waits for hole punching to find a direct way."""

    def __post_init__(self) -> None:
        for address in self.advertise:
            encode(from_host_port(address))
        if len(self.advertise) > ADDRESSES_MAX:
            raise SettingsError(
                f"expected at most {ADDRESSES_MAX} addresses, got {len(self.advertise)}"
            )


class Libp2pTransport:
    """A `node.transports.base.Transport` over libp2p, with the identity of the given key.

    With a `proof` it carries circuits for others: each new daemon is of use only when `proof(its
    address)` returns."""

    kind = "libp2p"

    def __init__(
        self,
        key: Ed25519PrivateKey,
        settings: Libp2pSettings | None = None,
        *,
        proof: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._settings = settings or Libp2pSettings()
        self._proof = proof
        self._keeper = DaemonSupervisor(
            key,
            self._settings.listen,
            self._daemon_settings(),
            self._prepare,
            starts_max=1 if proof is None else PROVEN_STARTS_MAX,
        )
        self._changed = asyncio.Event()
        self._reservations = Reservations(
            self._keeper.peer,
            lambda: self._keeper.port,
            self._changed.set,
            looks=not self._settings.hidden,
        )
        self.use_relays(self._settings.relays)
        self._attempts = Attempts(self._keeper.peer)
        self._accept: Accept | None = None
        self._listener: socket.socket | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self._pipes: set[SocketPipe] = set()
        self._failures: OrderedDict[str, tuple[float, str]] = OrderedDict()

    @property
    def peer(self) -> str:
        """Our libp2p peer id."""
        return self._keeper.peer

    @property
    def restarts(self) -> int:
        """Daemons that had to be replaced."""
        return self._keeper.restarts

    @property
    def daemon_pid(self) -> int:
        """The process of the daemon; `UnavailableError` while there is none."""
        return self._keeper.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a daemon at this moment."""
        return self._keeper.is_running

    @property
    def relay_trouble(self) -> str:
        """Why no relay carries circuits to it; empty while one does, or may soon."""
        return self._reservations.trouble

    @property
    def directory(self) -> Path:
        """Where its sockets are; for a transport that is started."""
        return self._keeper.directory

    async def start(self, accept: Accept) -> tuple[str, ...]:
        """Listen; returns the addresses to announce, the best first.

        Raises `AddressInUseError`, `SettingsError`, or `UnavailableError` when libp2p does not run
        on this machine."""
        if self._accept is not None:
            raise LocalProtocolError(
                f"expected a transport that is not started, got one of {self.peer}"
            )
        self._accept = accept
        try:
            await self._keeper.start()
            await self._reservations.settle()
            return await self.addresses()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close every pipe and stop listening."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        # Pipes say goodbye first: once the daemon is gone they cannot, and the other ends would see
        # a break.
        await asyncio.gather(*(pipe.close() for pipe in list(self._pipes)))
        for task in (accepting := list(self._accepting)):
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        await self._reservations.stop()
        await self._keeper.stop()
        self._accept = None

    def dials(self, address: str) -> bool:
        """Whether it looks like one of libp2p's addresses."""
        return address.startswith("/")

    async def dial(self, address: str) -> SocketPipe:
        """Open a pipe to the peer that an address names, there or over a connection to it that
        exists already."""
        failed_at, reason = self._failures.get(address, (-REDIAL_S, ""))
        if (rest_s := failed_at + REDIAL_S - time.monotonic()) > 0:
            raise UnavailableError(f"{address} is dialled again in {rest_s:.1f} s: {reason}")
        try:
            where, peer = split_peer(address)
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                return await self._open(where, peer)
        except SettingsError as error:
            raise UnavailableError(f"a peer announced what cannot be dialled: {error}") from None
        except TimeoutError:
            raise self._failed(address, f"no answer within {DIAL_TIMEOUT_S} s") from None
        except UnavailableError as error:
            raise self._failed(address, " ".join(str(error).split())[:TEXT_BYTES_MAX]) from None

    async def addresses(self) -> tuple[str, ...]:
        """What to announce now, the best first: relays come and go, and reach this node directly or
        not.

        `UnavailableError` while there is no daemon."""
        _, found = await self._keeper.client.identify()
        settings, reservations = self._settings, self._reservations
        direct = [
            with_port(from_host_port(address), self._keeper.port) for address in settings.advertise
        ]
        through = list(reservations.circuits)
        if not direct and not settings.hidden:
            # Where nobody has ever carried circuits there is nothing to lose by saying where it
            # listens.
            direct = list(reservations.direct) if reservations.used else _dialled(found)
        bare = [] if settings.public else [""]
        # What comes first wins a place: a circuit is worth more than a seventh direct address.
        room = ADDRESSES_MAX - len(through) - len(bare)
        return tuple(f"{where}/p2p/{self.peer}" for where in (*direct[:room], *through, *bare))

    async def moved(self, announced: tuple[str, ...]) -> tuple[str, ...]:
        """Wait until other addresses are to be announced than these; returns them."""
        while True:
            self._changed.clear()
            with contextlib.suppress(UnavailableError):  # a daemon that is being replaced
                if (now := await self.addresses()) != announced:
                    return now
            await self._changed.wait()

    def use_relays(self, relays: Sequence[str]) -> None:
        """The relays of the run from now on, each with its peer id. A node that is public needs
        none."""
        self._reservations.use(() if self._settings.public else relays)

    async def contacts(self) -> list[Contact]:
        """The open connections of the daemon. `UnavailableError` while there is none, or it does
        not answer."""
        return await self._keeper.client.contacts()

    # ---- dialling

    async def _open(self, where: str, peer: str) -> SocketPipe:
        client = self._keeper.client
        if where:
            await self._make_way(where, peer)
            await client.connect(peer, (where,), DIAL_TIMEOUT_S)
        if where.endswith(_CIRCUIT):
            await self._until_direct(peer)
        stream, contact = await client.open(peer, PROTOCOL, DIAL_TIMEOUT_S)
        return self._pipe(stream, contact)

    async def _make_way(self, where: str, peer: str) -> None:
        """Close a relayed connection that keeps the daemon from making a direct one, when one can
        be hoped for."""
        contacts = await self.contacts()
        ours = [contact for contact in contacts if contact.peer == peer]
        if not ours or not all(contact.relayed for contact in ours):
            return
        if where.endswith(_CIRCUIT):
            if not self._attempts.due(peer, contacts, time.monotonic()):
                return
        elif not await _answers(where):
            raise UnavailableError("nobody answers there; a relay connects the two")
        await self._keeper.client.disconnect(peer)

    async def _until_direct(self, peer: str) -> None:
        """Wait a moment for a direct connection beside the relayed one; libp2p opens new streams
        over that."""
        await self._look_for(
            lambda contact: contact.peer == peer and not contact.relayed,
            self._settings.direct_wait_s,
        )

    async def _look_for(self, wanted: Callable[[Contact], bool], seconds: float) -> bool:
        """Whether the daemon, which does not tell by itself, comes to have a connection in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    if any(map(wanted, await self.contacts())):
                        return True
                    await asyncio.sleep(_LOOK_S)
        return False

    def _failed(self, address: str, reason: str) -> UnavailableError:
        self._failures[address] = time.monotonic(), reason
        self._failures.move_to_end(address)
        while len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)
        return UnavailableError(f"{address}: {reason}")

    def _pipe(self, stream: socket.socket, contact: Contact) -> SocketPipe:
        remote = f"{contact.address}/p2p/{contact.peer}"
        pipe = SocketPipe(
            stream,
            remote=remote,
            peer=contact.peer,
            relayed=contact.relayed,
            on_close=self._pipes.discard,
        )
        self._pipes.add(pipe)
        return pipe

    # ---- listening

    async def _prepare(self, daemon: Daemon) -> None:
        """Have a new daemon hand us the streams that peers open."""
        path = daemon.directory / "pipes.sock"
        if self._listener is None:
            self._listener = _listener(path)
            asyncio.get_running_loop().add_reader(self._listener, self._take_stream)
        await daemon.client.handle(PROTOCOL, path)
        if self._proof is not None:
            await self._proof(f"{self._keeper.local_address}/p2p/{daemon.peer}")
        self._failures.clear()  # they were another daemon's
        self._reservations.renew(daemon.client)

    def _take_stream(self) -> None:
        assert self._listener
        with contextlib.suppress(
            OSError
        ):  # it gave up, or we have too many files open: libp2p tells its peer
            stream, _ = self._listener.accept()
            stream.setblocking(False)
            if len(self._accepting) >= ACCEPTED_MAX:
                stream.close()
                return
            task = asyncio.create_task(self._serve(stream))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
            task.add_done_callback(
                lambda _: stream.close()
            )  # also when it was cancelled before it began

    async def _serve(self, stream: socket.socket) -> None:
        assert self._accept
        try:
            pipe = self._pipe(stream, await receive_caller(stream))
        except UnavailableError as error:
            _log.debug("a stream was lost: %s", error)
            return
        try:
            await self._accept(pipe)
        except Exception:
            _log.exception("the pipe from %s was dropped", pipe.remote)
        finally:
            await pipe.close()

    def _daemon_settings(self) -> DaemonSettings:
        settings = self._settings
        # Where a router stands between, peers that heard of its public address would dial that
        # before they punch a hole, and spoil it. So they are told of nothing but this machine's own
        # address.
        own = () if settings.public or not _is_one_address(settings.listen) else (settings.listen,)
        return DaemonSettings(
            announce=settings.advertise or own,
            public=settings.public,
            relays_for_others=self._proof is not None,
            upnp=settings.upnp,
        )


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(str(path))
    listener.listen()
    return listener


def _dialled(found: Sequence[str]) -> list[str]:
    """Of the addresses of a daemon those that peers can dial; loopback only when there is nothing
    else."""
    direct = [address for address in found if _CIRCUIT not in address]
    return [address for address in direct if not _is_loopback(address)] or direct


def _is_loopback(address: str) -> bool:
    ip = ip_of(address)
    return ip is not None and ip.is_loopback


def _is_one_address(listen: str) -> bool:
    """Whether HOST:PORT names an interface, and not all of them, or a name that others may not
    know."""
    with contextlib.suppress(SettingsError):
        ip = ip_of(from_host_port(listen))
        return ip is not None and not ip.is_unspecified
    return False


async def _answers(where: str) -> bool:
    """Whether somebody listens at an address."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host_of(where), tcp_port(where))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
