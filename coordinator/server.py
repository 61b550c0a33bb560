"""gRPC shell of the coordinator: sessions in, effects out. It decides nothing.

A session is one bidirectional stream per node: challenge, hello, then events. What the machine wants a node to
hear goes through the session's outbox; a node that does not read is cut off, not waited for.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc
import msgspec

from coordinator import messages
from coordinator.core import Core, Outcome
from coordinator.events import (
    Admit,
    AskResync,
    CommitRound,
    Effect,
    Evict,
    FinishRun,
    Joined,
    OpenRound,
    Parted,
    RecordDigest,
    Refuse,
    Renewed,
    SkipRound,
    TellMembers,
)
from coordinator.journal import Journal
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError, VersionError
from protocol.handshake import NONCE_BYTES, verify_hello
from protocol.ids import PeerId
from protocol.limits import COMMITS_PER_REPLY, PROTOCOL_VERSION
from protocol.runfile import run_json
from protocol.wire_pb2_grpc import CoordinatorServicer

log = logging.getLogger("lockstep.coordinator")

OUTBOX_MESSAGES_MAX = 1024
"""Messages that may wait for one node: minutes of rounds. A node that reads nothing for longer is cut off."""

HELLO_SECONDS = 10
"""A session that does not say hello for this long is closed: it holds memory for nothing."""

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
        self, core: Core, journal: Journal, coordinator_key: bytes, status: Callable[[], dict[str, Any]]
    ) -> None:
        self._core, self._journal, self._key, self._status = core, journal, coordinator_key, status
        self._sessions: dict[PeerId, NodeSession] = {}

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
        recorded = await asyncio.to_thread(self._journal.commits, request.after_round, COMMITS_PER_REPLY)
        return messages.commits_reply([row for row in recorded if row.round <= decided], decided, head)

    async def GetStatus(self, request: wire.GetStatusRequest, context: Context) -> wire.Status:
        """The document of /status.json."""
        return wire.Status(json=msgspec.json.encode(self._status()))

    # ---- sessions

    async def Session(self, requests: AsyncIterator[wire.NodeMessage], context: Context) -> AsyncIterator[Message]:
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
                self._core.post(Parted(peer))

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
            raise RemoteProtocolError(f"expected a node of run {run_id}, got one of run {hello.run_id!r}")
        return messages.joined(verify_hello(hello.public_key, hello.signature, run_id, nonce), hello)

    def _replace(self, peer: PeerId, session: NodeSession) -> None:
        """Make the session the node's only one."""
        if earlier := self._sessions.get(peer):
            reason = "another session with this node's key has opened; one key is one node"
            earlier.close(Message(refused=wire.Refused(reason=reason)))
        self._sessions[peer] = session

    async def _read(self, joined: Joined, session: NodeSession, requests: AsyncIterator[wire.NodeMessage]) -> None:
        """Submit what the node says until it stops; its own mistakes end its session with a reason."""
        peer = joined.peer
        try:
            await self._core.submit(joined)
            async for message in requests:
                if self._sessions.get(peer) is not session:
                    return  # a goodbye still under way in a replaced session must not end the new one
                received_ms = self._core.now_ms()
                event = messages.event_of(peer, message)
                await self._core.submit(event)
                if isinstance(event, Renewed):
                    reply = messages.heartbeat_reply(message.heartbeat.sent_ms, received_ms, self._core.now_ms())
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
        for effect in outcome.effects:
            self._perform(effect, outcome)

    def close(self) -> None:
        """End every session."""
        for session in self._sessions.values():
            session.close()

    def _perform(self, effect: Effect, outcome: Outcome) -> None:
        match effect:
            case Admit(peer):
                self._send(peer, Message(welcome=self._welcome()))
            case Refuse(peer, reason):
                self._part(peer, Message(refused=wire.Refused(reason=reason)))
            case Evict(peer, reason):
                log.info("evicted peer=%s reason=%s", peer, reason)
                self._part(peer, Message(evicted=wire.Evicted(reason=reason)))
            case TellMembers():
                self._broadcast(Message(members=messages.members_message(self._core.rounds.members)))
            case OpenRound():
                for assignment in effect.assignments:
                    self._send(assignment.peer, messages.opened_message(effect, assignment))
            case CommitRound(commit, holders, loss):
                log.info(
                    "committed",
                    extra={"round": commit.round, "contributors": len(commit.entries), "loss": loss},
                )
                self._broadcast(messages.committed_message(outcome.signed[commit.round], holders))
            case SkipRound(round, reason):
                log.info("skipped round=%s reason=%s", round, reason)
                self._broadcast(Message(skipped=wire.RoundSkipped(round=round, reason=reason)))
            case AskResync(peer, round, reason):
                log.warning("resync peer=%s round=%s reason=%s", peer, round, reason)
                self._send(peer, Message(resync=wire.Resync(round=round, reason=reason)))
            case FinishRun(reason):
                head = self._core.rounds.head_round
                self._broadcast(Message(finished=wire.RunFinished(head_round=head, reason=reason)))
            case RecordDigest():
                pass  # already in the journal

    def _welcome(self) -> wire.Welcome:
        rounds = self._core.rounds
        return wire.Welcome(
            decided_round=rounds.decided_round,
            head_round=rounds.head_round,
            members=messages.members_message(rounds.members),
        )

    def _send(self, peer: PeerId, message: Message) -> None:
        if session := self._sessions.get(peer):
            session.send(message)

    def _part(self, peer: PeerId, message: Message) -> None:
        if session := self._sessions.get(peer):
            session.close(message)

    def _broadcast(self, message: Message) -> None:
        for session in self._sessions.values():
            session.send(message)
