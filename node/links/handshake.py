"""The meeting of two ends of a link, and the states of a link. Pure.

               start                   hello                    proof
    (nothing) -------> greeting ----------------> greeted ----------------> proven ------> ended
                       hello sent                 proof sent        silence, nonsense, goodbye, or
                                                                    the pipe breaks: at any time

Each end sends a hello with a random nonce, at once, and a proof when the other's hello has come:
its signature over both hellos (`protocol.handshake`).
"""

from enum import Enum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.errors import LocalProtocolError, RemoteProtocolError, VersionError
from protocol.handshake import Greeting, check_greeting, public_bytes, sign_link, verify_link
from protocol.ids import PeerId, RunId, short
from protocol.limits import PROTOCOL_VERSION
from protocol.wire_pb2 import Head, LinkHello, LinkProof


class State(Enum):
    """States of a link, as one of its ends sees it."""

    GREETING = "greeting"
    GREETED = "greeted"
    PROVEN = "proven"
    ENDED = "ended"


_NEXT = {
    State.GREETING: (State.GREETED, State.ENDED),
    State.GREETED: (State.PROVEN, State.ENDED),
    State.PROVEN: (State.ENDED,),
    State.ENDED: (),
}


class Handshake:
    """The state of one end, and the names that it learns of the other. `nonce`: 32 random bytes."""

    def __init__(self, key: Ed25519PrivateKey, run_id: RunId, instance: int, nonce: bytes) -> None:
        self.state = State.GREETING
        self.peer: PeerId | None = None
        """The peer, once it is proven."""
        self.instance = 0
        """The peer's process, once it has greeted."""
        self.end_reason = ""
        """Why the link ended."""
        self._key = key
        self._run_id = run_id
        self._own_instance = instance
        self._own = Greeting(public_bytes(key), nonce)
        self._other: Greeting | None = None

    @property
    def name(self) -> str:
        """The other end, for people."""
        return f"peer {short(self.peer)}" if self.peer else "the other end"

    @property
    def public_key(self) -> bytes:
        """The other end's key; empty before its hello."""
        return self._other.public_key if self._other else b""

    def hello(self, head: Head | None = None) -> LinkHello:
        """This end's hello, with the head of the newest commit that it knows."""
        return LinkHello(
            protocol_version=PROTOCOL_VERSION,
            run_id=self._run_id,
            public_key=self._own.public_key,
            nonce=self._own.nonce,
            instance=self._own_instance,
            head=head,
        )

    def greet(self, hello: LinkHello) -> LinkProof:
        """Take the other end's hello; returns this end's proof. `RemoteProtocolError`,
        `VersionError`.
        """
        if self.state is not State.GREETING:
            raise RemoteProtocolError("expected one hello, got a second")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise VersionError(
                f"the peer speaks protocol version {hello.protocol_version}, "
                f"this node {PROTOCOL_VERSION}: update one"
            )
        if hello.run_id != self._run_id:
            raise RemoteProtocolError(
                f"expected a peer of run {self._run_id}, got one of {hello.run_id[:40]!r}"
            )
        other = Greeting(hello.public_key, hello.nonce)
        check_greeting(self._own, other)
        self._other, self.instance = other, hello.instance
        self._become(State.GREETED)
        return LinkProof(signature=sign_link(self._key, self._run_id, self._own, other))

    def prove(self, proof: LinkProof) -> PeerId:
        """Take the other end's proof; returns the peer. `RemoteProtocolError` for a bad one."""
        if self.state is not State.GREETED or self._other is None:
            raise RemoteProtocolError("expected one proof, after the hello")
        self.peer = verify_link(proof.signature, self._run_id, self._other, self._own)
        self._become(State.PROVEN)
        return self.peer

    def require_proven(self, kind: str) -> None:
        """`RemoteProtocolError` for a message of the other end before its proof."""
        if self.state is not State.PROVEN:
            raise RemoteProtocolError(f"expected a proof before anything else, got {kind}")

    def end(self, reason: str) -> None:
        """End the link; a second end changes nothing."""
        if self.state is not State.ENDED:
            self._become(State.ENDED)
            self.end_reason = reason

    def _become(self, state: State) -> None:
        if state not in _NEXT[self.state]:
            expected = " or ".join(each.value for each in _NEXT[self.state]) or "no state"
            raise LocalProtocolError(
                f"expected a link that is {self.state.value} to become {expected}, "
                f"got {state.value}; it ended because: {self.end_reason or 'it did not end'}"
            )
        self.state = state
