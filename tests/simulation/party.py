"""One machine of a simulated run: a disk, a clock that is wrong, and one process at a time, which a
supervisor starts again when it died. What runs there is a node's or a relay's (`node_party`,
`relay_party`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.channel import CoordinatorChannel
from node.control.client import CoordinatorClient
from node.control.first_contact import FIRST_CONTACT_S, reach
from node.gossip.payload_log import PayloadLog
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink, parse_link
from protocol.errors import StorageError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, peer_id
from protocol.run_info import RunInfo
from protocol.sums.asked import places
from protocol.sums.ranges import RANGES_MAX
from protocol.wire_pb2 import Offers
from tests.simulation.auditor import Auditor
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.session import Stub, Switchboard
from tests.simulation.world import Killed, Process, World

SUPERVISOR_MS = (300, 8_000)
"""Shortest and longest pause before one that died or gave up is started again: mostly soon."""

MET_FILE = "met"
"""File that is on the disk once the coordinator has answered."""

LEFT = "this node was stopped by its owner"
"""Reason with which one ends that was asked to leave."""


@dataclass(frozen=True, slots=True)
class Place:
    """The parts that all machines share."""

    world: World
    network: Network
    switchboard: Switchboard
    auditor: Auditor
    failed: Callable[[str, Exception], None]
    save_every: int
    part_bytes: int


class Channel(CoordinatorChannel):
    """A channel whose stub leads to the simulated coordinator."""

    def __init__(self, link: JoinLink, stub: Stub) -> None:
        super().__init__(link)
        self._simulated = stub

    async def stub(self, timeout_s: float = 0) -> Any:
        return self._simulated


class Client(CoordinatorClient):
    """The real client over such a channel."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        stub: Stub,
        says: Callable[[wire.NodeMessage], None],
        instance: int,
    ) -> None:
        link = parse_link("coordinator:1")
        super().__init__(link, key, Channel(link, stub))
        self._instance = instance  # drawn in a real process; here a seed is one history
        self._says = says

    def send(self, message: wire.NodeMessage) -> None:
        """Send, after the auditor has judged it."""
        self._says(message)
        super().send(message)


class KeptLog(PayloadLog):
    """The real log; remembers every digest that was in it, verified, for the auditor."""

    kept: set[bytes]

    def put(self, round: int, blob: bytes | bytearray, expected: Digest | None = None) -> Digest:
        digest = super().put(round, blob, expected)
        self.kept.add(digest)
        return digest

    def get(self, digest: Digest) -> bytes | None:
        blob = super().get(digest)
        if blob is not None:
            self.kept.add(digest)
        return blob


class Party(ABC):
    """One machine, and the key that it has."""

    def __init__(self, place: Place) -> None:
        chance = place.world.random
        self.place, self.world = place, place.world
        self._key = Ed25519PrivateKey.from_private_bytes(chance.randbytes(32))
        self.peer = peer_id(public_bytes(self._key))
        self._clock = (
            chance.randrange(10**12),
            chance.randint(-100, 100),
            chance.randint(-3, 3) * 3600 * 10**6,
        )
        self.disk = Disk(chance)
        self._copy: Disk | None = None
        self.process: Process | None = None
        self.kept: set[bytes] = set()
        self.ended = ""
        self.wanted = False
        self._program_task: asyncio.Task[None] | None = None

    # ---- life and death

    @property
    def runs(self) -> bool:
        """Whether there is a process, stopped or not."""
        return self.process is not None and self.process.state != "dead"

    def start(self) -> None:
        """Start what runs there, unless it does."""
        self.wanted = True
        if self.runs:
            return
        self.ended = ""
        self.process = Process(self.peer, *self._clock)
        self.process.on_death = self._died
        self.place.network.processes[self.peer] = self.process
        self.disk.steps_left = None
        self.kept = set()
        self.world.say("node %s starts", self.peer[:8])
        self._program_task = self.world.start(self.process, self._main(self.process))

    def interrupt(self) -> None:
        """The second of two SIGTERM: cancel everything that runs, wherever it is."""
        if self.process is not None and self._program_task is not None:
            self.world.call_soon(self._program_task.cancel, context=self.process.context)

    @property
    @abstractmethod
    def at_work(self) -> bool:
        """Whether it has started, so that it can leave in order."""

    def leave(self) -> None:
        """The first SIGTERM: ask it to leave; while it starts it has nothing to finish."""
        self.wanted = False
        if self.at_work:
            self._finish()
        else:
            self.interrupt()

    @abstractmethod
    def _finish(self) -> None:
        """Ask what is at work to leave in order."""

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def _died(self) -> None:
        self.world.say("node %s dies", self.peer[:8])
        self.place.switchboard.died(self.peer)
        self.link_ends.pop(self.peer, None)
        if self.wanted and self.ended in ("", LEFT):
            least, most = SUPERVISOR_MS
            pause_ms = least + (most - least) * self.world.random.random() ** 3
            self.world.after(pause_ms, lambda: self.start() if self.wanted else None)

    def lose_disk(self) -> None:
        """Replace the machine: nothing of its disk is left."""
        self.kill()
        self.world.say("node %s loses its disk", self.peer[:8])
        self.disk = Disk(self.world.random)

    def swap_disks(self) -> None:
        """Go on with a copy of the disk from before, and put the disk aside in its place: a backup
        that is restored or, the next time, one of two copies of a directory that are used in turn.
        """
        self.kill()
        self.world.say("node %s goes on with a copy of its disk", self.peer[:8])
        self.disk, self._copy = self._copy or Disk(self.world.random), self.disk

    def copy_disk(self) -> None:
        """Copy the disk, for `swap_disks`."""
        self._copy = self.disk.copied()

    @property
    def link_ends(self) -> dict[str, Any]:
        """The links that listen for peers."""
        return self.place.network.ends

    @property
    def _has_met(self) -> bool:
        return self.disk.path(MET_FILE).is_file()

    @abstractmethod
    def in_words(self) -> str:
        """Where it stands, for the reader of a failure."""

    # ---- the program

    async def _main(self, process: Process) -> None:
        try:
            reason = await self._program(process)
            self.ended = reason
            self.world.say("node %s ends: %s", self.peer[:8], reason)
        except asyncio.CancelledError:
            if self.world.over:
                raise
            self.world.say("node %s is interrupted", self.peer[:8])
        except (UnavailableError, StorageError) as error:
            self.world.say("node %s gives up: %s", self.peer[:8], error)
            if self._has_met if isinstance(error, UnavailableError) else not self.disk.failures:
                self.place.failed(self.peer, error)
        except Killed:
            # in the middle of a write that no thread makes: a task keeps to itself what ends it
            pass
        except Exception as error:
            self.place.failed(self.peer, error)
        process.kill()

    @abstractmethod
    async def _program(self, process: Process) -> str:
        """Run what this machine has; returns why it ended."""

    async def _fetch_run(self, client: Client) -> RunInfo:
        """Ask the coordinator for the run; one that never answered is given up after a while."""
        patience_s = None if self._has_met else FIRST_CONTACT_S
        info = await reach(client.calls.fetch_run, lambda why: None, patience_s)
        await asyncio.to_thread(self.disk.store_whole, MET_FILE, b"met")
        return info

    def _payloads(
        self, info: RunInfo, held_round: Callable[[], int | None] = lambda: None
    ) -> KeptLog:
        """The payloads on the disk."""
        log, retention = KeptLog.__new__(KeptLog), info.spec.retention
        log.kept = self.kept
        log.__init__(  # type: ignore[misc]
            self.disk.path("payloads"), retention.log_rounds, retention.log_bytes_max, held_round
        )
        return log

    def _offers(self, offers: Offers) -> None:
        auditor, whole = self.place.auditor, [o for o in offers.offers if not o.part_list]
        auditor.offers(self.peer, [offer.digest for offer in whole], self.kept)
        for offer in offers.offers:
            if offer.part_list:
                numbers = places(offer.ranges, RANGES_MAX)
                auditor.holds_parts(self.peer, Digest(offer.digest), numbers, self.kept)

    def _says(self, message: wire.NodeMessage) -> None:
        match message.WhichOneof("kind"):
            case "announced":
                self.place.auditor.announces(
                    self.peer, message.announced.round, message.announced.digest
                )
            case "holding":
                self.place.auditor.offers(self.peer, message.holding.digests, self.kept)
            case "parts":
                for said in message.parts.held:
                    numbers = places(said.ranges, RANGES_MAX)
                    for payload in said.payloads:
                        self.place.auditor.reports_parts(self.peer, payload, numbers, self.kept)
