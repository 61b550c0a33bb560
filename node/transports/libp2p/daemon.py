"""libp2p's daemon, p2pd, as a process of ours: found, started, watched and ended.

hivemind's wheel carries the program. It is started by ourselves and not by `hivemind.P2P`: the
flags that matter cannot be reached from there, and finding a file takes no import, so that a relay
runs without torch.

    -relayDataLimit -relayTimeLimit   else a relay cuts each circuit after 4 GiB or half an hour
    -forceReachability...             else it guesses for minutes whether others can dial it
    -autonat                          also switches hole punching on, and lets who asks be dialled back
    -announceAddrs                    what peers are told in place of all addresses that it hears of

Never -autoRelay: it knows the relays of its start alone, and sets one that it lost aside for an
hour. Places at relays are taken by `node.transports.libp2p.reservations`.

The key goes in through a pipe and never touches a disk. The sockets lie in a directory that only
our user can enter. The daemon ends with our lifeline to it, so it outlives no owner, not even one
that was killed; the directory that such an owner left is removed by the next one that starts."""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.libp2p.daemon_control import DaemonClient
from node.transports.libp2p.protobuf import field
from protocol.errors import UnavailableError

START_TIMEOUT_S = 60
"""Longest wait for the daemon to be ready: eight at once on two busy cores took 3 s, and there are
slower machines."""

STOP_TIMEOUT_S = 3
"""Time that the daemon gets to end by itself before it is killed."""

CONNECTIONS_MAX = 512
"""Connections of one daemon; beyond, it closes the least used."""

RESERVATIONS_MAX = 512
"""Nodes that one relay serves at once, also when all of them share an address."""

CIRCUITS_PER_PEER_MAX = 64
"""Relayed connections of one peer at once: its neighbours."""

CIRCUIT_BUFFER_BYTES = 64 * 1024
"""What a relay holds of each circuit and direction."""

_UNLIMITED_BYTES = 1 << 62
_UNLIMITED_TIME = "87600h"  # ten years
_CONTROL = "control.sock"
_PREFIX = "lockstep-p2pd-"
_LEFT_OVER_S = 60
_PARENT_CHARACTERS_MAX = 60  # a socket's path has 104 at most
_LAST_WORDS_LINES = 5


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """How a daemon is to run."""

    listen: tuple[str, ...] = ()
    """libp2p addresses at which it listens."""

    announce: tuple[str, ...] = ()
    """What it tells peers instead, HOST:PORT or libp2p's; nothing: what it finds out by itself."""

    public: bool = False
    """Whether others can dial it for sure; one that is not punches holes."""

    relays_for_others: bool = False
    """Whether it carries circuits; it has to be public."""

    upnp: bool = False
    """Whether it asks the router for a port."""


def find_p2pd() -> Path:
    """The daemon's program; `UnavailableError` with what to do when there is none."""
    spec = importlib.util.find_spec("hivemind")  # does not import it
    for package in (spec.submodule_search_locations or []) if spec else []:
        if (program := Path(package, "hivemind_cli", "p2pd")).is_file():
            return program
    raise UnavailableError(
        "libp2p needs the program p2pd of hivemind's package; `pip install --no-deps hivemind` brings it"
    )


class Daemon:
    """A running daemon. `Daemon.start` makes one; `stop` has to be called for each."""

    def __init__(self, process: asyncio.subprocess.Process, directory: "SocketDirectory") -> None:
        self._process = process
        self._directory = directory
        self._words: deque[str] = deque(maxlen=_LAST_WORDS_LINES)
        self._listening: asyncio.Task[None] | None = None
        self._lifeline: socket.socket | None = None
        self.client = DaemonClient(directory.path / _CONTROL)
        self.peer = ""
        """Its peer id."""
        self.addresses: tuple[str, ...] = ()
        """Where it believed to be reachable when it had started, without its peer id."""

    @classmethod
    async def start(
        cls, key: Ed25519PrivateKey, settings: DaemonSettings, directory: "SocketDirectory"
    ) -> "Daemon":
        """A daemon that answers. `UnavailableError` with its last words when there is none within
        `START_TIMEOUT_S`."""
        daemon = cls(await _launch(key, settings, directory.path / _CONTROL), directory)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await daemon._until_ready()
        except TimeoutError:
            await daemon.stop()
            raise UnavailableError(
                f"the libp2p daemon did not start within {START_TIMEOUT_S} s"
            ) from None
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Where its socket is, and its owner's may be."""
        return self._directory.path

    async def ended(self) -> str:
        """Wait until it is dead; returns how it died."""
        code = await self._process.wait()
        return f"status {code}, last words: {' '.join(self._words) or 'none'}"

    async def stop(self) -> None:
        """End it. May be called twice."""
        if self._lifeline is not None:
            self._lifeline.close()
        try:
            with contextlib.suppress(TimeoutError, ProcessLookupError):
                self._process.terminate()
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._process.wait()
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        await self._process.wait()
        if self._listening is not None:
            await self._listening
        (self._directory.path / _CONTROL).unlink(missing_ok=True)

    async def _until_ready(self) -> None:
        assert self._process.stdout
        while not (line := await self._process.stdout.readline()).startswith(b"Peer ID:"):
            if not line:
                raise UnavailableError(f"the libp2p daemon did not start: {await self.ended()}")
            self._words.append(line.decode(errors="replace").strip())
        self._words.clear()  # these said where its sockets are
        self._listening = asyncio.create_task(self._listen())
        self._lifeline = await self.client.hold()
        self.peer, self.addresses = await self.client.identify()

    async def _listen(self) -> None:
        """Take what the daemon says: a pipe that is not read would stop it."""
        assert self._process.stdout
        while piece := await self._process.stdout.read(64 * 1024):
            self._words.extend(piece.decode(errors="replace").splitlines()[-_LAST_WORDS_LINES:])


class SocketDirectory:
    """A new directory for sockets, which our user alone can enter. Those of processes that were
    killed are removed."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(parent) > _PARENT_CHARACTERS_MAX:
            parent = "/tmp"
        for left_over in Path(parent).glob(_PREFIX + "*"):
            _remove_ownerless(left_over)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove it with all that is in it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_ownerless(directory: Path) -> None:
    """Remove the directory of a dead process: the system drops its lock with it. Others'
    directories do not open."""
    with contextlib.suppress(OSError):
        lock = os.open(directory, os.O_RDONLY)
        try:
            # Without the minute, one that was made this instant would vanish before its owner has
            # locked it.
            if time.time() - os.fstat(lock).st_mtime > _LEFT_OVER_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


async def _launch(
    key: Ed25519PrivateKey, settings: DaemonSettings, control: Path
) -> asyncio.subprocess.Process:
    program, (reading, writing) = find_p2pd(), os.pipe()
    try:
        os.write(writing, _private_key(key))
        os.close(writing)
        return await asyncio.create_subprocess_exec(
            program,
            f"-id=/dev/fd/{reading}",
            f"-listen=/unix{control}",
            *_flags(settings),
            pass_fds=(reading,),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # a Ctrl-C for us is not one for it: it has to carry our last words
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(
            f"the libp2p daemon {program} does not run on this machine: {error.strerror or error}"
        ) from None
    finally:
        os.close(reading)


def _flags(settings: DaemonSettings) -> list[str]:
    flags = {
        "hostAddrs": ",".join(settings.listen),
        "announceAddrs": ",".join(settings.announce),
        "forceReachabilityPublic" if settings.public else "forceReachabilityPrivate": 1,
        "natPortMap": int(settings.upnp),
        "autonat": 1,
        "relayService": int(settings.relays_for_others),
        "relayMaxReservations": RESERVATIONS_MAX,
        "relayMaxCircuits": CIRCUITS_PER_PEER_MAX,
        "relayBufferSize": CIRCUIT_BUFFER_BYTES,
        "relayDataLimit": _UNLIMITED_BYTES,
        "relayTimeLimit": _UNLIMITED_TIME,
        "connManager": 1,
        "connLo": CONNECTIONS_MAX * 7 // 8,
        "connHi": CONNECTIONS_MAX,
        "idleTimeout": f"{START_TIMEOUT_S}s",  # ends it when we die before the lifeline is there
    }
    return [f"-{name}={value}" for name, value in flags.items() if value != ""]


def _private_key(key: Ed25519PrivateKey) -> bytes:
    """libp2p's form of the key: a protobuf of its type, ed25519, and the secret with the public key
    behind it."""
    return field(1, 1) + field(2, key.private_bytes_raw() + key.public_key().public_bytes_raw())
