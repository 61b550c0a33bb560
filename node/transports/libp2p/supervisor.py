"""Keeps one libp2p daemon alive at one address with one identity.

    start --> running --> died, or does not answer --> pause, start another --> running ...
                                                      (doubling up to `RESTART_MAX_S`)

The port is held by a socket of ours that does not listen, so that it stays ours while there is no
daemon; the daemon shares it (SO_REUSEPORT). What a new daemon needs before it is of use, its owner
does in `prepare`; a daemon for which that fails is replaced like one that died."""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.libp2p.daemon import Daemon, DaemonSettings, SocketDirectory
from node.transports.libp2p.daemon_control import DaemonClient
from node.transports.libp2p.multiaddr import from_host_port, libp2p_id, of_socket, with_port
from protocol.errors import AddressInUseError, LocalProtocolError, SettingsError, UnavailableError

HEALTH_INTERVAL_S = 10.0
"""How often the daemon is asked whether it lives; no answer in `daemon_client.ASK_TIMEOUT_S` is one
too."""

RESTART_FIRST_S, RESTART_MAX_S = 0.5, 30.0
"""Pauses between attempts to start another daemon; each is twice the one before."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_log = logging.getLogger(__name__)


class DaemonSupervisor:
    """One daemon that is replaced when it dies. `listen` is HOST:PORT or [HOST]:PORT, port 0 for
    any free one."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        listen: str,
        settings: DaemonSettings,
        prepare: Callable[[Daemon], Awaitable[None]],
        *,
        starts_max: int = 1,
    ) -> None:
        self.peer = libp2p_id(key.public_key().public_bytes_raw())
        """The daemon's libp2p peer id."""
        self.port = 0
        """The port it listens on, once started."""
        self.restarts = 0
        """Daemons that had to be replaced."""
        self._key = key
        self._listen = listen
        self._settings = settings
        self._prepare = prepare
        self._starts_max = starts_max
        self._port: socket.socket | None = None
        self._directory: SocketDirectory | None = None
        self._daemon: Daemon | None = None
        self._trouble = "it has not been started"
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the daemon. Raises `AddressInUseError`, `SettingsError`, or `UnavailableError` with
        its last words."""
        if self._directory is not None:
            raise LocalProtocolError(f"expected a daemon that is not started, got {self.peer}")
        self._directory = SocketDirectory()
        try:
            self._port = await _reserve(self._listen)
            self.port = self._port.getsockname()[1]
            self._settings = replace(
                self._settings,
                listen=(of_socket(self._port),),
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
        if self._port is not None:
            self._port.close()
        if self._directory is not None:
            self._directory.remove()
        self._port = self._directory = None

    @property
    def client(self) -> DaemonClient:
        """For questions to the daemon; `UnavailableError` while there is none."""
        if self._daemon is None:
            raise UnavailableError(f"no libp2p daemon is running here: {self._trouble}")
        return self._daemon.client

    @property
    def pid(self) -> int:
        """The daemon's process; `UnavailableError` while there is none."""
        if self._daemon is None:
            raise UnavailableError(f"no libp2p daemon is running here: {self._trouble}")
        return self._daemon.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a daemon at this moment."""
        return self._daemon is not None

    @property
    def directory(self) -> Path:
        """Where the sockets are; for a keeper that is started."""
        assert self._directory
        return self._directory.path

    @property
    def local_address(self) -> str:
        """Where this machine reaches the daemon, without its peer id; for a keeper that is
        started."""
        assert self._port
        host = self._port.getsockname()[0]
        return from_host_port(f"{_LOOPBACK.get(host, host)}:{self.port}")

    async def _start_first(self) -> Daemon:
        for attempt in range(1, self._starts_max + 1):
            try:
                return await self._start_one()
            except UnavailableError as error:
                if attempt == self._starts_max:
                    raise
                _log.info(
                    "libp2p daemon %d of %d is of no use: %s", attempt, self._starts_max, error
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
            self._trouble = await self._until_useless(self._daemon)
            dead, self._daemon = self._daemon, None
            _log.warning(
                "the libp2p daemon of %s is gone, starting another: %s", self.peer, self._trouble
            )
            await dead.stop()
            self._daemon = await self._replace()
            self.restarts += 1

    async def _until_useless(self, daemon: Daemon) -> str:
        """Wait until a daemon has to be replaced; returns why."""
        tasks = [asyncio.ensure_future(sign) for sign in (daemon.ended(), _until_silent(daemon))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _replace(self) -> Daemon:
        pause_s = RESTART_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                return await self._start_one()
            except UnavailableError as error:
                self._trouble = str(error)
                pause_s = min(2 * pause_s, RESTART_MAX_S)
                _log.warning(
                    "no new libp2p daemon for %s, again in %.1f s: %s", self.peer, pause_s, error
                )


async def _until_silent(daemon: Daemon) -> str:
    """Wait until a daemon does not answer; returns that in words."""
    try:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            await daemon.client.identify()
    except UnavailableError as error:
        return str(error)


async def _reserve(listen: str) -> socket.socket:
    """A socket that holds a port for the daemon. Raises `AddressInUseError` or `SettingsError`."""
    from_host_port(listen)  # refuses what is not HOST:PORT
    host, _, port = listen.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.removeprefix("[").removesuffix("]"),
            int(port),
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        family, kind, protocol, _, address = found[0]
        held = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"cannot listen on {listen}: {error.strerror or error}") from None
    try:
        held.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections of an earlier daemon may linger
        held.bind(address)
        held.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 0
        )  # from here on nobody else may have it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # but the daemon
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"cannot listen on {listen}: another process does; choose another port"
            ) from None
        raise SettingsError(f"cannot listen on {listen}: {error.strerror or error}") from None
    return held
