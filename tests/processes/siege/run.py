"""What is besieged: a public run with TLS that admits by token, of a coordinator, three nodes, a
relay and a named auditor, at all addresses of this machine; and newcomers who mean well.
"""

import asyncio
import contextlib
import itertools
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster
from lockstep.service.tokens import new_token
from node.system.tls import fetch_certificate
from protocol.ids import RunId
from protocol.wire_pb2 import Leave
from tests.processes.siege.catalogue import PREFIX
from tests.processes.strangers.client import FAILURES, PAUSE_S, Stranger
from tests.processes.strangers.run import Process, PublicRun, resident

EVERYWHERE = "[::]:0"
LOOK_S = 0.1

TRY_S = 5.0
"""Time after which a newcomer that hears nothing tries again."""

NEWCOMERS_PAUSE_S = 0.5
TOKEN_USES = 4096


class OpenCluster(Cluster):
    """A cluster that listens at every address; its own processes use loopback."""

    def listens(self, name: str) -> str:
        return EVERYWHERE

    def wait_for_coordinator(self) -> str:
        return f"127.0.0.1:{super().wait_for_coordinator().rpartition(':')[2]}"


class BesiegedRun(PublicRun):
    """The run."""

    listen = EVERYWHERE

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, OpenCluster, by_token=True)
        for node in self.cluster.nodes:
            node.arguments += ("--listen", EVERYWHERE)

    def ports(self) -> dict[str, str]:
        """A port of each kind of process."""
        return {
            "coordinator": self.cluster.address.rpartition(":")[2],
            **{
                child.name: listening_port(child)
                for child in (self.cluster.nodes[0], *self.cluster.relays, self.auditor)
            },
        }

    def processes(self) -> list[Process]:
        """All processes of it."""
        return [*self.children]

    def sessions_lost(self) -> int:
        """Sessions of honest processes that were cut."""
        logs = (child.log.read_text(errors="replace") for child in self.children)
        return sum(log.count("session lost") for log in logs)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process of libp2p."""

    name: str
    pid: int


class LinkedRun(BesiegedRun):
    """The run, whose nodes link over libp2p; its ports are those of their daemons."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for node in self.cluster.nodes:
            # The auditor has no daemon. A daemon that listens at [::] has no IPv4.
            node.arguments += ("--links", "libp2p,grpc", "--listen", "0.0.0.0:0")

    def ports(self) -> dict[str, str]:
        return {each.name: listening_port(each) for each in self.daemons()}

    def processes(self) -> list[Process]:
        return [*super().processes(), *self.daemons()]

    def daemons(self) -> list[Daemon]:
        """The daemon of each node."""
        return [Daemon(f"daemon of {node.name}", _daemon(node)) for node in self.cluster.nodes]

    def carriers(self) -> set[str]:
        """The transports of the links between nodes."""
        self.cluster.watch()
        found = set()
        for node in self.cluster.nodes:
            opened = node.status["links"]["open"]
            found |= {each["transport"] for each in opened if each["peer"] in self.honest}
        return found


def _daemon(child: Child) -> int:
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):  # it is none, or has just ended
            words = (process / "stat").read_text().rpartition(")")
            if words[0].endswith("(p2pd") and words[2].split()[1] == str(child.pid):
                return int(process.name)
    raise AssertionError(f"{child.name}: expected a daemon, found none")


def listening_port(child: Process) -> str:
    """The port at which a process listens to everybody."""
    inodes = set()
    for each in Path(f"/proc/{child.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    listed = (Path(f"/proc/net/{name}").read_text().splitlines() for name in ("tcp6", "tcp"))
    for line in itertools.chain(*listed):
        words = line.split()
        host, _, port = words[1].partition(":")
        if words[3] == "0A" and words[9] in inodes and not int(host, 16):
            return str(int(port, 16))
    raise AssertionError(f"{child.name}: expected a port at all addresses, found none")


class Newcomers:
    """Keys with a token that join one after the other, in a thread of their own."""

    def __init__(self, coordinator: Child, address: str) -> None:
        self._address, self._run_id = address, RunId(str(coordinator.status["run_id"]))
        self._token, *_ = new_token(coordinator.directory, f"n{time.time_ns()}", uses=TOKEN_USES)
        self.waits: list[tuple[float, float]] = []
        """Of each the time at which it came, and the seconds until it was let in."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._come()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    async def _come(self) -> None:
        while not self._stopping.is_set():
            came_s = time.monotonic()
            while not await self._is_let_in():
                if self._stopping.is_set():
                    break
                await asyncio.sleep(PAUSE_S)
            self.waits.append((came_s, time.monotonic() - came_s))
            await asyncio.sleep(NEWCOMERS_PAUSE_S)

    async def _is_let_in(self) -> bool:
        """One try, as a node makes it: it asks for the certificate, then says hello."""
        stranger = None
        try:
            async with asyncio.timeout(TRY_S):
                shown = await fetch_certificate(self._address, TRY_S)
                stranger = Stranger(self._address, self._run_id, shown=shown)
                await stranger.hello(token=self._token)
                await stranger.hear("welcome")
                await stranger.say(leave=Leave())
            return True
        except FAILURES:
            return False
        finally:
            if stranger:
                await stranger.close()


class Sizes:
    """Looks at the memory of processes, in a thread of its own."""

    def __init__(self, children: Sequence[Process]) -> None:
        self._children = children
        self.most: dict[str, int] = {}
        """Most bytes of each in memory since `begin`."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def now(self) -> dict[str, int]:
        """Bytes of each in memory."""
        return {child.name: resident(child) for child in self._children}

    def begin(self) -> dict[str, int]:
        """Forget what was; returns what is."""
        self.most = self.now()
        return dict(self.most)

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self.most = larger(self.most, self.now())


def larger(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """The larger value of each name."""
    return {name: max(count, first.get(name, 0)) for name, count in second.items()}


@contextlib.contextmanager
def attackers_route() -> Iterator[str]:
    """Lets addresses of `PREFIX` reach this machine for the block; yields why they cannot."""
    route = ["route", "replace", "local", str(PREFIX), "dev", "lo"]  # a killed run left it
    try:
        made = subprocess.run(["ip", "-6", *route], capture_output=True, text=True)
    except OSError as error:
        yield f"no ip command: {error}"
        return
    if made.returncode:
        yield f"cannot route {PREFIX} to loopback: {made.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        route[1] = "del"
        subprocess.run(["ip", "-6", *route], check=True)
