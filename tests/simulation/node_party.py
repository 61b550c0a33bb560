"""A node of a simulated run: the real trainer, decision log, client, swarm, exchange, payload log,
snapshots and catch-up.

Put together as `node.process` does it, around a replica that is cheap (`stand_in`), a link and a
stub that lead to the simulated network, and a disk in memory.
"""

import asyncio
from typing import Any

from node.control.decisions import DecisionLog
from node.gossip.payload_check import PayloadCheck
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
from protocol.codec.heads import Heads
from protocol.codec.payload import decode
from protocol.run_info import RunInfo
from tests.simulation.heads import SimulatedHeads
from tests.simulation.link import SimulatedLink
from tests.simulation.measuring import evaluator_only
from tests.simulation.party import Client, Party, Place
from tests.simulation.session import Stub
from tests.simulation.stand_in import (
    STATE_FILE,
    Corpus,
    Replica,
    SavedState,
    TrainingModel,
    applied_positions,
    saved_state,
)
from tests.simulation.world import Process

TOP_K = 64
"""As many values in a chunk as a round has samples at most: a payload holds all that its author
trained."""

MICRO_BATCH = 2


class SimulatedNode(Party):
    """One volunteer's machine, and its node."""

    summer_type, swarm_type = Summer, Swarm

    def __init__(self, place: Place, sample_ms: int) -> None:
        super().__init__(place)
        self.sample_ms = sample_ms
        self.replica: Replica | None = None
        self.trainer: Trainer | None = None
        self.heads: Heads | None = None
        self.status: NodeStatus | None = None
        self.decisions: DecisionLog | None = None
        self.swarm: Swarm | None = None

    # ---- life and death

    @property
    def at_work(self) -> bool:
        return self.trainer is not None

    def _finish(self) -> None:
        assert self.trainer is not None
        self.trainer.leave()

    def _died(self) -> None:
        self.replica = self.trainer = None
        super()._died()

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
    def saved(self) -> SavedState | None:
        """The state on its disk."""
        path = self.disk.path(STATE_FILE)
        return saved_state(path.read_bytes()) if path.is_file() else None

    def in_words(self) -> str:
        if not self.runs:
            return f"node {self.peer[:8]} does not run; {self.ended}"
        if self.replica is None or self.status is None or self.swarm is None:
            return f"node {self.peer[:8]} starts"
        about = self.status.phase, self.status.note, self.swarm.waiting_for
        applied = f"node {self.peer[:8]} applied round {self.replica.head_round}"
        return f"{applied}: {'; '.join(about)}"

    # ---- the program

    async def _program(self, process: Process) -> str:
        """As `node.process.NodeProcess`: start, run, finish, stop."""
        stub, began = Stub(self.place.switchboard, self.peer), self.place.world.now_ms + 1
        client = Client(self._key, stub, self._says, began)
        info = await self._fetch_run(client)
        replica = self._replica(info, process)
        position = await asyncio.to_thread(replica.load, self.disk)
        fetch = client.calls.fetch_commits
        self.heads = self.heads or Heads(info.run_id, info.coordinator_key)
        decisions = DecisionLog(info.run_id, info.coordinator_key, fetch, heads=self.heads)
        if position:
            decisions.resume(position)
        snapshot_path: Any = self.disk.path("snapshots")
        snapshots = await asyncio.to_thread(Snapshots, snapshot_path)
        log = self._payloads(info, snapshots.held_round)
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
            SwarmLimits(replica.payload_bytes_max, info.spec.membership.neighbours),
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
