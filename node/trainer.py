"""Runs the rounds of one node, one after the other.

In each round the node trains on its share of the data until the bell, extracts the few
coefficients that it will send, publishes them to its peers, and waits for the coordinator to commit
the round. Then it applies the payloads that the commit names, as every other node does.
With overlap it computes the next round while this one is still being exchanged:

    overlap 0    compute r | extract | exchange r ........ | apply r | compute r+1 ...
    overlap 1    compute r | extract | compute r+1 (without r) | extract | apply r | ...
                                     '- exchange r ...........'

There the commit of r is applied as soon as it and its payloads have arrived, even between two
passes (`node.round.compute`). Rounds of `audit_every` do not overlap.

What comes next is decided by `node.round.agenda`, which is pure; the trainer does it. Commits and
skips are taken strictly in the order of rounds, and none is passed over: that is why all nodes stay
equal.

A node cannot tell whether its own state is wrong. The coordinator can, because it hears the digest
of every node. When it says so, the trainer throws its state away, replays the log, and reports its
digest after the disputed round.

The state is saved now and then, while a payload is on its way. A node that is killed replays the
rounds since then from the log. What it had computed and not sent yet is gone; nobody waits for
that, and nothing counts twice (`node.round.own_payloads`).
"""

import asyncio
import logging
from typing import assert_never

from node.control.decision import Decision
from node.gossip.swarm import NotRetainedError
from node.model.passes import RoundWork
from node.replica.position import Position
from node.round import events
from node.round.agenda import Agenda
from node.round.catching_up.catch_up import RETRY_S, NotFound
from node.round.catching_up.landmarks import SnapshotJump, position_at
from node.round.collecting import CommitPayloads, open_round
from node.round.compute import RoundPasses, Settling
from node.round.context import RoundContext
from node.round.deadline import Deadline, DeadlinePassedError
from node.round.events import LogPosition
from node.round.inbox import Inbox
from node.round.own_payloads import OwnPayload, OwnPayloads
from node.system.device import device_errors
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.errors import DeviceError, StorageError
from protocol.ids import Digest

log = logging.getLogger("lockstep.node")


class Trainer:
    """Drives one replica through a run. `inbox` listens to the coordinator client."""

    def __init__(self, context: RoundContext) -> None:
        self._context, self._own = context, OwnPayloads(context)
        spec = context.info.spec
        self._agenda = Agenda(spec.rounds, settles_first=not spec.algorithm.facts.replicas_equal)
        self._deadline, self._changed = Deadline(), asyncio.Event()
        self.inbox = Inbox(context, self._own, self._tell)
        parts = context.client, context.swarm, context.decisions
        self._payloads = CommitPayloads(*parts, context.own)
        self._unsaved_rounds = 0
        self._compute_ms, self._apply_ms = 1, 0

    # ---- the straight line

    async def _round(self, opened: wire.RoundOpened) -> None:
        decisions, requests = self._context.decisions, self._context.state_requests
        work = await self._compute(opened)  # until the bell
        while self._agenda.must_settle_first(self.log_position):
            await self._settle_next()  # where the payload is made of the state
        extract, compute_ms = self._own.extract, self._compute_ms
        announced, payload = await self._context.duty.compute(extract, opened, work, compute_ms)
        await self._publish(announced, payload)  # to the neighbours, announced to the coordinator
        await self._save_when_due()  # while the payload is on its way
        while self._agenda.must_settle(self.log_position):
            while not decisions.behind() and await requests.measure_while_idle():
                pass
            await self._settle_next()  # applied: the same bits on every node; or skipped
        self._tell(events.Settled())

    # ---- the agenda, step by step

    async def run(self) -> str:
        """Train until the run is finished or `leave` was called; returns the reason in words."""
        try:
            return await self._follow_agenda()
        except DeadlinePassedError:
            next_round = self._context.decisions.next_round
            log.warning("ended before a decision or its payloads came", extra={"round": next_round})
            self._tell(events.DeadlinePassed())
            return self._agenda.end_reason

    async def _follow_agenda(self) -> str:
        status, requests = self._context.status, self._context.state_requests
        while True:
            self._changed.clear()
            await requests.show_state(self._context.decisions.head_round)
            step = self._agenda.next(self.log_position)
            status.does(step.doing, step.reason)
            match step:
                case events.Train():
                    await self._round(step.opened)
                case events.TakeDecision():
                    await self._take_decision(step.limit_ms)
                case events.Jump():
                    self._limit(step.limit_ms)
                    await self._jump(step.reason)
                case events.Resync():
                    await self._resync(step.order)
                case events.SayReady():
                    self._say_ready()
                case events.Wait():
                    while not self._changed.is_set() and await requests.measure_while_idle():
                        pass
                    await self._changed.wait()
                case events.End():
                    return step.reason
                case _:
                    assert_never(step)

    def leave(self) -> None:
        """Finish the round, not the catching up, and end `run`."""
        self._tell(events.LeaveAsked())

    def _tell(self, event: events.Event) -> None:
        self._limit(self._agenda.handle(event, self.log_position))
        if self._agenda.finished:
            self._context.status.finishes()
        self._changed.set()

    def _limit(self, limit_ms: int | None) -> None:
        if limit_ms is not None:
            self._deadline.limit(limit_ms)

    # ---- where it stands

    @property
    def log_position(self) -> LogPosition:
        """The node's place in the log, for the agenda."""
        context, decisions = self._context, self._context.decisions
        return LogPosition(
            next_round=decisions.next_round,
            decided_round=decisions.decided_round,
            undecided=bool(self._own.undecided),
            too_far=context.catch_up.too_far_behind(decisions.next_round, decisions.decided_round),
            restarts=decisions.restart is not None,
            offline=context.client.offline,
        )

    @property
    def position(self) -> Position:
        """Where in the log the replica stands, to be saved."""
        return position_at(self._context.decisions.place)

    # ---- the parts of a round

    async def _compute(self, opened: wire.RoundOpened) -> RoundWork | None:
        context = self._context
        context.status.opened(opened)
        open_round(context.swarm, opened)
        await context.state_requests.borrow_time(opened.bell_ms - context.client.now_ms())
        started_ms = context.client.now_ms()
        try:
            work = await self._make_passes(opened)
        except DeviceError:
            await self._save_what_is_whole()
            raise
        self._compute_ms = max(1, context.client.now_ms() - started_ms)
        return work

    async def _make_passes(self, opened: wire.RoundOpened) -> RoundWork | None:
        """Passes until the bell, and the round in front settled as soon as everything for it is
        here.
        """
        passes = RoundPasses(self._context, opened)
        if await passes.begin(self._own.of(opened.round - 1)):
            async with Settling(self._context) as settling:
                while await passes.make(behind=settling.is_under_way):
                    if not settling.is_under_way and self._may_settle_early(passes.left_ms):
                        await settling.begin(self._settle_next())
                    await settling.look()
        return await passes.work()

    async def _save_what_is_whole(self) -> None:
        """Save the state after a pass failed, if the device still gives it away."""
        try:
            with device_errors():
                await self._save()
        except (DeviceError, StorageError) as error:
            log.warning("goes on from an older state", extra={"reason": str(error)})

    def _may_settle_early(self, left_ms: int) -> bool:
        """Whether the round in front is settled now, between two passes of this one."""
        decision = self._context.decisions.at_hand()
        if decision is None or not self._agenda.settles_between_passes(
            decision.round, left_ms, self._apply_ms
        ):
            return False
        return not decision.commit or self._payloads.are_here(decision)

    async def _publish(self, announced: wire.Announced, payload: OwnPayload) -> None:
        await self._own.announce(announced, payload)
        self._tell(events.Announced())
        self._context.status.says(f"exchanges round {announced.round}")

    async def _save_when_due(self) -> None:
        self._unsaved_rounds += 1
        if self._unsaved_rounds >= self._context.save_every:
            await self._save()

    async def _save(self) -> None:
        self._unsaved_rounds = 0
        await asyncio.to_thread(self._context.save, self.position)

    # ---- decisions

    async def _take_decision(self, limit_ms: int | None) -> None:
        self._limit(limit_ms)
        await self._settle_next()
        await self._save_when_due()

    async def _settle_next(self) -> None:
        """Take the next decision: apply its commit, or pass over its skip."""
        decisions, before = self._context.decisions, self.position
        decision = await self._deadline.wait(decisions.next())
        payloads: list[bytes] = []
        if decision.commit and not (decisions.outdated or decisions.restart):
            try:
                decision, payloads = await self._deadline.wait(self._payloads.collect(decision))
            except DeadlinePassedError:
                self._rewind_to(before)
                raise
            except NotRetainedError as error:
                self._rewind_to(before)
                await self._jump(str(error))
                return
        if decisions.outdated or decisions.restart:
            outdated = decisions.outdated
            self._rewind_to(before)
            if outdated:
                self._tell(events.StateOutdated(outdated))
            return
        if decision.commit:
            await self._apply(decision, decision.commit, payloads)
        else:
            self._context.status.standing.skipped(decision.round)
        self._settle(decision)

    async def _apply(self, decision: Decision, commit: Commit, payloads: list[bytes]) -> None:
        context, started_ms = self._context, self._context.client.now_ms()
        context.decisions.settled()
        digest = await context.duty.compute(context.replica.apply, commit, payloads)
        context.status.stands_at(commit.round, digest)
        snapshot = await asyncio.to_thread(context.catch_up.write, commit)
        self._report(decision, digest, snapshot)
        await context.state_requests.show_state(commit.round)
        self._apply_ms = context.client.now_ms() - started_ms

    def _settle(self, decision: Decision) -> None:
        """The round is decided: what this node sent in it counts, or is lost."""
        context, announced = self._context, self._own.settle(decision.round)
        if announced and announced.digest:
            counted = decision.counts(Digest(announced.digest))
            if counted is not None:
                context.status.decided(decision.round, counted=counted)
        context.swarm.settle(decision.round, decision.stays)
        context.catch_up.follow(context.decisions.next_round, context.decisions.decided_round)

    def _report(self, decision: Decision, digest: int, snapshot: bytes) -> None:
        recorded = decision.recorded_digest
        if recorded is not None and recorded != digest:
            self._note_difference(f"after round {decision.round}", digest, recorded)
        if self._agenda.reports(decision.round):
            applied = wire.Applied(
                round=decision.round,
                state_digest=digest,
                snapshot_sha256=snapshot,
                voids=self._context.decisions.place.void_count,
                **self._context.replica.own_report(),
            )
            self._context.client.send(wire.NodeMessage(applied=applied))

    def _note_difference(self, which: str, digest: int, recorded: int) -> None:
        """Only noted: the coordinator judges."""
        differs = f"the state {which} is {digest:016x}, the record says {recorded:016x}"
        log.warning("state differs from the record", extra={"reason": differs})
        self._context.status.notes(differs)

    def _rewind_to(self, position: Position) -> None:
        self._context.decisions.resume(position)

    # ---- catching up

    async def _jump(self, reason: str) -> None:
        """Go on from a snapshot in place of the rounds before it; if there is none, a little
        later.
        """
        context = self._context
        log.warning("looks for a snapshot", extra={"reason": reason})
        rounds = {announced.round for announced in self._own.undecided}
        finding = context.catch_up.find(
            self.position, context.decisions.decided_round, rounds, context.decisions
        )
        found = await self._deadline.wait(finding)
        if isinstance(found, NotFound):
            context.status.notes(f"cannot go on yet: {reason}, and {found.value}")
            await self._deadline.wait(asyncio.sleep(RETRY_S))
            return
        await self._adopt(found)

    async def _adopt(self, jump: SnapshotJump) -> None:
        context, landmark = self._context, jump.landmark
        await asyncio.to_thread(context.replica.adopt, jump.path, jump.base)
        digest, position = context.replica.digest, landmark.position
        self._rewind_to(position)
        context.status.stands_at(position.head_round, digest)
        context.status.notes("")
        for announced in self._own.undecided:
            if announced.round < position.next_round:
                passed = jump.passed.get(announced.round)
                self._settle(passed or Decision(announced.round, None))
        if digest == landmark.state_digest:
            await self._save()
        else:
            which = f"of the snapshot of round {position.head_round}"
            self._note_difference(which, digest, landmark.state_digest)

    async def _resync(self, order: wire.Resync) -> None:
        """Discard the state, on disk too: a restart must not bring it back."""
        context = self._context
        log.warning("resync ordered", extra={"round": order.round, "reason": order.reason})
        context.status.resynced(order.reason)
        await asyncio.to_thread(context.replica.reset)
        context.decisions.rewind()
        self._own.clear()
        await self._save()

    def _say_ready(self) -> None:
        replica = self._context.replica
        ready = wire.Ready(
            round=self._context.decisions.head_round,
            state_digest=replica.digest,
            resyncs=self._agenda.resyncs_obeyed,
            voids=self._context.decisions.place.void_count,
        )
        self._context.client.send(wire.NodeMessage(ready=ready))
