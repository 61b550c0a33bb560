"""A node of a simulated run: the real trainer, decision log, client, swarm, exchange, payload log,
snapshots and catch-up.

Put together as `node.process` does it, around a replica that is cheap (`stand_in`), a link and a
stub that lead to the simulated network, and a disk in memory. As a volunteer's machine does, it
starts the node again when it died.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.channel import CoordinatorChannel
from node.control.client import CoordinatorClient
from node.control.decisions import DecisionLog
from node.control.first_contact import FIRST_CONTACT_S, reach
from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.replica.snapshot import Snapshots
from node.round.catching_up.catch_up import CatchUp
from node.round.context import RoundContext
from node.round.witness import WitnessReports
from node.status import NodeStatus
from node.sums.part_check import part_header_of
from node.sums.reports import PartReports
from node.sums.summer import Summer
from node.system.clock import own_clock_ms
from node.trainer import Trainer
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink, parse_link
from protocol.codec.heads import Heads
from protocol.codec.payload import decode
from protocol.errors import StorageError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import Digest, peer_id
from protocol.run_info import RunInfo
from protocol.sums.asked import places
from protocol.sums.ranges import RANGES_MAX
from protocol.wire_pb2 import Offers
from tests.simulation.auditor import Auditor
from tests.simulation.disk import Disk
from tests.simulation.heads import SimulatedHeads
from tests.simulation.link import SimulatedLink
from tests.simulation.measuring import evaluator_only
from tests.simulation.network import Network
from tests.simulation.session import Stub, Switchboard
from tests.simulation.stand_in import (
    STATE_FILE,
    Corpus,
    Replica,
    SavedState,
    TrainingModel,
    applied_positions,
    saved_state,
)
from tests.simulation.world import Killed, Process, World

TOP_K = 64
"""As many values in a chunk as a round has samples at most: a payload holds all that its author
trained."""

MICRO_BATCH = 2
SUPERVISOR_MS = (300, 8_000)
"""Shortest and longest pause before a node that died or gave up is started again: mostly soon."""

MET_FILE = "met"
"""File that is on the disk once the coordinator has answered."""

LEFT = "this node was stopped by its owner"
"""Reason with which a trainer ends that was asked to leave."""


@dataclass(frozen=True, slots=True)
class Place:
    """The parts that all nodes share."""

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


class SimulatedNode:
    """One volunteer's machine: a disk, a clock that is wrong, and one process at a time."""

    summer_type, swarm_type = Summer, Swarm

    def __init__(self, place: Place, sample_ms: int) -> None:
        chance = place.world.random
        self.place, self.world = place, place.world
        self.sample_ms = sample_ms
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
        self.replica: Replica | None = None
        self.trainer: Trainer | None = None
        self.heads: Heads | None = None
        self.status: NodeStatus | None = None
        self.decisions: DecisionLog | None = None
        self.swarm: Swarm | None = None
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
        """Start the node unless it runs."""
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

    def leave(self) -> None:
        """The first SIGTERM: ask the node to leave; while it starts it has nothing to finish."""
        self.wanted = False
        if self.trainer is None:
            self.interrupt()
        else:
            self.trainer.leave()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def _died(self) -> None:
        self.world.say("node %s dies", self.peer[:8])
        self.replica = self.trainer = None
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

    # ---- its content

    @property
    def catches_up(self) -> bool:
        """Whether it replays the log."""
        return self.trainer is not None and self.decisions is not None and self.decisions.behind()

    @property
    def applied_positions(self) -> list[int]:
        """Samples that are in its parameters; in those on its disk if it does not run."""
        if self.replica is not None:
            return self.replica.applied_positions
        return applied_positions(self.saved.raw) if self.saved else []

    @property
    def head_round(self) -> int:
        """Round of the last commit in its state; in that on its disk if it does not run."""
        if self.replica is not None:
            return self.replica.head_round
        return self.saved.where[2] if self.saved else -1

    @property
    def void_count(self) -> int:
        """Void payloads that its state has passed over; that on its disk if it does not run."""
        if self.replica is not None:
            return self.replica.void_count
        return self.saved.void_count if self.saved else 0

    @property
    def _has_met(self) -> bool:
        return self.disk.path(MET_FILE).is_file()

    @property
    def saved(self) -> SavedState | None:
        """The state on its disk."""
        path = self.disk.path(STATE_FILE)
        return saved_state(path.read_bytes()) if path.is_file() else None

    def in_words(self) -> str:
        """Where it stands, for the reader of a failure."""
        if not self.runs:
            return f"node {self.peer[:8]} does not run; {self.ended}"
        if self.replica is None or self.status is None or self.swarm is None:
            return f"node {self.peer[:8]} starts"
        about = self.status.phase, self.status.note, self.swarm.waiting_for
        applied = f"node {self.peer[:8]} applied round {self.replica.head_round}"
        return f"{applied}: {'; '.join(about)}"

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

    async def _program(self, process: Process) -> str:
        """As `node.process.NodeProcess`: start, run, finish, stop."""
        stub, began = Stub(self.place.switchboard, self.peer), self.place.world.now_ms + 1
        client = Client(self._key, stub, self._says, began)
        info = await reach(
            client.calls.fetch_run, lambda why: None, None if self._has_met else FIRST_CONTACT_S
        )
        await asyncio.to_thread(self.disk.store_whole, MET_FILE, b"met")
        retention, membership = info.spec.retention, info.spec.membership
        replica = self._replica(info, process)
        position = await asyncio.to_thread(replica.load, self.disk)
        fetch = client.calls.fetch_commits
        self.heads = self.heads or Heads(info.run_id, info.coordinator_key)
        decisions = DecisionLog(info.run_id, info.coordinator_key, fetch, heads=self.heads)
        if position:
            decisions.resume(position)
        snapshot_path: Any = self.disk.path("snapshots")
        snapshots = await asyncio.to_thread(Snapshots, snapshot_path)
        log = KeptLog.__new__(KeptLog)
        log.kept = self.kept
        log.__init__(  # type: ignore[misc]
            self.disk.path("payloads"),
            retention.log_rounds,
            retention.log_bytes_max,
            snapshots.held_round,
        )
        check = PayloadCheck(
            info.run_id,
            lambda round, payload: decode(payload, replica.shape)[0],
            part_header_of(replica.shape),
        )
        witness = WitnessReports(
            self.peer,
            info.spec.rounds.copies_min,
            lambda: client.members.member_count,
            client.send,
            check.author_of,
        )
        swarm = self.swarm_type(
            self.peer,
            info.run_id,
            SwarmLimits(replica.payload_bytes_max, membership.neighbours),
            log,
            SimulatedLink(self.place.network, self.peer, self.place.part_bytes, self._offers),
            check=check,
            key=self._key,
            report_holding=witness.add,
            report_parts=PartReports(client.send).add,
            clock_ms=own_clock_ms,
            snapshots=snapshots,
        )
        hello = wire.Hello(addresses=await swarm.start())
        status = NodeStatus(self.peer, self.peer[:8])
        state_requests = evaluator_only(replica, process, client.send, status)
        context = RoundContext(
            info=info,
            own=self.peer,
            replica=replica,
            corpus=Corpus(),
            client=client,
            decisions=decisions,
            swarm=swarm,
            status=status,
            witness=witness,
            summer=self.summer_type(info, self._key, replica.shape, swarm.parts, client.send),
            catch_up=CatchUp(info, replica, snapshots, swarm, fetch, status=status),
            save=lambda position: replica.save(self.disk, position),
            save_every=self.place.save_every,
            state_requests=state_requests,
            heads=SimulatedHeads(self.heads, hello),
        )
        trainer = Trainer(context)
        self.trainer, self.decisions, self.status, self.swarm = trainer, decisions, status, swarm
        try:
            reason = await self._run(client, info, hello, swarm)
            await state_requests.evaluator.finish()
            await asyncio.to_thread(replica.save, self.disk, trainer.position)
            client.send(wire.NodeMessage(leave=wire.Leave(reason=reason)))
            await client.flush(2)
        finally:
            await swarm.stop()
        return reason

    async def _run(self, client: Client, info: RunInfo, hello: wire.Hello, swarm: Swarm) -> str:
        assert self.trainer is not None
        session = asyncio.create_task(client.run(info, hello, self.trainer.inbox))
        training = asyncio.create_task(self.trainer.run())
        failing = asyncio.create_task(swarm.failed())
        try:
            await asyncio.wait({training, session, failing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (session, failing):
                if task.done():
                    task.result()
            return await training
        finally:
            training.cancel()
            failing.cancel()
            await asyncio.gather(training, failing, return_exceptions=True)

    def _replica(self, info: RunInfo, process: Process) -> Replica:
        trainee = TrainingModel(process, self.sample_ms, MICRO_BATCH)
        self.replica = Replica(self.peer, info.run_id, info.spec, trainee, self.place.auditor)
        return self.replica

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
