"""The sessions of the coordinator over gRPC: takes the messages of nodes in, and decides nothing.

A session is one bidirectional stream per node: challenge, hello, then events. Messages for the node
(`coordinator.service.delivery`) go through the session's outbox. A node that does not read is cut
off, not waited for: when its outbox is full, or when one message cannot be handed to the network
within a minute, whichever comes first.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import grpc

from border.visitors import Direct, Visitors
from coordinator.checkpoints.desk import CheckpointDesk
from coordinator.history import History
from coordinator.journal import Journal
from coordinator.machine.events import effects, inputs
from coordinator.sequencer import Sequencer
from coordinator.service import adding_relays, auditors, coordinator_messages, node_messages
from coordinator.service.admittance import Admittance
from coordinator.service.calls import Calls, Context
from coordinator.service.course import Course
from coordinator.service.delivery import Delivery
from coordinator.service.door import Door
from coordinator.service.evidence import EvidenceDesk
from coordinator.service.heads import HeadDesk
from coordinator.service.ordering import Ordering
from coordinator.service.refusals import REASON_MAX, RunRefusals
from coordinator.service.relays import Relays
from coordinator.service.sessions import Message, NodeSession
from coordinator.status_document import told_standing
from coordinator.traffic import CoordinatorTraffic
from protocol import wire_pb2 as wire
from protocol.border.text import one_line
from protocol.errors import RemoteProtocolError, VersionError
from protocol.handshake import NONCE_BYTES
from protocol.ids import PeerId

log = logging.getLogger("lockstep.coordinator")

STALL_S = 60
"""Time within which a stream must take each message: a stalled one holds messages and a connection
for a node that is gone. Six keepalives: a path that is merely slow has moved something by then."""

HELLO_S = 10
"""Time within which a new session must say hello."""

SERVICE = "lockstep.v1.Coordinator"

Requests: TypeAlias = AsyncIterator[wire.NodeMessage]


class CoordinatorService(Calls):
    """The service `lockstep.v1.Coordinator`. The sequencer hands its outcomes to `delivery`."""

    def __init__(
        self,
        sequencer: Sequencer,
        journal: Journal,
        coordinator_key: bytes,
        status: Callable[[], dict[str, Any]],
        door: Door,
        *,
        checkpoints: CheckpointDesk,
        heads: HeadDesk,
        history: History,
        visitors: Visitors | None = None,
    ) -> None:
        """`visitors` knows who is behind a gate; None: gRPC is reached directly."""
        lease_ms = sequencer.rounds.spec.membership.lease_ms
        relays = Relays(lease_ms, lambda: _named(sequencer))
        super().__init__(
            sequencer,
            journal,
            coordinator_key,
            status,
            relays=relays,
            door=door,
            checkpoints=checkpoints,
            visitors=visitors or Direct(),
        )
        self.run_refusals, self._admittance = RunRefusals(), Admittance(sequencer)
        self.ordering = Ordering(sequencer)
        self.evidence = EvidenceDesk(sequencer, journal, coordinator_key, self.ordering)
        self.heads, self._course = heads, Course(sequencer.rounds, history)
        self.delivery = Delivery(sequencer, relays, checkpoints, heads)
        self.node_sessions = self.delivery.node_sessions
        self.relay_sessions = self.delivery.relay_sessions

    def serve(self, server: grpc.aio.Server, traffic: CoordinatorTraffic) -> None:
        """Register with a server. The generated code would neither count bytes nor end streams
        that nobody reads.
        """
        session = grpc.stream_stream_rpc_method_handler(
            self._stream,
            traffic.counted_decoder(wire.NodeMessage.FromString),
            traffic.counted_encoder(bytes),  # the messages are encoded already
        )
        handlers = self.handlers(traffic) | {"Session": session}
        server.add_registered_method_handlers(SERVICE, handlers)

    @property
    def copies_refused(self) -> int:
        """Processes that were refused because another one was at work with their key."""
        return self.node_sessions.copies_refused + self.relay_sessions.copies_refused

    @property
    def cuts(self) -> Mapping[str, int]:
        """Connections without a proven key that were cut, by reason."""
        return self._visitors.cuts

    # ---- sessions

    async def _stream(self, requests: Requests, context: Context) -> None:
        """A session over gRPC: its messages as bytes, each within `STALL_S`."""
        host, peer = self._host(context), context.peer()
        address = self._visitors.remote(peer)
        if refusal := self._door.open_stream(host, peer):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        context.add_done_callback(lambda _: self._door.close_stream(host))
        async with aclosing(self.Session(requests, context)) as session:
            async for message in session:
                try:
                    async with asyncio.timeout(STALL_S):
                        await context.write(self.delivery.encode(message))
                except TimeoutError:
                    log.warning(
                        "session stalled",
                        extra=self._where(address=address, seconds=STALL_S),
                    )
                    return

    async def Session(self, requests: Requests, context: Context) -> AsyncGenerator[Message, None]:
        """One node or relay from its hello to its goodbye."""
        nonce, host, peer = secrets.token_bytes(NONCE_BYTES), self._host(context), context.peer()
        if refusal := self._sequencer.rounds.state.operator.banned(host):
            yield Message(refused=wire.Refused(reason=refusal))
            return
        yield Message(challenge=wire.Challenge(nonce=nonce))
        try:
            with self._door.awaiting_hello(peer):
                async with asyncio.timeout(HELLO_S):
                    hello = await anext(requests)
            joined = node_messages.proven(hello, nonce, host, self._sequencer.rounds.run_id)
        except (RemoteProtocolError, VersionError) as error:
            yield Message(refused=wire.Refused(reason=str(error)))
            return
        except (TimeoutError, StopAsyncIteration):
            return
        self._visitors.hear(peer)
        if hello.hello.only_asks or hello.hello.cannot_train:
            if refusal := self._door.refuses_call(host):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
            if answer := self._answered(joined.peer, hello.hello):
                yield answer
            return
        known = joined.peer in self._sequencer.rounds.members.roster
        if refusal := self._door.refuses_join(joined.peer, host, known=known):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        if refusal := await self.heads.objection(joined.peer, hello):
            yield Message(refused=wire.Refused(reason=refusal, retry=True))
            return
        now_ms, relay, token = self._sequencer.now_ms, hello.hello.relay, hello.hello.token
        if refusal := await self._admittance.refuses(joined.peer, token, relay=relay):
            log.info("not admitted", extra=self._where(peer=joined.peer, reason=refusal))
            yield Message(refused=wire.Refused(reason=refusal))
            return
        self._visitors.prove(peer)
        place, task = node_messages.place(joined), asyncio.current_task()
        session = NodeSession(hello.hello.instance, place, now_ms(), task, host)
        sessions = self.relay_sessions if relay else self.node_sessions
        heartbeat_ms = self._sequencer.rounds.spec.membership.heartbeat_ms
        kept = partial(self._sequencer.rounds.members.kept_for_another, joined)
        if holder := await sessions.contest(joined.peer, session, heartbeat_ms, now_ms, kept):
            where = self._where(peer=joined.peer, copy=session.place, at_work=holder.place)
            log.warning("copied key refused", extra=where)
            yield Message(refused=wire.Refused(reason=holder.at_work(now_ms())))
            return
        offer = adding_relays.offer_of(joined, hello.hello) if relay else None
        serve = partial(self._serve_relay, offer=offer) if relay else self._serve_node
        paced = self._paced(joined.peer, host, requests)
        async with aclosing(serve(joined, session, paced)) as messages:
            async for message in messages:
                yield message

    def _answered(self, peer: PeerId, hello: wire.Hello) -> Message | None:
        """The answer to a node that does not join: it asks whether it may, or cannot train the run
        file. Who would not be admitted is not heard.
        """
        match self._admittance.answer(peer, hello.token, relay=hello.relay):
            case effects.Refuse() as refuse:
                return coordinator_messages.refused_message(refuse)
            case effects.FinishRun() as finish:
                head_round = self._sequencer.rounds.state.head_round
                return coordinator_messages.finished_message(finish, head_round)
        if not hello.cannot_train:
            return None
        self.run_refusals.note(peer)
        reason = one_line(hello.cannot_train, REASON_MAX)
        log.warning("run file refused", extra=self._where(peer=peer, reason=reason))
        return Message(refused=wire.Refused(reason="noted"))

    async def _paced(self, peer: PeerId, host: str, requests: Requests) -> Requests:
        """The messages of a session, no faster than the door lets its sender."""
        async for message in requests:
            await self._door.pace(peer, host, message)
            yield message

    async def _serve_node(
        self, joined: inputs.Joined, session: NodeSession, requests: Requests
    ) -> AsyncGenerator[Message, None]:
        self.node_sessions.put(joined.peer, session)
        self.run_refusals.forget(joined.peer)
        reader = asyncio.create_task(self.read_node(joined, session, requests))
        try:
            while message := await session.outbox.get():
                yield message
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            if self.node_sessions.remove(joined.peer, session):
                self._sequencer.post(inputs.Disconnected(joined.peer))

    async def _serve_relay(
        self,
        joined: inputs.Joined,
        session: NodeSession,
        requests: Requests,
        offer: inputs.SumsOffered | None,
    ) -> AsyncGenerator[Message, None]:
        self._end_lapsed_relays()
        decision = self.relays.join(joined, self._sequencer.now_ms())
        if isinstance(decision, effects.Refuse):
            yield Message(refused=wire.Refused(reason=decision.reason, retry=decision.retry))
            return
        self.relay_sessions.put(joined.peer, session)
        addresses = ",".join(joined.addresses)
        log.info("relay joined", extra=self._where(peer=joined.peer, addresses=addresses))
        self.delivery.welcome_relay(session)
        reader = asyncio.create_task(self._read_relay(joined.peer, session, requests, offer))
        try:
            while message := await session.outbox.get():
                yield message
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if self.relay_sessions.remove(joined.peer, session):
                log.info("relay left", extra=self._where(peer=joined.peer))
                self._let_relay_go(joined.peer)

    async def read_node(
        self, joined: inputs.Joined, session: NodeSession, requests: Requests
    ) -> None:
        """Submit a node's messages until it stops; a message that the protocol does not allow ends
        its session with the reason.
        """
        peer = joined.peer
        try:
            await self._sequencer.submit(joined)
            session.waits(self._sequencer.now_ms())
            async for message in requests:
                if not self.node_sessions.holds(peer, session):
                    # a goodbye still under way in a replaced session must not end the new one
                    return
                received_ms = session.hears(self._sequencer.now_ms())
                await self._heed_head(peer, session, message)
                event = self._event_of(peer, message)
                await self._sequencer.submit(event)
                session.waits(self._sequencer.now_ms())
                if isinstance(event, inputs.Left):
                    log.info("member left", extra=self._where(peer=peer, reason=event.reason))
                if isinstance(event, inputs.Heartbeat):
                    times_ms = message.heartbeat.sent_ms, received_ms, self._sequencer.now_ms()
                    standing = told_standing(self._sequencer.rounds, peer)
                    reply = coordinator_messages.heartbeat_reply(*times_ms, standing)
                    self._course.tell(reply.heartbeat, peer)
                    session.send(reply)
        except RemoteProtocolError as error:
            log.warning("session refused", extra=self._where(peer=peer, reason=str(error)))
            session.close(Message(refused=wire.Refused(reason=str(error))))
        except grpc.aio.AbortError:
            session.close()
        else:
            session.close()

    def _event_of(self, peer: PeerId, message: wire.NodeMessage) -> inputs.Event:
        if message.WhichOneof("kind") == "summed":
            return node_messages.summed(peer, message.summed, self._sequencer.rounds)
        return node_messages.event_of(peer, message)

    async def _heed_head(
        self, peer: PeerId, session: NodeSession, message: wire.NodeMessage
    ) -> None:
        if refusal := await self.heads.objection(peer, message):
            session.close(Message(refused=wire.Refused(reason=refusal, retry=True)))

    async def _read_relay(
        self,
        peer: PeerId,
        session: NodeSession,
        requests: Requests,
        offer: inputs.SumsOffered | None,
    ) -> None:
        """Answer a relay's heartbeats, and hear it if it is an auditor or adds, until it says
        goodbye.
        """
        if offer:
            await self._sequencer.submit(offer)
        async for message in requests:
            session.heard_ms = now_ms = self._sequencer.now_ms()
            await self._heed_head(peer, session, message)
            kind = message.WhichOneof("kind")
            if kind == "heartbeat":
                self.relays.beat(peer, now_ms)
                self._end_lapsed_relays()
                if offer:
                    await adding_relays.beat(offer, self._sequencer)
                sent_ms = message.heartbeat.sent_ms
                session.send(coordinator_messages.heartbeat_reply(sent_ms, now_ms, now_ms))
            elif kind == "leave":
                break
            elif refusal := await self._heard(peer, message):
                session.close(Message(refused=wire.Refused(reason=refusal)))
                return
        session.close()

    async def _heard(self, peer: PeerId, message: wire.NodeMessage) -> str:
        """Hear what a relay says; returns why its session must end, empty while it may go on."""
        if message.WhichOneof("kind") in ("parts", "summed"):
            return await adding_relays.hear(peer, message, self._sequencer)
        return await auditors.hear(peer, message, self._sequencer, self.evidence)

    def _end_lapsed_relays(self) -> None:
        """End the sessions of relays that have sent no heartbeat for a lease."""
        for peer in self.relays.lapsed(self._sequencer.now_ms()):
            evicted = wire.Evicted(reason="silent for a lease")
            self.relay_sessions.close(peer, Message(evicted=evicted))
            self._let_relay_go(peer)

    def _let_relay_go(self, peer: PeerId) -> None:
        """Do without a relay, and tell everybody."""
        self.relays.leave(peer)
        self._sequencer.post(inputs.OfferEnded(peer))
        self.delivery.tell_relays(gone=peer)

    def _where(self, **fields: object) -> dict[str, object]:
        """Fields of a log record: the run, then `fields`."""
        return {"run": self._sequencer.rounds.run_id, **fields}


def _named(sequencer: Sequencer) -> set[PeerId]:
    """The keys that the operator has named: auditors, and those that it vouches for."""
    state = sequencer.rounds.state
    return state.verdicts.auditors | state.members.standing.vouched
