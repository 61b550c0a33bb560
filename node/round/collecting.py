"""Collects the payloads of a commit, and complains when no peer gives one of them.

    waiting --all payloads are here-----------------------> collected
       ^ |--one became void: it is passed over--.
       '-'                                      (waits for the others)
         '--every peer was asked in vain: complain--------> `NotRetainedError`

A node that has no link to ask over, or whose peers do not answer, waits on, and complains too once
no pull is under way. The coordinator takes a payload out of the log when most members complain
(`coordinator.machine.rules.voiding`).
"""

import asyncio

from node.control.decision import Decision
from node.control.decisions import DecisionLog
from node.gossip.collector import NotRetainedError
from node.round.context import ControlLine, PayloadExchange
from protocol import wire_pb2 as wire
from protocol.ids import Digest, PeerId
from protocol.sums.plan import SumPlan

LOOK_S = 3
"""Pause between two looks at what is lacking; a payload that no pull is under way for at two of
them is complained of."""

REPEAT_MS = 10_000
"""Time after which a complaint is repeated: the first may have been lost with its session."""


def open_round(swarm: PayloadExchange, opened: wire.RoundOpened) -> None:
    """Let the payloads of a round be exchanged: among all, among neighbours, or in parts with those
    that add them.
    """
    near = frozenset(map(PeerId, opened.neighbours)) if opened.among_neighbours else None
    swarm.open(opened.round, near, SumPlan.of(opened))


class CommitPayloads:
    """Collects for one node, one commit at a time."""

    def __init__(
        self, client: ControlLine, swarm: PayloadExchange, decisions: DecisionLog, own: PeerId
    ) -> None:
        self._client, self._swarm, self._decisions, self._own = client, swarm, decisions, own
        self._complained: tuple[int, frozenset[Digest]] = (-1, frozenset())
        self._complained_ms = 0

    def are_here(self, decision: Decision) -> bool:
        """Whether `collect` would not wait for the payloads of a commit."""
        return self._swarm.holds(decision.wanted(self._own)[0])

    async def collect(self, decision: Decision) -> tuple[Decision, list[bytes]]:
        """Wait for the payloads of a commit that the log has just handed out. Returns the decision
        with the voids that came meanwhile, and the payloads in the order of the commit's entries,
        empty for those that are void or not this node's business; no payloads when a restart
        replaces the state. Raises what `Swarm.collect` raises.
        """
        while True:
            payloads = await self._collect_unless_changed(decision)
            if self._decisions.restart:
                return decision, []  # the caller discards it
            latest = self._decisions.again(decision)
            if latest.voids == decision.voids and payloads is not None:
                return decision, decision.filled(payloads, self._own)
            decision = latest

    async def _collect_unless_changed(self, decision: Decision) -> list[bytes] | None:
        """The payloads that count; None when one of them became void first."""
        collecting = asyncio.create_task(self._swarm.collect(*decision.wanted(self._own)))
        changing = asyncio.create_task(self._decisions.changed(decision))
        lacking: set[Digest] = set()
        try:
            while True:
                done, _ = await asyncio.wait(
                    {collecting, changing}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if collecting in done:
                    return collecting.result()
                if changing in done:
                    return None
                before, lacking = lacking, set(self._swarm.unsourced(decision.round))
                self._complain(decision.round, before & lacking)
        except NotRetainedError as error:
            self._complain(decision.round, {error.digest})
            raise
        finally:
            collecting.cancel()
            changing.cancel()
            await asyncio.gather(collecting, changing, return_exceptions=True)

    def _complain(self, round: int, digests: set[Digest]) -> None:
        said, now_ms = (round, frozenset(digests)), self._client.now_ms()
        repeated = said == self._complained and now_ms - self._complained_ms < REPEAT_MS
        if digests and not repeated:
            self._complained, self._complained_ms = said, now_ms
            lacked = wire.NotHeld(round=round, digests=sorted(digests))
            self._client.send(wire.NodeMessage(not_held=lacked))
