"""Pipes over libp2p: encrypted TCP between two daemons, through a relay where no direct way exists.

    this process                 p2pd                      p2pd                 that process
    SocketPipe --- unix socket --- libp2p stream over TCP --- unix socket --- SocketPipe
                                      (or TCP - relay - TCP)

One stream of libp2p is one pipe, kept open for as long as its owner likes, so that its window has
grown when bytes come. A libp2p peer id is a function of the node's own key (`multiaddr.libp2p_id`),
and a connection proves it: `SocketPipe.proves`.

    public     /ip4/192.0.2.7/tcp/50702/p2p/ID: by its settings, or because it is a relay
    any other  the same once a relay has got through from outside (`reservations`); through relays,
               /ip4/198.51.100.1/tcp/50702/p2p/RELAY/p2p-circuit/p2p/ID; or over a connection that
               it made, /p2p/ID

A direct connection replaces a relayed one when the peer's own address answers, and when the daemons
punch a hole, which they try where four others see both ends (`hole_punching`); else the relay
carries the pipe. libp2p opens no second connection to a peer, so the relayed one is closed first.

The daemon is watched: when it dies or does not answer, every pipe breaks at once and another daemon
starts in its place, with the same identity and port (`supervisor`). It is driven without hivemind's
Python, which would import torch and cannot pass the flags that make relays usable (`daemon`).
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import Accept
from node.transports.dial_guard import DialGuard
from node.transports.libp2p.accepted import AcceptedPipes
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.daemon import Daemon, DaemonSettings
from node.transports.libp2p.daemon_control import receive_caller
from node.transports.libp2p.dialler import PROTOCOL, Dialler
from node.transports.libp2p.doorman import Endpoint
from node.transports.libp2p.multiaddr import (
    encode,
    from_host_port,
    ip_of,
    is_circuit,
    tcp_port,
    with_port,
)
from node.transports.libp2p.pipe import SocketPipe
from node.transports.libp2p.reservations import Reservations
from node.transports.libp2p.supervisor import DaemonSupervisor
from protocol.errors import LocalProtocolError, SettingsError, UnavailableError
from protocol.limits import ADDRESSES_MAX

ACCEPTED_MAX = 512
"""Pipes that peers hold open to this node."""

WAITING_MAX = 64
"""Pipes that wait to be taken; the daemon refuses more, which costs this process nothing."""

ACCEPT_PAUSE_S = 0.5
"""Pause after a pipe that could not be taken: until then a lack of descriptors is hardly over."""

PROVEN_STARTS_MAX = 24
"""Daemons tried until one proves itself as a relay: three of four do, on a busy machine less than
half. A bad one is recognised in less than a second."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Libp2pSettings:
    """Addresses of a transport and how it is reached."""

    listen: str = "0.0.0.0:0"
    """HOST:PORT or [IPV6]:PORT; port 0 for any free one."""

    advertise: tuple[str, ...] = ()
    """Addresses to announce for direct dials, HOST:PORT or libp2p's; port 0 stands for the port
    that is bound."""

    relays: tuple[str, ...] = ()
    """libp2p addresses of the relays known at the start, each with its peer id; see
    `Libp2pTransport.use_relays`."""

    public: bool = False
    """Whether peers can surely dial it directly."""

    behind_router_for_test: bool = False
    """Whether it never announces a direct address, as if it were behind a router. For the proof of
    a relay (`relay_proof`) and for tests; a node never sets it."""

    upnp: bool = False
    """Whether it asks the home router for a port; `addresses` has the port once a relay has dialled
    it."""

    direct_wait_s: float = 1.0
    """How long a dial through a relay waits for hole punching to find a direct way."""

    guard: DialGuard | None = None
    """Says which addresses may be dialled; None: all."""

    p2pd_sha256: str = ""
    """SHA-256 of the daemon's program, in hexadecimal; empty: one of those that are known."""

    accepted_max: int = ACCEPTED_MAX
    """Pipes that peers may hold open at most, if they are fewer than `ACCEPTED_MAX`: each is a
    descriptor."""

    def __post_init__(self) -> None:
        for address in self.advertise:
            encode(from_host_port(address))
        if len(self.advertise) > ADDRESSES_MAX:
            raise SettingsError(
                f"expected at most {ADDRESSES_MAX} addresses, got {len(self.advertise)}"
            )


class Libp2pTransport:
    """A `node.transports.base.Transport` over libp2p, with the identity of the given key.

    With a `proof` it carries circuits for others: a new daemon is rejected unless `proof(its
    address)` returns.
    """

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
        self._supervisor = DaemonSupervisor(
            key,
            self._settings.listen,
            self._daemon_settings(),
            self._prepare,
            known=self._known,
            starts_max=1 if proof is None else PROVEN_STARTS_MAX,
        )
        self._changed = asyncio.Event()
        self._reservations = Reservations(
            self._supervisor.peer,
            lambda: self._supervisor.port,
            self._changed.set,
            looks=not self._settings.behind_router_for_test,
        )
        self.use_relays(self._settings.relays)
        self._dialler = Dialler(
            self._supervisor.peer,
            lambda: self._supervisor.client,
            self._settings.direct_wait_s,
        )
        self._accept: Accept | None = None
        self._listener: socket.socket | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self._pipes: set[SocketPipe] = set()
        self._places = min(ACCEPTED_MAX, self._settings.accepted_max)
        self._accepted = AcceptedPipes(self._places)
        self._turned_out = set[str]()

    @property
    def peer(self) -> str:
        """This node's libp2p peer id."""
        return self._supervisor.peer

    @property
    def listen(self) -> str:
        """HOST:PORT of its settings."""
        return self._settings.listen

    @property
    def cuts(self) -> Mapping[str, int]:
        """See `Transport`."""
        return self._accepted.cuts

    @property
    def restarts(self) -> int:
        """Daemons that were replaced."""
        return self._supervisor.restarts

    @property
    def is_running(self) -> bool:
        """Whether there is a daemon at this moment."""
        return self._supervisor.is_running

    @property
    def relay_trouble(self) -> str:
        """Why no relay carries circuits to this node; empty while one does, or may soon."""
        return self._reservations.trouble

    @property
    def directory(self) -> Path:
        """Directory of the daemon's sockets; for a transport that has started."""
        return self._supervisor.directory

    async def start(self, accept: Accept) -> tuple[str, ...]:
        """See `Transport`; `UnavailableError` when libp2p does not run on this machine."""
        if self._accept is not None:
            raise LocalProtocolError(
                f"expected a transport that is not started, got one of {self.peer}"
            )
        self._accept = accept
        try:
            await self._supervisor.start()
            await self._reservations.settle()
            return await self.addresses()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        # Pipes say goodbye first: without the daemon they cannot, and the other ends would see a
        # break.
        await asyncio.gather(*(pipe.close() for pipe in list(self._pipes)))
        for task in (accepting := list(self._accepting)):
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        await self._reservations.stop()
        await self._supervisor.stop()
        self._accept = None

    def dials(self, address: str) -> bool:
        """Whether an address begins like one of libp2p's."""
        return address.startswith("/")

    async def dial(self, address: str) -> SocketPipe:
        """Open a pipe to the peer that an address names, at the address or over a connection to the
        peer that exists already.
        """
        if self._settings.guard:
            address = await self._settings.guard.checked(address)
        return self._pipe(*await self._dialler.dial(address))

    async def addresses(self) -> tuple[str, ...]:
        """The addresses to announce now, the best first: they change with the relays, and with
        their looks. `UnavailableError` while there is no daemon.
        """
        _, found = await self._supervisor.client.identify()
        settings, reservations = self._settings, self._reservations
        direct = [
            with_port(from_host_port(address), self._supervisor.port)
            for address in settings.advertise
        ]
        through = list(reservations.circuits)
        if not direct and not settings.behind_router_for_test:
            # Without any relay so far nothing is lost by announcing the addresses of this machine.
            direct = list(reservations.direct) if reservations.used else _dialled(found)
        bare = [] if settings.public else [""]
        # The list is cut at its end; a circuit is worth more than a seventh direct address.
        room = ADDRESSES_MAX - len(through) - len(bare)
        return tuple(f"{where}/p2p/{self.peer}" for where in (*direct[:room], *through, *bare))

    async def moved(self, announced: tuple[str, ...]) -> tuple[str, ...]:
        """Wait until the addresses to announce differ from these; returns them."""
        while True:
            self._changed.clear()
            with contextlib.suppress(UnavailableError):  # a daemon that is being replaced
                if (now := await self.addresses()) != announced:
                    return now
            await self._changed.wait()

    def use_relays(self, relays: Sequence[str]) -> None:
        """Use these relays of the run from now on, each with its peer id. A public node needs
        none.
        """
        self._reservations.use(() if self._settings.public else relays)

    async def contacts(self) -> list[Contact]:
        """The open connections of the daemon. `UnavailableError` while there is no daemon, or it
        does not answer.
        """
        return await self._supervisor.client.contacts()

    def _pipe(self, stream: socket.socket, contact: Contact) -> SocketPipe:
        pipe = SocketPipe(stream, contact, self._pipes.discard)
        self._pipes.add(pipe)
        return pipe

    # ---- listening

    async def _prepare(self, daemon: Daemon) -> None:
        """Make a new daemon hand over the streams that peers open, and prove it as a relay."""
        path = daemon.directory / "pipes.sock"
        if self._listener is None:
            self._listener = _listener(path)
            self._listen_on()
        await daemon.client.handle(PROTOCOL, path)
        if self._proof is not None:
            await self._proof(f"{self._supervisor.local_address}/p2p/{daemon.peer}")
        self._dialler.forget_failures()  # of the earlier daemon
        self._reservations.renew(daemon.client)

    def _take_stream(self) -> None:
        assert self._listener
        try:
            stream, _ = self._listener.accept()
        except OSError:  # the caller gave up, or there is no descriptor: it waits meanwhile
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(ACCEPT_PAUSE_S, self._listen_on)
            return
        stream.setblocking(False)
        if len(self._accepting) >= self._places:
            stream.close()
            return
        task = asyncio.create_task(self._serve(stream))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        task.add_done_callback(lambda _: stream.close())  # also when cancelled before it began

    def _listen_on(self) -> None:
        if self._listener:
            asyncio.get_running_loop().add_reader(self._listener, self._take_stream)

    async def _serve(self, stream: socket.socket) -> None:
        assert self._accept
        try:
            pipe = self._pipe(stream, await receive_caller(stream))
        except UnavailableError as error:
            _log.debug("stream lost", extra={"reason": str(error)})
            return
        try:
            with self._accepted.place(pipe) as has_place:
                if has_place:
                    await self._accept(pipe)
        except Exception:
            _log.exception("pipe dropped", extra={"remote": pipe.remote})
        finally:
            await pipe.close()
        if pipe.is_cut:
            await self._turn_out(pipe.contact.peer)

    async def _turn_out(self, peer: str) -> None:
        """Close a stranger's connection, which may carry more pipes of the kind."""
        known = (each.contact.peer for each in self._pipes if each.is_admitted)
        if peer in self._turned_out or peer in known:
            return
        self._turned_out.add(peer)
        with contextlib.suppress(UnavailableError):
            await self._supervisor.client.disconnect(peer)
        self._turned_out.discard(peer)

    def _known(self) -> set[Endpoint]:
        """The remote ends of connections over which a key was proven, and of the relays in use."""
        used = [pipe.contact.address for pipe in self._pipes if pipe.is_admitted]
        used += self._reservations.circuits
        return {(str(ip_of(each)), tcp_port(each)) for each in used}

    def _daemon_settings(self) -> DaemonSettings:
        settings = self._settings
        # Behind a router: peers that know its public address would dial that before they punch a
        # hole, and spoil it. So they are told only of this machine's own address.
        own = () if settings.public or not _is_one_address(settings.listen) else (settings.listen,)
        return DaemonSettings(
            announce=settings.advertise or own,
            public=settings.public,
            relays_for_others=self._proof is not None,
            upnp=settings.upnp,
            sha256=settings.p2pd_sha256,
        )


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(str(path))
    listener.listen(WAITING_MAX)
    return listener


def _dialled(found: Sequence[str]) -> list[str]:
    """The addresses of a daemon that peers can dial; loopback only when there is nothing else."""
    direct = [address for address in found if not is_circuit(address)]
    return [address for address in direct if not _is_loopback(address)] or direct


def _is_loopback(address: str) -> bool:
    ip = ip_of(address)
    return ip is not None and ip.is_loopback


def _is_one_address(listen: str) -> bool:
    """Whether HOST:PORT names one interface: not all of them, and not by a name, which others may
    not know.
    """
    with contextlib.suppress(SettingsError):
        ip = ip_of(from_host_port(listen))
        return ip is not None and not ip.is_unspecified
    return False
