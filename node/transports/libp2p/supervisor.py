"""Keeps one libp2p daemon alive at one address with one identity.

    start --> running --> died, or does not answer, --> pause, start another --> running ...
                          or fills the memory          (doubling up to `RESTART_MS[1]`)

The port is held by a socket of ours that does not listen, so that it stays ours while there is no
daemon; the daemon shares it (SO_REUSEPORT). The owner prepares each new daemon in `prepare`; a
daemon for which that fails is replaced like one that died.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.system.backoff import Backoff
from node.transports.libp2p.daemon import (
    PROGRAM_BYTES,
    Daemon,
    DaemonSettings,
    SocketDirectory,
)
from node.transports.libp2p.daemon_control import DaemonClient
from node.transports.libp2p.doorman import Doorman, Endpoint
from node.transports.libp2p.multiaddr import from_host_port, libp2p_id, with_port
from protocol.addresses import listen_error, split_address
from protocol.errors import LocalProtocolError, UnavailableError

HEALTH_INTERVAL_S = 10.0
"""Pause between two questions whether the daemon lives; one that does not answer within
`daemon_control.ASK_TIMEOUT_S` is replaced."""

RESTART_MS = (500, 30_000)
"""First and longest pause between attempts to start another daemon."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_log = logging.getLogger(__name__)


class DaemonSupervisor:
    """One daemon that is replaced when it dies. `listen` is HOST:PORT or [IPV6]:PORT, port 0 for
    any free one; `known()` are the ends of connections that no doorman cuts; `starts_max` daemons
    are tried until one is prepared.
    """

    def __init__(
        self,
        key: Ed25519PrivateKey,
        listen: str,
        settings: DaemonSettings,
        prepare: Callable[[Daemon], Awaitable[None]],
        *,
        known: Callable[[], Collection[Endpoint]] = tuple,
        starts_max: int = 1,
    ) -> None:
        self.peer = libp2p_id(key.public_key().public_bytes_raw())
        """The daemon's libp2p peer id."""
        self.port = 0
        """The port of a supervisor that has started."""
        self.restarts = 0
        """Daemons that were replaced."""
        self._key = key
        self._listen = listen
        self._settings = settings
        self._prepare = prepare
        self._known = known
        self._starts_max = starts_max
        self._held: socket.socket | None = None
        self._directory: SocketDirectory | None = None
        self._daemon: Daemon | None = None
        self._trouble = "it has not been started"
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the daemon. Raises `AddressInUseError`, `SettingsError`, or `UnavailableError` with
        its last words.
        """
        if self._directory is not None:
            raise LocalProtocolError(f"expected a daemon that is not started, got {self.peer}")
        self._directory = SocketDirectory()
        try:
            self._held = await _reserve(self._listen)
            self.port = self._held.getsockname()[1]
            self._settings = replace(
                self._settings,
                listen=(_tcp_address(*self._held.getsockname()[:2]),),
                announce=tuple(
                    with_port(from_host_port(address), self.port)
                    for address in self._settings.announce
                ),
            )
            self._daemon = await self._start_first()
        except BaseException:
            await self.stop()
            raise
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End the daemon and leave nothing behind. May be called twice, or without a start."""
        self._trouble = "it was stopped"
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            await daemon.stop()
        if self._held is not None:
            self._held.close()
        if self._directory is not None:
            self._directory.remove()
        self._held = self._directory = None

    @property
    def client(self) -> DaemonClient:
        """Asks the daemon; `UnavailableError` while there is none."""
        if self._daemon is None:
            raise UnavailableError(f"no libp2p daemon is running here: {self._trouble}")
        return self._daemon.client

    @property
    def is_running(self) -> bool:
        """Whether there is a daemon at this moment."""
        return self._daemon is not None

    @property
    def directory(self) -> Path:
        """Directory of the sockets; for a supervisor that has started."""
        assert self._directory
        return self._directory.path

    @property
    def local_address(self) -> str:
        """Address at which this machine reaches the daemon, without its peer id; for a supervisor
        that has started.
        """
        assert self._held
        host = self._held.getsockname()[0]
        return _tcp_address(_LOOPBACK.get(host, host), self.port)

    async def _start_first(self) -> Daemon:
        for attempt in range(1, self._starts_max + 1):
            try:
                return await self._start_one()
            except UnavailableError as error:
                if attempt == self._starts_max:
                    raise
                _log.info(
                    "libp2p daemon rejected",
                    extra={"attempt": attempt, "of": self._starts_max, "reason": str(error)},
                )
        raise AssertionError("unreachable: starts_max is at least 1")

    async def _start_one(self) -> Daemon:
        assert self._directory
        daemon = await Daemon.start(self._key, self._settings, self._directory)
        try:
            await self._prepare(daemon)
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    async def _watch(self) -> None:
        while self._daemon is not None:
            self._trouble = await self._until_broken(self._daemon)
            dead, self._daemon = self._daemon, None
            _log.warning(
                "libp2p daemon lost, starting another",
                extra={"libp2p_peer": self.peer, "reason": self._trouble},
            )
            await dead.stop()
            self._daemon = await self._replace()
            self.restarts += 1

    async def _until_broken(self, daemon: Daemon) -> str:
        """Wait until a daemon has to be replaced; returns why."""
        large_bytes = PROGRAM_BYTES + self._settings.memory_bytes
        doorman = Doorman(daemon.pid, self.port, self._known, large_bytes)
        signs = (daemon.ended(), _until_silent(daemon), doorman.watch())
        tasks = [asyncio.ensure_future(sign) for sign in signs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _replace(self) -> Daemon:
        backoff = Backoff(*RESTART_MS)
        while True:
            await asyncio.sleep(backoff.next() / 1000)
            try:
                return await self._start_one()
            except UnavailableError as error:
                self._trouble = str(error)
                _log.warning(
                    "libp2p daemon did not start, trying again",
                    extra={"libp2p_peer": self.peer, "reason": self._trouble},
                )


async def _until_silent(daemon: Daemon) -> str:
    """Wait until a daemon does not answer; returns why."""
    try:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            await daemon.client.identify()
    except UnavailableError as error:
        return str(error)


async def _reserve(listen: str) -> socket.socket:
    """A socket that holds a port for the daemon. Raises `AddressInUseError` or `SettingsError`."""
    host, port = split_address(listen)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        held = socket.socket(family, kind, protocol)
    except OSError as error:
        raise listen_error(error, listen) from None
    try:
        # Connections of an earlier daemon may linger; once bound, the port is shared with nobody
        # but the daemon.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        held.close()
        raise listen_error(error, listen) from None
    return held


def _tcp_address(ip: str, port: int) -> str:
    return f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{port}"
