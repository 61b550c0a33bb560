"""The coordinator client: one session, opened again and again for as long as the node lives.

    not connected --Welcome--> connected --closed, silent, broken--> lost
                                   ^                                  |
                                   '---------- pause, Welcome --------'

A lost session is no error: the client records the reason, waits (`node.system.backoff.Search`) and
opens the next. A message that is sent while there is none is dropped on purpose: after each
welcome the owner repeats the messages that still hold (`Listener.welcomed`). Only a refusal by the
coordinator ends the client, with its reason; removal for silence does not.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.calls import CoordinatorCalls
from node.control.channel import (
    CALL_S,
    CoordinatorChannel,
    Outbox,
    SessionReader,
    clean_reason,
    end_outbox,
)
from node.control.hello import prove, refusal
from node.control.members import MemberList
from node.system.backoff import Search
from node.system.clock import own_clock_ms
from node.traffic import Traffic
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink
from protocol.border.text import clean, one_line
from protocol.clock import ClockOffset
from protocol.errors import (
    DivergedError,
    RemoteProtocolError,
    UnavailableError,
)
from protocol.ids import RunId
from protocol.run_info import RunInfo

log = logging.getLogger("lockstep.node")

SILENCE_HEARTBEATS = 4
"""Heartbeats without any message from the coordinator after which a session counts as dead."""

OUTBOX_MESSAGES_MAX = 1024
"""Messages that may wait for a slow coordinator; then the session is given up and opened again."""

NOTICE_MAX = 1024
"""Characters of a notice of the coordinator, or of a reason for it, that are kept."""

DECLINE_S = 5
"""Longest wait of a node that will not join for its reason to be heard."""

_BROKEN_OFF = "Internal error from Core"
"""Words of gRPC for a stream that ended while this end sent something."""


class SessionState(Enum):
    """Whether there is a session with the coordinator."""

    NOT_CONNECTED = "not connected yet"
    CONNECTED = "connected"
    LOST = "reconnecting"


@dataclass(frozen=True, slots=True)
class SessionLine:
    """The line to the coordinator, for people."""

    state: SessionState
    reason: str = ""
    """Why there is no session, to stand in front of the state."""
    lost_by: str = ""
    """The kind of that reason, in a word."""

    @property
    def words(self) -> str:
        """The state, and the reason for it."""
        return f"{self.reason}{self.state.value}"


class Listener(Protocol):
    """The owner of a client, which calls it from the event loop."""

    def members_changed(self, members: MemberList) -> None:
        """The member list is another one: before each welcome, and whenever it changes."""

    def welcomed(self, welcome: wire.Welcome) -> None:
        """A session opens: repeat the messages that still hold. `UnavailableError`: not with this
        coordinator, as it is now.
        """

    def received(self, message: wire.CoordinatorMessage) -> None:
        """An event of the run."""


class CoordinatorClient:
    """The session with the coordinator that a link names, and its other calls. `channel`: None for
    one of its own.
    """

    def __init__(
        self, link: JoinLink, key: Ed25519PrivateKey, channel: CoordinatorChannel | None = None
    ) -> None:
        self._link = link
        self.clock = ClockOffset()
        self.members = MemberList()
        """The members as the coordinator last named them: the only list of this node."""
        self.traffic = Traffic()
        """Bytes of messages: the run and old commits are catch-up, all others are control."""
        self._key, self.sessions_lost = key, 0
        self._line = SessionLine(SessionState.NOT_CONNECTED)
        self.notice = ""
        """The coordinator's last notice to the user of this node."""
        self._instance, self._search = secrets.randbits(64) or 1, Search()
        self._channel, self._reader = channel or CoordinatorChannel(link), SessionReader()
        self._outbox: Outbox | None = None
        self.calls = CoordinatorCalls(
            link,
            self._channel,
            traffic=self.traffic,
            members=self.members,
            decline=self.decline,
        )
        """The calls that need no session."""

    @property
    def address(self) -> str:
        """The coordinator's address."""
        return self._link.address

    @property
    def state(self) -> SessionState:
        """Whether there is a session."""
        return self._line.state

    @property
    def words(self) -> str:
        """The state for people, with the reason when a session was lost."""
        return self._line.words

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._line.state is SessionState.CONNECTED

    @property
    def offline(self) -> str:
        """Why no session is open, in words; empty while one is."""
        return "" if self.connected else self._line.words

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    @property
    def secure(self) -> bool:
        """Whether the channel has TLS; the run's links then have it too."""
        return self._channel.vouching is not None

    # ---- the session

    def now_ms(self) -> int:
        """The coordinator's clock as this node knows it."""
        return own_clock_ms() + self.clock.milliseconds

    def send(self, message: wire.NodeMessage) -> None:
        """Send in the open session, if there is one."""
        if self._outbox is not None:
            with contextlib.suppress(asyncio.QueueFull):
                self._outbox.put_nowait(message)

    async def flush(self, timeout_s: float) -> None:
        """Return when every message has gone out, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._outbox is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            if self._outbox is not None and self._outbox.empty():
                await asyncio.sleep(0.2)  # the last one is with gRPC; a moment to leave the machine
                return

    async def run(self, info: RunInfo, hello: wire.Hello, listener: Listener) -> None:
        """Keep a session open until cancelled.

        Raises `RefusedError` when the coordinator turns the node away, `DivergedError` when it says
        that this machine computes wrong results.
        """
        while True:
            limit_s = min(CALL_S, self._search.looks(own_clock_ms()) / 1000)
            try:
                await self._session(info, hello, listener, limit_s)
                self._lose("closed", f"the coordinator at {self.address} closed the session")
            except grpc.aio.AioRpcError as error:
                details = clean(error.details() or "")
                details = "the session broke off" if details == _BROKEN_OFF else details
                code = error.code().name
                self._lose(code, f"lost the coordinator at {self.address} ({details})")
            except TimeoutError:
                why = "it fell silent" if self.connected else "nobody answers there"
                self._lose("silent", f"lost the coordinator at {self.address} ({why})")
            except UnavailableError as error:
                self._lose("away", str(error))
            except RemoteProtocolError as error:
                reason = f"the coordinator at {self.address} broke the protocol ({error})"
                self._lose("protocol", reason)
            finally:
                self._outbox = None
            pause_ms = self._search.missed(own_clock_ms(), self.members.member_count)
            await asyncio.sleep(pause_ms / 1000 * random.uniform(0.5, 1.5))

    async def decline(self, run_id: RunId, reason: str) -> None:
        """Tell the coordinator why this node cannot train its run file; it need not hear it."""
        outbox: Outbox = asyncio.Queue()
        stub = await self.calls.stub()
        call = stub.Session(self._drain(outbox))
        try:
            async with asyncio.timeout(DECLINE_S):
                message = await anext(SessionReader().messages(call, DECLINE_S))
                hello = wire.Hello(cannot_train=reason[:NOTICE_MAX])
                signed = self._signed(hello, run_id, message.challenge.nonce)
                outbox.put_nowait(wire.NodeMessage(hello=signed))
                await call.read()  # so that it is heard
        except StopAsyncIteration:
            pass  # the coordinator hears nobody now
        except (grpc.aio.AioRpcError, TimeoutError, RemoteProtocolError) as error:
            log.info("refusal of the run file not told", extra={"reason": str(error)})
        finally:
            call.cancel()
            end_outbox(outbox)

    def _lose(self, cause: str, reason: str) -> None:
        """`cause` is a word for the kind of the reason: one more look in vain is no news."""
        self.sessions_lost += self.connected
        if cause != self._line.lost_by:
            log.warning("session lost", extra={"reason": reason})
        self._line = SessionLine(SessionState.LOST, f"{reason}; ", cause)
        self._channel.renew()

    def reopen(self) -> None:
        """Open another session: this process was away, and no word of the old one may come."""
        self._reader.give_up()

    def silence_s(self, heartbeat_ms: int) -> float:
        """Time without a message after which a session counts as dead."""
        return max(heartbeat_ms / 1000 * SILENCE_HEARTBEATS, 1.0)

    async def _session(
        self, info: RunInfo, hello: wire.Hello, listener: Listener, limit_s: float
    ) -> None:
        outbox: Outbox = asyncio.Queue(OUTBOX_MESSAGES_MAX)
        stub = await self.calls.stub(limit_s)
        self._link.check(info.run_id, info.coordinator_key, self._channel.vouching)
        call = stub.Session(self._drain(outbox))
        heartbeat_ms = info.spec.membership.heartbeat_ms
        heartbeat_s, silence_s = heartbeat_ms / 1000, self.silence_s(heartbeat_ms)
        beating = None
        try:
            async for message in self._reader.messages(call, silence_s):
                self.traffic.control_down += message.ByteSize()
                match message.WhichOneof("kind"):
                    case "challenge":
                        self._search.heard()
                        signed = self._signed(hello, info.run_id, message.challenge.nonce)
                        outbox.put_nowait(wire.NodeMessage(hello=signed))
                    case "welcome":
                        beating = beating or asyncio.create_task(self._beat(outbox, heartbeat_s))
                        self._welcome(message.welcome, outbox, listener)
                    case _:
                        self._dispatch(message, listener)
        finally:
            call.cancel()
            if beating:
                beating.cancel()
            end_outbox(outbox)

    def _welcome(self, welcome: wire.Welcome, outbox: Outbox, listener: Listener) -> None:
        self._outbox = outbox
        self.members.update(welcome.members)
        listener.members_changed(self.members)
        listener.welcomed(welcome)
        if self._line.state is SessionState.LOST:
            log.info("session found again", extra={"coordinator": self.address})
        self._search.found(own_clock_ms())
        self._line = SessionLine(SessionState.CONNECTED)

    def _dispatch(self, message: wire.CoordinatorMessage, listener: Listener) -> None:
        """Take a message that the client reads itself, or hand it on."""
        clean_reason(message)
        match message.WhichOneof("kind"):
            case "refused":
                raise refusal(message.refused)
            case "evicted":
                reason = f"the coordinator removed this node: {message.evicted.reason}"
                if message.evicted.wrong_results:
                    raise DivergedError(reason)
                listener.received(message)
                raise UnavailableError(reason)
            case "heartbeat":
                beat = message.heartbeat
                times_ms = beat.sent_ms, beat.received_ms, beat.replied_ms, own_clock_ms()
                self.clock.observe(*times_ms)
                listener.received(message)
            case "members":
                self.members.update(message.members)
                listener.members_changed(self.members)
            case "notice":
                self.notice = one_line(message.notice.text, NOTICE_MAX)
                log.warning("notice from the coordinator", extra={"text": self.notice})
            case _:
                listener.received(message)

    async def _drain(self, outbox: Outbox) -> AsyncIterator[wire.NodeMessage]:
        while message := await outbox.get():
            self.traffic.control_up += message.ByteSize()
            yield message

    async def _beat(self, outbox: Outbox, pause_s: float) -> None:
        while True:
            with contextlib.suppress(asyncio.QueueFull):
                outbox.put_nowait(
                    wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=own_clock_ms()))
                )
            await asyncio.sleep(pause_s)

    def _signed(self, hello: wire.Hello, run_id: RunId, nonce: bytes) -> wire.Hello:
        signed = prove(hello, self._key, run_id, nonce)
        signed.instance = self._instance
        signed.token = self._link.token_over(secure=self.secure)
        return signed
