"""This node's payloads: out of what it did not say yet, into the log of payloads, and announced.

    unsaid --extract--> payload --announce--> undecided --settle--> counted, or lost to this node
                                                announced again in every new session

What is undecided is in memory only. A process that is killed leaves its payload in the log, from
which the next process serves it; whatever that one says of the same round, the coordinator keeps to
what it heard first. So nobody has to remember what was announced. A payload that its commit leaves
out is not put back: its samples return to the data order.

In a round with a plan the payload is cut by ranges, and what is announced is the root of its parts.
"""

from dataclasses import dataclass

from node.model.passes import RoundWork
from node.round.context import RoundContext
from protocol import wire_pb2 as wire
from protocol.codec.payload_header import Header
from protocol.ids import Digest, sha256
from protocol.sums.part_list import list_of
from protocol.sums.parts import cut
from protocol.sums.plan import SumPlan


@dataclass(frozen=True, slots=True)
class OwnPayload:
    """What this node sends in a round, if anything."""

    pieces: tuple[bytes, ...] = ()
    """The payload, or its parts by range."""

    in_parts: bool = False

    @property
    def digest(self) -> Digest:
        """The name of the payload, or the root of its parts."""
        return list_of(self.pieces).root if self.in_parts else sha256(self.pieces[0])


class OwnPayloads:
    """Makes and announces the payloads of one node, and knows which of them are undecided."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._undecided: dict[int, wire.Announced] = {}

    # ---- what is undecided

    @property
    def undecided(self) -> list[wire.Announced]:
        """What this process has announced and nobody has decided yet, oldest first."""
        return [self._undecided[round] for round in sorted(self._undecided)]

    def of(self, round: int) -> wire.Announced | None:
        """The announcement of an undecided round; None when nothing was announced in it."""
        return self._undecided.get(round)

    def settle(self, round: int) -> wire.Announced | None:
        """A round is decided: forget and return its announcement, if there was one."""
        return self._undecided.pop(round, None)

    def clear(self) -> None:
        """Forget everything: the state that it belongs to is discarded."""
        self._undecided.clear()

    # ---- a round's payload

    def extract(
        self, opened: wire.RoundOpened, work: RoundWork | None, compute_ms: int
    ) -> tuple[wire.Announced, OwnPayload]:
        """Unsaid to announcement and payload. A muted node keeps all of that and announces only
        its work, for which it computed `compute_ms`; None: it has none. Blocks: for a thread.
        """
        announced = wire.Announced(round=opened.round, compute_ms=compute_ms)
        payload = OwnPayload()
        if work:
            announced.samples, announced.loss = work.samples, work.loss_nats_per_token
        if work and not opened.muted:
            payload = self._payload(opened)
            announced.digest = payload.digest
            announced.payload_bytes = sum(map(len, payload.pieces))
        return announced, payload

    async def announce(self, announced: wire.Announced, payload: OwnPayload) -> None:
        """Keep and offer the payload, then announce it: peers can have every payload that the
        coordinator hears of, whatever happens to this process. Raises what `Swarm.publish` raises.
        """
        context = self._context
        if payload.in_parts:
            parts = context.swarm.parts
            await parts.publish(announced.round, payload.pieces, announced.samples)
        elif payload.pieces:
            await context.swarm.publish(announced.round, payload.pieces[0], announced.samples)
        self._undecided[announced.round] = announced
        context.client.send(wire.NodeMessage(announced=announced))
        at_ms, standing = context.client.now_ms(), context.status.standing
        standing.announced(announced.round, at_ms, announced.compute_ms)

    def _payload(self, opened: wire.RoundOpened) -> OwnPayload:
        context = self._context
        extraction = context.replica.extract(opened.round, mean=opened.mean)
        header = Header(context.info.run_id, opened.round, context.own)
        payload, values = context.replica.encoded(header, extraction)
        context.status.work.encoded(len(payload), values)
        if plan := SumPlan.of(opened):
            return OwnPayload(
                tuple(cut(payload, context.replica.shape, plan.ranges)), in_parts=True
            )
        return OwnPayload((payload,))
