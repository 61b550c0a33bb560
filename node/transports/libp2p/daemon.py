"""libp2p's daemon, p2pd, as a process of this node: found, started, watched and ended.

hivemind's wheel carries the program. It is not started by `hivemind.P2P`, which does not pass the
flags that matter; and to find a file no import is needed, so a relay runs without torch.

    -relayDataLimit -relayTimeLimit   else a relay cuts each circuit after 4 GiB or half an hour
    -forceReachability...             else it guesses for minutes whether others can dial it
    -autonat                          switches hole punching on too, and dials peers back that ask
    -announceAddrs                    told to peers in place of all addresses that it hears of

Never -autoRelay: it knows only the relays of its start, and sets a lost one aside for an hour.
`node.transports.libp2p.reservations` takes the places at relays.

The program is a binary from a package registry: its bytes are compared with a known digest each
time before it is started. The key goes in through a pipe and never touches a disk. The sockets lie
in a directory that only our user can enter. The daemon ends with our lifeline to it, so it does not
outlive its owner, even a killed one; the next daemon that starts removes the directory that such an
owner left.
"""

import asyncio
import contextlib
import fcntl
import hashlib
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
from node.transports.libp2p.p2pd_pb2 import PrivateKey
from protocol.errors import UnavailableError

START_TIMEOUT_S = 60
"""Longest wait for the daemon to be ready: eight at once on two busy cores took 3 s, and some
machines are slower."""

STOP_TIMEOUT_S = 3
"""Time that the daemon gets to end by itself before it is killed."""

CONNECTIONS_MAX = 512
"""Connections of one daemon; beyond, it closes the least used."""

RESERVATIONS_MAX = 512
"""Nodes that one relay serves at once, also when all of them share an address."""

CIRCUITS_PER_PEER_MAX = 64
"""Relayed connections of one peer at once: its neighbours."""

CIRCUIT_BUFFER_BYTES = 64 * 1024
"""Buffer of a relay for each circuit and direction."""

HIVEMIND = "1.1.12"
"""Release of hivemind whose wheel brings the daemon, as in constraints.txt."""

P2PD_SHA256 = frozenset(["42f8f48e62583b97cdba3c31439c08029fb2b9fc506b5bdd82c46b7cc1d279d8"])
"""Digests of that daemon: Linux on x86-64."""

MEMORY_BYTES, RELAY_MEMORY_BYTES = 56 << 20, 128 << 20
"""Memory beside its program at which Go collects early and gives back what it has freed, which it
keeps for minutes otherwise. It has 25 MB at the start, and 30 MB as payloads come; a connection
takes 80 kB, a circuit `CIRCUIT_BUFFER_BYTES` twice."""

PROGRAM_BYTES = 40_000_000
"""Memory of the program, which unpacks itself."""

_UNLIMITED_BYTES = 1 << 62
_UNLIMITED_TIME = "87600h"  # ten years
_CONTROL = "control.sock"
_PREFIX = "lockstep-p2pd-"
_LEFT_OVER_S = 60
_PARENT_CHARACTERS_MAX = 60  # a socket's path has 104 at most
_LAST_WORDS_LINES = 5


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """Options of a daemon."""

    listen: tuple[str, ...] = ()
    """libp2p addresses at which the daemon listens."""

    announce: tuple[str, ...] = ()
    """Addresses that it tells peers instead, HOST:PORT or libp2p's; empty: those that it finds out
    by itself."""

    public: bool = False
    """Whether others can surely dial it; a daemon that is not public punches holes."""

    relays_for_others: bool = False
    """Whether it carries circuits; only a public daemon can."""

    upnp: bool = False
    """Whether it asks the router for a port."""

    sha256: str = ""
    """SHA-256 of its program, in hexadecimal; empty: one of `P2PD_SHA256`."""

    @property
    def memory_bytes(self) -> int:
        """Memory that it should not exceed beside its program."""
        return RELAY_MEMORY_BYTES if self.relays_for_others else MEMORY_BYTES


def find_p2pd() -> Path:
    """The daemon's program; `UnavailableError` with the remedy when there is none."""
    spec = importlib.util.find_spec("hivemind")  # does not import it
    for package in (spec.submodule_search_locations or []) if spec else []:
        if (program := Path(package, "hivemind_cli", "p2pd")).is_file():
            return program
    raise UnavailableError(
        "libp2p needs the program p2pd of hivemind's package, which is not installed; install it "
        "with `pip install --no-deps hivemind`, or Lockstep with the extra libp2p"
    )


def trusted_p2pd(sha256: str = "") -> Path:
    """The daemon's program, if its bytes are those that are known, or those of the digest that the
    owner names; `UnavailableError` when they are not. Blocks.
    """
    program, expected = find_p2pd(), {sha256.lower()} if sha256 else P2PD_SHA256
    try:
        with program.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnavailableError(f"{program} cannot be read: {error.strerror or error}") from None
    if found not in expected:
        raise UnavailableError(
            f"{program}: expected the libp2p daemon of hivemind {HIVEMIND} (SHA-256 "
            f"{', '.join(sorted(expected))}), found {found}: install that release, or name the "
            f"digest of a daemon that you trust with --p2pd-sha256 {found}"
        )
    return program


class Daemon:
    """A running daemon. `Daemon.start` makes one; its owner calls `stop`."""

    def __init__(self, process: asyncio.subprocess.Process, directory: "SocketDirectory") -> None:
        self._process = process
        self._directory = directory
        self._words: deque[str] = deque(maxlen=_LAST_WORDS_LINES)
        self._listening: asyncio.Task[None] | None = None
        self._lifeline: socket.socket | None = None
        self.client = DaemonClient(directory.path / _CONTROL)
        self.peer = ""
        """The daemon's peer id."""
        self.addresses: tuple[str, ...] = ()
        """Addresses at which it believed to be reachable after its start, without its peer id."""

    @classmethod
    async def start(
        cls, key: Ed25519PrivateKey, settings: DaemonSettings, directory: "SocketDirectory"
    ) -> "Daemon":
        """Start a daemon and wait until it answers. `UnavailableError` with its last words when it
        does not within `START_TIMEOUT_S`.
        """
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
        """Its process."""
        return self._process.pid

    @property
    def directory(self) -> Path:
        """The directory of its socket; its owner may keep sockets there too."""
        return self._directory.path

    async def ended(self) -> str:
        """Wait until the daemon is dead; returns how it died."""
        code = await self._process.wait()
        return f"status {code}, last words: {' '.join(self._words) or 'none'}"

    async def stop(self) -> None:
        """End the daemon. May be called twice."""
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
        """Read the daemon's output: a full pipe would stop it."""
        assert self._process.stdout
        while piece := await self._process.stdout.read(64 * 1024):
            self._words.extend(piece.decode(errors="replace").splitlines()[-_LAST_WORDS_LINES:])


class SocketDirectory:
    """A new directory for sockets, which only our user can enter. Directories that killed processes
    left are removed.
    """

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
        """Remove the directory with everything in it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_ownerless(directory: Path) -> None:
    """Remove a directory whose owner is dead: the system drops the lock with its process.
    Directories of other users do not open.
    """
    with contextlib.suppress(OSError):
        lock = os.open(directory, os.O_RDONLY)
        try:
            # The minute protects a directory that its owner has made and not locked yet.
            if time.time() - os.fstat(lock).st_mtime > _LEFT_OVER_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


async def _launch(
    key: Ed25519PrivateKey, settings: DaemonSettings, control: Path
) -> asyncio.subprocess.Process:
    program = await asyncio.to_thread(trusted_p2pd, settings.sha256)
    reading, writing = os.pipe()
    try:
        os.write(writing, private_key_message(key).SerializeToString())
        os.close(writing)
        return await asyncio.create_subprocess_exec(
            program,
            f"-id=/dev/fd/{reading}",
            f"-listen=/unix{control}",
            *_flags(settings),
            pass_fds=(reading,),
            env={**os.environ, "GOMEMLIMIT": str(settings.memory_bytes)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # A Ctrl-C here must not reach the daemon, which has to carry this node's goodbyes.
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


def private_key_message(key: Ed25519PrivateKey) -> PrivateKey:
    """libp2p's form of a node's key."""
    data = key.private_bytes_raw() + key.public_key().public_bytes_raw()
    return PrivateKey(type=PrivateKey.ED25519, data=data)
