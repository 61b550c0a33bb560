"""gRPC shell of the coordinator: sessions in, effects out. It decides nothing.

A session is one bidirectional stream per node: challenge, hello, then events. What the machine
wants a node to hear goes through the session's outbox; a node that does not read is cut off, not
waited for: when its outbox is full, or when one message cannot be handed to the network for a
minute, whichever comes first. What everybody hears is encoded once."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
import msgspec

from coordinator import wire_messages
from coordinator.journal import Journal
from coordinator.machine.events import (
    Admit,
    AskResync,
    CommitRound,
    Disconnected,
    Effect,
    Evict,
    FinishRun,
    Heartbeat,
    Joined,
    OpenRound,
    RecordDigest,
    Refuse,
    SkipRound,
    TellMembers,
)
from coordinator.relays import Relays
from coordinator.sequencer import Outcome, Sequencer
from coordinator.traffic import Traffic
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError, VersionError
from protocol.handshake import NONCE_BYTES, verify_hello
from protocol.ids import PeerId
from protocol.limits import COMMITS_PER_REPLY, PROTOCOL_VERSION
from protocol.runfile import run_json
from protocol.wire_pb2_grpc import CoordinatorServicer

log = logging.getLogger("lockstep.coordinator")

OUTBOX_MESSAGES_MAX = 1024
"""Messages that may wait for one node: minutes of rounds. A node that reads nothing for longer is
cut off."""

STALL_SECONDS = 60
"""A stream that takes no byte for this long is ended: it holds messages and a connection for
nobody. Six keepalives: a path that is merely slow has moved something by then."""

SHARED_MESSAGES = 16
"""Broadcasts whose bytes are kept: sessions send them within moments of each other."""

HELLO_SECONDS = 10
"""A session that does not say hello for this long is closed: it holds memory for nothing."""

SERVICE = "lockstep.v1.Coordinator"

Message = wire.CoordinatorMessage
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class NodeSession:
    """One node's open stream. `None` in the outbox ends it."""

    def __init__(self) -> None:
        self.outbox: asyncio.Queue[Message | None] = asyncio.Queue(OUTBOX_MESSAGES_MAX)

    def send(self, message: Message) -> None:
        """Queue a message; a full outbox ends the session."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.close()

    def close(self, last: Message | None = None) -> None:
        """End the stream after what is queued and `last`."""
        for message in (last, None) if last else (None,):
            if self.outbox.full():
                self.outbox.get_nowait()
            self.outbox.put_nowait(message)


class CoordinatorService(CoordinatorServicer):
    """The service `lockstep.v1.Coordinator`. Hand its `emit` to the core."""

    def __init__(
        self,
        core: Sequencer,
        journal: Journal,
        coordinator_key: bytes,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._core, self._journal, self._key, self._status = core, journal, coordinator_key, status
        self._sessions: dict[PeerId, NodeSession] = {}
        self.relays: Relays[NodeSession] = Relays()
        self._shared: dict[int, tuple[Message, bytes]] = {}

    def serve(self, server: grpc.aio.Server, traffic: Traffic) -> None:
        """Register with a server, as the generated code would, but with streams that end when
        nobody reads, and count the bytes."""
        came, left, unary = traffic.came, traffic.left, grpc.unary_unary_rpc_method_handler
        run, commits = (
            left(wire.Run.SerializeToString, "catch_up"),
            left(wire.Commits.SerializeToString, "catch_up"),
        )
        status, members = left(wire.Status.SerializeToString), left(wire.Members.SerializeToString)
        stream, decoded = grpc.stream_stream_rpc_method_handler, came(wire.NodeMessage.FromString)
        handlers = {
            "GetRun": unary(self.GetRun, came(wire.GetRunRequest.FromString), run),
            "GetCommits": unary(self.GetCommits, came(wire.GetCommitsRequest.FromString), commits),
            "GetStatus": unary(self.GetStatus, came(wire.GetStatusRequest.FromString), status),
            "GetMembers": unary(self.GetMembers, came(wire.GetMembersRequest.FromString), members),
            "Session": stream(self._stream, decoded, left(bytes)),  # encoded already
        }
        server.add_registered_method_handlers(SERVICE, handlers)

    # ---- unary calls

    async def GetRun(self, request: wire.GetRunRequest, context: Context) -> wire.Run:
        """The run file, the run's name and the key that signs its commits."""
        rounds = self._core.rounds
        return wire.Run(
            protocol_version=PROTOCOL_VERSION,
            run_id=rounds.run_id,
            run_json=run_json(rounds.spec),
            coordinator_key=self._key,
        )

    async def GetCommits(self, request: wire.GetCommitsRequest, context: Context) -> wire.Commits:
        """Commits after a round, oldest first, as many as fit one reply."""
        decided, head = self._core.decided_round, self._core.head_round
        recorded = await asyncio.to_thread(
            self._journal.commits, request.after_round, COMMITS_PER_REPLY
        )
        return wire_messages.commits_reply(
            [row for row in recorded if row.round <= decided], decided, head
        )

    async def GetStatus(self, request: wire.GetStatusRequest, context: Context) -> wire.Status:
        """The document of /status.json."""
        return wire.Status(json=msgspec.json.encode(self._status()))

    async def GetMembers(self, request: wire.GetMembersRequest, context: Context) -> wire.Members:
        """The member list, for who is no member itself."""
        return self._members()

    # ---- sessions

    async def _stream(self, requests: AsyncIterator[wire.NodeMessage], context: Context) -> None:
        """A session over gRPC: its messages as bytes, each within `STALL_SECONDS`."""
        async with aclosing(self.Session(requests, context)) as session:
            async for message in session:
                try:
                    async with asyncio.timeout(STALL_SECONDS):
                        await context.write(self._encoded(message))
                except TimeoutError:
                    log.warning("session closed peer=%s reason=it reads nothing", context.peer())
                    return

    def _encoded(self, message: Message) -> bytes:
        shared = self._shared.get(id(message))
        return shared[1] if shared and shared[0] is message else message.SerializeToString()

    async def Session(
        self, requests: AsyncIterator[wire.NodeMessage], context: Context
    ) -> AsyncGenerator[Message, None]:
        """One node from its hello to its goodbye."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        yield Message(challenge=wire.Challenge(nonce=nonce))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await anext(requests)
            joined = self._joined(hello, nonce)
        except (RemoteProtocolError, VersionError) as error:
            yield Message(refused=wire.Refused(reason=str(error)))
            return
        except (TimeoutError, StopAsyncIteration):
            return
        session, peer = NodeSession(), joined.peer
        if hello.hello.relay:
            async with aclosing(self._relay(joined, session, requests)) as told:
                async for told_message in told:
                    yield told_message
            return
        self._replace(peer, session)
        reader = asyncio.create_task(self._read(joined, session, requests))
        try:
            while message := await session.outbox.get():
                yield message
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            if self._sessions.get(peer) is session:
                del self._sessions[peer]
                self._core.post(Disconnected(peer))

    async def _relay(
        self, joined: Joined, session: NodeSession, requests: AsyncIterator[wire.NodeMessage]
    ) -> AsyncGenerator[Message, None]:
        """One relay from its hello to its goodbye."""
        if reason := self.relays.admit(joined, session):
            yield Message(refused=wire.Refused(reason=reason))
            return
        log.info("relay came peer=%s addresses=%s", joined.peer, ",".join(joined.addresses))
        session.send(Message(welcome=self._welcome()))
        self._tell_relays()
        reader = asyncio.create_task(self._follow(session, requests))
        try:
            while message := await session.outbox.get():
                yield message
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if self.relays.part(joined.peer, session):
                log.info("relay went peer=%s", joined.peer)
                self._tell_relays(gone=joined.peer)

    async def _follow(
        self, session: NodeSession, requests: AsyncIterator[wire.NodeMessage]
    ) -> None:
        """A relay says that it lives, and goodbye."""
        async for message in requests:
            now_ms = self._core.now_ms()
            if message.WhichOneof("kind") == "heartbeat":
                session.send(
                    wire_messages.heartbeat_reply(message.heartbeat.sent_ms, now_ms, now_ms)
                )
            elif message.WhichOneof("kind") == "leave":
                break
        session.close()

    def _tell_relays(self, gone: str = "") -> None:
        told = wire.Members(members=self.relays.told(), gone=[gone] if gone else [], changes=True)
        self._broadcast(Message(members=told))

    def _members(self) -> wire.Members:
        members = wire_messages.members_message(self._core.rounds.members)
        members.members.extend(self.relays.told())
        return members

    def _joined(self, message: wire.NodeMessage, nonce: bytes) -> Joined:
        """The event in a hello, once its proof was checked."""
        hello, run_id = message.hello, self._core.rounds.run_id
        if message.WhichOneof("kind") != "hello":
            raise RemoteProtocolError(f"expected a hello first, got {message.WhichOneof('kind')}")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise VersionError(
                f"expected protocol version {PROTOCOL_VERSION}, got {hello.protocol_version}: update Lockstep"
            )
        if hello.run_id != run_id:
            raise RemoteProtocolError(
                f"expected a node of run {run_id}, got one of run {hello.run_id!r}"
            )
        return wire_messages.joined(
            verify_hello(hello.public_key, hello.signature, run_id, nonce), hello
        )

    def _replace(self, peer: PeerId, session: NodeSession) -> None:
        """Make the session the node's only one."""
        if earlier := self._sessions.get(peer):
            reason = "another session with this node's key has opened; one key is one node"
            earlier.close(Message(refused=wire.Refused(reason=reason)))
        self._sessions[peer] = session

    async def _read(
        self, joined: Joined, session: NodeSession, requests: AsyncIterator[wire.NodeMessage]
    ) -> None:
        """Submit what the node says until it stops; its own mistakes end its session with a
        reason."""
        peer = joined.peer
        try:
            await self._core.submit(joined)
            async for message in requests:
                if self._sessions.get(peer) is not session:
                    # a goodbye still under way in a replaced session must not end the new one
                    return
                received_ms = self._core.now_ms()
                event = wire_messages.event_of(peer, message)
                await self._core.submit(event)
                if isinstance(event, Heartbeat):
                    reply = wire_messages.heartbeat_reply(
                        message.heartbeat.sent_ms, received_ms, self._core.now_ms()
                    )
                    session.send(reply)
        except RemoteProtocolError as error:
            log.warning("session closed peer=%s reason=%s", peer, str(error))
            session.close(Message(refused=wire.Refused(reason=str(error))))
        except grpc.aio.AbortError:
            session.close()
        else:
            session.close()

    # ---- effects

    def emit(self, outcome: Outcome) -> None:
        """Send what a batch of events has brought about."""
        if changes := [effect for effect in outcome.effects if isinstance(effect, TellMembers)]:
            self._broadcast(wire_messages.changes_message(self._core.rounds.members, changes))
        for effect in outcome.effects:
            self._perform(effect, outcome)

    def close(self) -> None:
        """End every session."""
        for session in (*self._sessions.values(), *self.relays):
            session.close()

    def _perform(self, effect: Effect, outcome: Outcome) -> None:
        match effect:
            case Admit(peer):
                self._send(peer, Message(welcome=self._welcome()))
            case Refuse(peer, reason, wrong_results):
                self._part(
                    peer, Message(refused=wire.Refused(reason=reason, wrong_results=wrong_results))
                )
            case Evict(peer, reason, wrong_results):
                log.info("evicted peer=%s reason=%s", peer, reason)
                self._part(
                    peer, Message(evicted=wire.Evicted(reason=reason, wrong_results=wrong_results))
                )
            case OpenRound():
                for assignment in effect.assignments:
                    self._send(assignment.peer, wire_messages.opened_message(effect, assignment))
                for relay in self.relays:
                    relay.send(
                        Message(opened=wire.RoundOpened(round=effect.round, step=effect.step))
                    )
            case CommitRound(commit, holders, loss):
                log.info(
                    "committed",
                    extra={
                        "round": commit.round,
                        "contributors": len(commit.entries),
                        "loss": loss,
                    },
                )
                self._broadcast(
                    wire_messages.committed_message(outcome.signed[commit.round], holders)
                )
            case SkipRound(round, reason):
                log.info("skipped round=%s reason=%s", round, reason)
                self._broadcast(Message(skipped=wire.RoundSkipped(round=round, reason=reason)))
            case AskResync(peer, round, reason, number):
                log.warning("resync peer=%s round=%s reason=%s", peer, round, reason)
                self._send(
                    peer, Message(resync=wire.Resync(round=round, reason=reason, number=number))
                )
            case FinishRun(reason):
                head = self._core.rounds.head_round
                self._broadcast(Message(finished=wire.RunFinished(head_round=head, reason=reason)))
            case TellMembers() | RecordDigest():
                pass  # told together above; already in the journal

    def _welcome(self) -> wire.Welcome:
        rounds = self._core.rounds
        return wire.Welcome(
            decided_round=rounds.decided_round,
            head_round=rounds.head_round,
            members=self._members(),
        )

    def _send(self, peer: PeerId, message: Message) -> None:
        if session := self._sessions.get(peer):
            session.send(message)

    def _part(self, peer: PeerId, message: Message) -> None:
        if session := self._sessions.get(peer):
            session.close(message)

    def _broadcast(self, message: Message) -> None:
        self._shared[id(message)] = (message, message.SerializeToString())
        if len(self._shared) > SHARED_MESSAGES:
            del self._shared[next(iter(self._shared))]
        for session in (*self._sessions.values(), *self.relays):
            session.send(message)
