"""The interface of transports, which carry bytes between two nodes.

    swarm       offers and pulls                     knows peers, digests, rounds
    mesh        one link per peer, dialled by either end; the swarm's `PeerNetwork`
    protocol    framing, proof of identity, heartbeats, parts and acknowledgements. Pure
    transport   pipes: reliable, ordered, bidirectional bytes. gRPC is one, libp2p is another

A transport listens, dials, and its pipes carry bytes; it decides nothing. Everything that makes a
link trustworthy lies above it, once for all transports. A new transport needs this interface and
the conformance suite in tests/node/transports.

A transport raises only `UnavailableError`, and from `start` also `AddressInUseError` and
`SettingsError`; it translates foreign exceptions.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

PIPE_BYTES_MAX = 1024 * 1024
"""Bytes that a pipe's `write` gets, or its `read` returns, at once."""

DIAL_S = 9
"""Longest time in which a dial succeeds or fails: a few round trips around the world, through a
relay; TCP has sent its first packet four times by then."""


class Pipe(Protocol):
    """One open stream of bytes to one peer. A read and a write of one pipe may overlap; two reads,
    or two writes, do not.

    The bytes that one end writes the other end reads in the same order, cut into other pieces. A
    broken pipe raises `UnavailableError` in `read` and in `write`; it never hides that bytes are
    missing.
    """

    @property
    def remote(self) -> str:
        """The other end, for people: an address, or a transport's own name of the peer."""

    @property
    def relayed(self) -> bool:
        """Whether a third machine carries its bytes."""

    def proves(self, public_key: bytes) -> bool | None:
        """Whether the transport has proven that the other end holds the key; None when it proves
        no keys.
        """

    def admit(self) -> None:
        """The other end has proven its key: where it dialled, it counts as a stranger no more."""

    async def read(self) -> bytes:
        """The next bytes, at least one; empty when the other end closed the pipe. Cancelling it
        loses nothing.
        """

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand bytes over; returns when the transport can take more, and `data` may change.

        Cancelling it breaks the pipe.
        """

    async def close(self) -> None:
        """Let go; bytes on their way may be lost. May be called twice, and during a read or a
        write, which then end with `UnavailableError`.
        """


Accept = Callable[[Pipe], Awaitable[None]]
"""Takes a pipe that a peer opened. The transport runs it as a task of its own and closes the pipe
when it returns."""


class Transport(Protocol):
    """One way to carry pipes."""

    kind: str
    """The transport's name for people and for metrics: "grpc", "libp2p"."""

    @property
    def cuts(self) -> Mapping[str, int]:
        """Connections of strangers that were cut, by reason; empty where it counts none."""

    async def start(self, accept: Accept) -> tuple[str, ...]:
        """Listen; returns the addresses to announce, the best first.

        Raises `AddressInUseError`, `SettingsError`, or `UnavailableError` when it cannot start on
        this machine.
        """

    async def stop(self) -> None:
        """Close every pipe and stop listening; nothing is left behind. May be called twice, or
        without a start.
        """

    def dials(self, address: str) -> bool:
        """Whether an address is of this transport's kind; no promise that a peer is there."""

    async def dial(self, address: str) -> Pipe:
        """Open a pipe to the peer that listens at an address. `UnavailableError` within `DIAL_S`
        when nobody answers.
        """
