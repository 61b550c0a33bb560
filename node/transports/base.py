"""Transports: what carries bytes between two nodes, as thin as it can be.

    swarm       offers and pulls                     knows peers, digests, rounds
    mesh        one link per peer, dialled by whichever end can; a `Link` for the swarm
    session     framing, proof of identity, heartbeats, parts and acknowledgements. Pure
    transport   pipes: reliable, ordered, bidirectional bytes. gRPC is one, libp2p is another

A transport listens, dials, and its pipes carry bytes; it decides nothing. Everything that makes a
link trustworthy lies above it, once for all of them. A new transport needs this file and the
conformance suite in tests/node/links.

Foreign exceptions end here: a transport raises only `UnavailableError`, and from `start` also
`AddressInUseError` and `SettingsError`."""

from collections.abc import Awaitable, Callable
from typing import Protocol

PIPE_BYTES_MAX = 1024 * 1024
"""A pipe's `write` gets at most this much at once, and its `read` returns at most this much."""


class Pipe(Protocol):
    """One open stream of bytes to one peer. Reads and writes of one pipe may overlap; two reads, or
    two writes, do not.

    What one end writes the other reads in the same order, cut into other pieces. A pipe that breaks
    says so in `read` and in `write`, with `UnavailableError`; it never hides that bytes are
    missing."""

    @property
    def remote(self) -> str:
        """Where it leads, for people: an address, or a transport's own name of the peer."""

    @property
    def peer(self) -> str | None:
        """The libp2p peer id that the transport has proven at the other end; None when it proves
        nobody."""

    @property
    def relayed(self) -> bool:
        """Whether a third machine carries its bytes."""

    async def read(self) -> bytes:
        """The next bytes, at least one; empty when the other end closed the pipe. Cancelling it
        loses nothing."""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand bytes over; returns when the transport can take more, and `data` may change.

        Cancelling it breaks the pipe."""

    async def close(self) -> None:
        """Let go; what is on its way may be lost. May be called twice, and while a read or write is
        waiting: they end with `UnavailableError`."""


Accept = Callable[[Pipe], Awaitable[None]]
"""Takes a pipe that a peer opened. The transport runs it as a task of its own and closes the pipe
when it returns."""


class Transport(Protocol):
    """One way to carry pipes."""

    kind: str
    """Its name for people and for metrics: "grpc", "libp2p"."""

    async def start(self, accept: Accept) -> tuple[str, ...]:
        """Listen; returns the addresses to announce, the best first.

        Raises `AddressInUseError`, `SettingsError`, or `UnavailableError` when it cannot start on
        this machine."""

    async def stop(self) -> None:
        """Close every pipe and stop listening; nothing is left behind. May be called twice, or
        without a start."""

    def dials(self, address: str) -> bool:
        """Whether an address is of this transport's kind; says nothing about who is there."""

    async def dial(self, address: str) -> Pipe:
        """Open a pipe to whoever listens at an address. `UnavailableError` within seconds when
        nobody answers."""
