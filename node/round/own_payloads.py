"""This node's payloads: out of the momentum, into the log, and announced.

    momentum --extract--> pending, with its payload --announce--> in the log, offered to peers,
                              '- saved with the state                 announced to the coordinator

A round that was saved and not announced before the process ended is announced again. Its payload is
made anew from the saved extraction: it may be committed, and after a kill or a power cut no other
node need have it.
"""

from node.demo.engine import Extraction
from node.model.training import RoundWork
from node.replica.position import Pending
from node.round.context import RoundContext
from node.round.pending import PendingRounds
from protocol import wire_pb2 as wire
from protocol.codec.payload_header import Header
from protocol.ids import sha256


class OwnPayloads:
    """Makes and announces the payloads of one node, and keeps account of them in `pending`."""

    def __init__(self, context: RoundContext, pending: PendingRounds) -> None:
        self._context, self._pending = context, pending

    def extract(
        self, opened: wire.RoundOpened, work: RoundWork | None, compute_ms: int
    ) -> tuple[Pending, bytes]:
        """Momentum to announcement and payload. A muted node keeps its momentum and announces only
        its work, for which it computed `compute_ms`; None: it has none. Blocks: for a thread.

        The round is pending at the instant at which its values leave the momentum: no interruption
        finds them in neither.
        """
        announced = wire.Announced(round=opened.round, compute_ms=compute_ms)
        payload, extraction = b"", None
        if work:
            announced.samples, announced.loss = work.samples, work.loss_nats_per_token
        if work and not opened.muted:
            extraction = self._context.replica.extract(opened.round, mean=opened.mean)
            payload = self._encoded(opened.round, extraction)
            announced.digest, announced.payload_bytes = sha256(payload), len(payload)
        pending = Pending(wire.NodeMessage(announced=announced), extraction)
        self._pending.add(pending)
        return pending, payload

    async def announce(self, pending: Pending, payload: bytes) -> None:
        """Keep and offer the payload, then announce it: peers can have every payload that the
        coordinator hears of, whatever happens to this process. Raises what `Swarm.publish` raises.
        """
        said = pending.announcement.announced
        if payload:
            await self._context.swarm.publish(pending.round, payload, said.samples)
        self._pending.announce(pending.round)
        self._context.client.send(pending.announcement)
        at_ms, standing = self._context.client.now_ms(), self._context.status.standing
        standing.announced(pending.round, at_ms, said.compute_ms)

    async def announce_again(self, pending: Pending) -> None:
        """Announce an undecided round from before a restart."""
        self._context.swarm.open(pending.round)
        extraction = pending.extraction
        payload = self._encoded(pending.round, extraction) if extraction else b""
        await self.announce(pending, payload)

    def _encoded(self, round: int, extraction: Extraction) -> bytes:
        context = self._context
        header = Header(context.info.run_id, round, context.own)
        payload, context.status.payload_values = context.replica.encoded(header, extraction)
        context.status.payload_bytes = len(payload)
        return payload
