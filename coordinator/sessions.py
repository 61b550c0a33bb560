"""Open sessions of nodes and relays, and the messages on their way to them.

A session is one stream. Messages wait in its outbox; a node that does not read loses its session
once the outbox is full. A message to every session is encoded once.
"""

import asyncio
from collections.abc import Iterator
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

Message = wire.CoordinatorMessage


class NodeSession:
    """The open stream of one node. `None` in the outbox ends it. `stream` is the task that sends
    its messages.
    """

    def __init__(self, stream: "asyncio.Task[Any] | None" = None) -> None:
        self._stream = stream
        self.outbox: asyncio.Queue[Message | None] = asyncio.Queue(OUTBOX_MESSAGES_MAX)

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

    def retire(self, last: Message) -> None:
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

    def __iter__(self) -> Iterator[NodeSession]:
        """The sessions, in the order in which they opened."""
        return iter(list(self._sessions.values()))

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._sessions

    def holds(self, peer: PeerId, session: NodeSession) -> bool:
        """Whether this is the peer's session, and no newer one has replaced it."""
        return self._sessions.get(peer) is session

    def put(self, peer: PeerId, session: NodeSession) -> None:
        """Make this the only session of the peer: an older one ends with the reason."""
        if earlier := self._sessions.get(peer):
            reason = (
                f"another session with this {self._kind}'s key has opened; "
                f"one key is one {self._kind}"
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
