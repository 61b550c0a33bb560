"""Open sessions of nodes and relays, and the messages on their way to them.

A session is one stream. Messages wait in its outbox; a node that does not read loses its session
once the outbox is full. A message to every session is encoded once.

One key is one node: of two processes with one key the one at work stays. When a process says hello
and another process holds a session of the same key, the coordinator listens whether the holder is
alive (`SessionTable.contest`):

    same instance                           a reconnect: it replaces its old session at once
    the holder's stream ends                the newcomer replaces it
    no message of the holder for two        the newcomer replaces it: the holder sleeps, or its
    heartbeats                              machine died without a word
    a message a heartbeat after the hello   the newcomer is refused; an earlier message may have
                                            been on its way when the holder died

After a restart of the coordinator, and while the line of a process elsewhere is broken, the key has
no session. It is kept for the process that worked with it last, for three heartbeats. A successor
in the same place does not wait once the stream of a killed process has ended.

So two processes never replace each other in turn, however often both are started again.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from protocol import wire_pb2 as wire
from protocol.ids import PeerId

OUTBOX_MESSAGES_MAX = 1024
"""Messages that may wait for one node: minutes of rounds. A node that reads nothing for longer is
cut off."""

REPLACED_S = 2.0
"""Time that a replaced session has to tell its node why it ends: its client may not read."""

SHARED_MESSAGES_MAX = 16
"""Broadcasts whose bytes are kept: sessions send them within moments of each other."""

SILENT_HEARTBEATS = 2
"""Heartbeats without a message after which another process may have the key of a session."""

KEPT_HEARTBEATS = 3
"""Heartbeats for which a key without a session is kept for the process that worked with it last.
Less than the silence after which a newcomer gives up."""

LOOKS_PER_HEARTBEAT = 5
"""Looks in each heartbeat at whether the holder of a newcomer's key is alive."""

TOLD_EVERY_MS = 60_000
"""Pause between two notices to a node whose key another process tries to use."""

Message = wire.CoordinatorMessage


class NodeSession:
    """The open stream of one node. `None` in the outbox ends it. `stream` is the task that sends
    its messages.
    """

    def __init__(
        self,
        instance: int = 0,
        place: str = "",
        now_ms: int = 0,
        stream: "asyncio.Task[Any] | None" = None,
        host: str = "",
    ) -> None:
        """`instance` names the process (0: it did not say), `place` is where it is, for people,
        `host` where the coordinator sees it.
        """
        self._stream, self.host = stream, host
        self.outbox: asyncio.Queue[Message | None] = asyncio.Queue(OUTBOX_MESSAGES_MAX)
        self.instance, self.place = instance, place
        self.opened_ms = self.heard_ms = now_ms
        """Times of the run's clock: of the hello, and of the newest message."""
        self.idle_ms: int | None = None
        """Time since which every message is handled; None while one is, the hello at first."""
        self._told_ms: int | None = None

    def hears(self, now_ms: int) -> int:
        """A message has come, which is handled until `waits`; returns the time."""
        self.idle_ms, self.heard_ms = None, now_ms
        return now_ms

    def waits(self, now_ms: int) -> None:
        """Every message is handled."""
        self.idle_ms = now_ms

    def tell_of_copy(self, place: str, now_ms: int) -> None:
        """Tell the node that another process tries to use its key, now and then."""
        if self._told_ms is None or now_ms - self._told_ms >= TOLD_EVERY_MS:
            self._told_ms = now_ms
            text = (
                f"another process, {place}, tried to join with this key and was refused; give "
                "that machine a directory of its own"
            )
            self.send(Message(notice=wire.Notice(text=text)))

    def at_work(self, now_ms: int) -> str:
        """The refusal of another process with this session's key."""
        since = datetime.fromtimestamp(time.time() - (now_ms - self.opened_ms) / 1000, UTC)
        return (
            f"this key is at work {self.place} since {since:%Y-%m-%d %H:%M:%S} UTC; give this "
            "machine a directory of its own, which makes it a key, or stop the other process first"
        )

    def send(self, message: Message) -> None:
        """Queue a message; a full outbox ends the session."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.close()

    def close(self, last: Message | None = None) -> None:
        """End the stream after the queued messages and `last`. In a full outbox the oldest ones
        make room.
        """
        for message in (last, None) if last else (None,):
            if self.outbox.full():
                self.outbox.get_nowait()
            self.outbox.put_nowait(message)

    def retire(self, last: Message | None = None) -> None:
        """Close the session, and cut it off after `REPLACED_S` if its client does not read."""
        self.close(last)
        if self._stream:
            self._stream.get_loop().call_later(REPLACED_S, self._stream.cancel)


class SessionTable:
    """The sessions of one kind of peer, one per key. `kind` names it in the refusal that an older
    session of a key receives.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sessions: dict[PeerId, NodeSession] = {}
        self.copies_refused = 0
        """Processes that were refused because another one was at work with their key."""

    def __iter__(self) -> Iterator[NodeSession]:
        """The sessions, in the order in which they opened."""
        return iter(list(self._sessions.values()))

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._sessions

    @property
    def hosts(self) -> dict[PeerId, str]:
        """Where the coordinator sees each peer."""
        return {peer: session.host for peer, session in self._sessions.items()}

    def items(self) -> list[tuple[PeerId, NodeSession]]:
        """Peers with their sessions."""
        return list(self._sessions.items())

    def retire(self, peer: PeerId) -> None:
        """End the peer's session, also one whose client does not read."""
        if session := self._sessions.get(peer):
            session.retire()

    def holds(self, peer: PeerId, session: NodeSession) -> bool:
        """Whether this is the peer's session, and no newer one has replaced it."""
        return self._sessions.get(peer) is session

    async def contest(
        self,
        peer: PeerId,
        newcomer: NodeSession,
        heartbeat_ms: int,
        now_ms: Callable[[], int],
        kept: Callable[[], bool] = lambda: False,
    ) -> NodeSession | None:
        """The session that keeps the key against a newcomer, which was told; None when the
        newcomer may have it. `kept` says whether another process may soon open a session with the
        key. Takes three heartbeats at most, unless such a session opens; see the module.
        """
        hello_ms = now_ms()
        while (holder := self._sessions.get(peer)) or kept():
            if holder is None:
                if now_ms() >= hello_ms + KEPT_HEARTBEATS * heartbeat_ms:
                    return None
                await asyncio.sleep(heartbeat_ms / 1000 / LOOKS_PER_HEARTBEAT)
                continue
            if newcomer.instance and holder.instance == newcomer.instance:
                return None
            if holder.heard_ms >= hello_ms + heartbeat_ms:
                self.copies_refused += 1
                holder.tell_of_copy(newcomer.place, now_ms())
                return holder
            silent_ms = holder.heard_ms + SILENT_HEARTBEATS * heartbeat_ms
            # Also after a pause of this process, in which it heard nobody: a heartbeat to be heard.
            if now_ms() >= max(silent_ms, hello_ms + heartbeat_ms):
                return None
            await asyncio.sleep(heartbeat_ms / 1000 / LOOKS_PER_HEARTBEAT)
        return None

    def put(self, peer: PeerId, session: NodeSession) -> None:
        """Make this the only session of the peer: an older one ends with the reason."""
        if earlier := self._sessions.get(peer):
            where = f" {session.place}" if session.place else ""
            reason = (
                f"another process{where} with this {self._kind}'s key has taken its place, because "
                f"this one was silent; one key is one {self._kind}: give each machine a directory "
                "of its own"
            )
            earlier.retire(Message(refused=wire.Refused(reason=reason)))
        self._sessions[peer] = session

    def remove(self, peer: PeerId, session: NodeSession) -> bool:
        """Remove a session that ended. Returns whether it was the peer's, and not an older one."""
        if not self.holds(peer, session):
            return False
        del self._sessions[peer]
        return True

    def get(self, peer: PeerId) -> NodeSession | None:
        """The session of the peer, if it has one."""
        return self._sessions.get(peer)

    def send(self, peer: PeerId, message: Message) -> None:
        """Queue a message for the peer if it has a session."""
        if session := self._sessions.get(peer):
            session.send(message)

    def close(self, peer: PeerId, last: Message) -> None:
        """End the peer's session, if it has one, with a last message."""
        if session := self._sessions.get(peer):
            session.close(last)


class SharedEncoding:
    """Encodes a message to every session once: the bytes of the newest ones are kept."""

    def __init__(self) -> None:
        self._shared: dict[int, tuple[Message, bytes]] = {}

    def __len__(self) -> int:
        return len(self._shared)

    def share(self, message: Message) -> None:
        """Encode a message that several sessions will send."""
        self._shared[id(message)] = (message, message.SerializeToString())
        if len(self._shared) > SHARED_MESSAGES_MAX:
            del self._shared[next(iter(self._shared))]

    def encode(self, message: Message) -> bytes:
        """The bytes of a message; the kept ones when it was shared."""
        shared = self._shared.get(id(message))
        return shared[1] if shared and shared[0] is message else message.SerializeToString()
