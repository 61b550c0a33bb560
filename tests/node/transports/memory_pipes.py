"""A transport within one process, over a network that does what a test tells it to. No sockets, no
threads, no time.

    network = MemoryNetwork()
    a, b = network.transport("a"), network.transport("b")      # addresses memory:a, memory:b

    network.hide("b")           b dials out and cannot be dialled, as behind a router
    network.cut("a", "b")       every pipe between them breaks at both ends, none opens until `heal`
    network.stall("a", "b")     what a sends to b does not arrive and nobody is told, until `resume`
    network.corrupt("a", "b")   one bit of the next bytes from a to b arrives turned over

    clock = Clock()             MemoryNetwork(clock, delay_ms=75): bytes arrive when the test moves
                                the clock

A direction holds `WINDOW_BYTES`; then its writer waits. Same calls, same order of events.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from node.transports.base import PIPE_BYTES_MAX, Accept
from protocol.errors import AddressInUseError, LocalProtocolError, UnavailableError

log = logging.getLogger("lockstep.links")

WINDOW_BYTES = 256 * 1024
"""Bytes on their way in one direction before its writer waits."""

SCHEME = "memory:"


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._watchers: list[Callable[[], None]] = []

    def advance(self, milliseconds: int) -> None:
        """Let time pass; what is due by then arrives."""
        self.now_ms += milliseconds
        for watcher in self._watchers:
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call it whenever time has passed."""
        self._watchers.append(watcher)


class MemoryNetwork:
    """What lies between the transports, and the troubles on it."""

    def __init__(self, clock: Clock | None = None, delay_ms: int = 0) -> None:
        self.clock = clock or Clock()
        self.delay_ms = delay_ms
        self.listening: dict[str, MemoryTransport] = {}
        self.pipes: dict[MemoryPipe, None] = {}  # a set in the order of opening
        self.stalled: set[tuple[str, str]] = set()
        self.corrupting: set[tuple[str, str]] = set()
        self._apart: set[frozenset[str]] = set()
        self._hidden: set[str] = set()
        self.clock.watch(self._wake)

    def transport(self, name: str) -> "MemoryTransport":
        """A transport that will listen at memory:NAME."""
        return MemoryTransport(self, name)

    def hide(self, name: str) -> None:
        """Let nobody dial it."""
        self._hidden.add(name)

    def cut(self, one: str, other: str) -> None:
        """Break every pipe between two, and let none open."""
        self._apart.add(frozenset({one, other}))
        for pipe in [pipe for pipe in self.pipes if {pipe.name, pipe.other_name} == {one, other}]:
            pipe.cut("the network was cut")

    def heal(self, one: str, other: str) -> None:
        """Let pipes open again."""
        self._apart.discard(frozenset({one, other}))

    def stall(self, sender: str, receiver: str) -> None:
        """Let nothing arrive in this direction, in silence."""
        self.stalled.add((sender, receiver))

    def resume(self, sender: str, receiver: str) -> None:
        """Let everything arrive that was on its way."""
        self.stalled.discard((sender, receiver))
        self._wake()

    def corrupt(self, sender: str, receiver: str) -> None:
        """Damage the next bytes that are sent in this direction."""
        self.corrupting.add((sender, receiver))

    def reach(self, dialler: str, name: str) -> "MemoryTransport":
        """The transport that listens at an address. `UnavailableError` when a dial fails."""
        silent = {(dialler, name), (name, dialler)} & self.stalled
        if (
            silent
            or name in self._hidden
            or name not in self.listening
            or frozenset({dialler, name}) in self._apart
        ):
            raise UnavailableError(f"nobody answers at {SCHEME}{name}")
        return self.listening[name]

    def _wake(self) -> None:
        for pipe in list(self.pipes):
            pipe.incoming.changed.set()


class Way:
    """One direction of a pipe: pieces with the time at which each arrives, None for the end."""

    def __init__(self, network: MemoryNetwork, sender: str, receiver: str) -> None:
        self.changed = asyncio.Event()
        self._network, self._ends = network, (sender, receiver)
        self._pieces: deque[tuple[int, bytes | None]] = deque()
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether a writer has to wait."""
        return self._bytes >= WINDOW_BYTES

    def put(self, piece: bytes | None) -> None:
        """Send."""
        if piece and self._ends in self._network.corrupting:
            self._network.corrupting.discard(self._ends)
            piece = piece[:-1] + bytes([piece[-1] ^ 1])
        self._pieces.append((self._network.clock.now_ms + self._network.delay_ms, piece))
        self._bytes += len(piece or b"")
        self.changed.set()

    def take(self) -> bytes | None:
        """What has arrived, up to the most that a read returns; empty at the end, None when nothing
        has.
        """
        arrived = bytearray()
        while self._pieces and self._ends not in self._network.stalled:
            due, piece = self._pieces[0]
            if (
                due > self._network.clock.now_ms
                or len(arrived) + len(piece or b"") > PIPE_BYTES_MAX
            ):
                break
            if piece is None:
                return bytes(arrived)  # and the end stays for the next read
            self._pieces.popleft()
            self._bytes -= len(piece)
            arrived += piece
        self.changed.set()
        return bytes(arrived) or None


class MemoryPipe:
    """A `node.transports.base.Pipe`: one end, with the ways in and out."""

    relayed = admitted = False

    def __init__(
        self, network: MemoryNetwork, names: tuple[str, str], incoming: Way, outgoing: Way
    ) -> None:
        """`names`: this end's and the other's."""
        self.name, self.other_name = names
        self.remote = SCHEME + self.other_name
        self.incoming, self._outgoing = incoming, outgoing
        self.other: MemoryPipe | None = None
        self._network = network
        self._why = ""  # it is no more
        network.pipes[self] = None

    def proves(self, public_key: bytes) -> None:
        """Nothing."""

    def admit(self) -> None:
        """Nothing is counted; `admitted` keeps it."""
        self.admitted = True

    async def read(self) -> bytes:
        """See `Pipe`."""
        while not self._why:
            if (arrived := self.incoming.take()) is not None:
                return arrived
            await _change(self.incoming)
        raise UnavailableError(f"the pipe to {self.remote} is no more: {self._why}")

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `Pipe`."""
        if len(data) > PIPE_BYTES_MAX:
            raise LocalProtocolError(
                f"expected at most {PIPE_BYTES_MAX} bytes to write, got {len(data)}"
            )
        try:
            while self._outgoing.full and not self._why and self.other:
                await _change(self._outgoing)
        except asyncio.CancelledError:
            self.cut("a write was cancelled")
            raise
        if self._why or not self.other:
            raise UnavailableError(
                f"the pipe to {self.remote} is no more: {self._why or 'the other end closed it'}"
            )
        if data:
            self._outgoing.put(bytes(data))
        await asyncio.sleep(0)  # a writer does not keep the loop to itself

    async def close(self) -> None:
        """See `Pipe`."""
        if not self._why:
            self._end("it was closed here")
            self._outgoing.put(None)
            if self.other:
                self.other.other = None

    def cut(self, why: str) -> None:
        """Break it at both ends."""
        self._end(why)
        if self.other:
            self.other._end(why)

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._network.pipes.pop(self, None)
        self.incoming.changed.set()
        self._outgoing.changed.set()


class MemoryTransport:
    """A `node.transports.base.Transport` over a `MemoryNetwork`."""

    kind = "memory"
    cuts: Mapping[str, int] = {}

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.name = name
        self._network = network
        self._accept: Accept | None = None
        self._accepting: set[asyncio.Task[None]] = set()

    async def start(self, accept: Accept) -> tuple[str, ...]:
        """See `Transport`."""
        if self.name in self._network.listening:
            raise AddressInUseError(f"cannot listen on {SCHEME}{self.name}: another transport does")
        self._network.listening[self.name] = self
        self._accept = accept
        return (SCHEME + self.name,)

    async def stop(self) -> None:
        """See `Transport`."""
        if not self._accept:
            return
        self._accept = None
        del self._network.listening[self.name]
        for pipe in [pipe for pipe in self._network.pipes if pipe.name == self.name]:
            await pipe.close()
        for task in self._accepting:
            task.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)

    def dials(self, address: str) -> bool:
        """See `Transport`."""
        return address.startswith(SCHEME)

    async def dial(self, address: str) -> MemoryPipe:
        """See `Transport`."""
        await asyncio.sleep(0)
        if not self.dials(address) or not self._accept:
            raise UnavailableError(
                f"expected {SCHEME}NAME and a started transport, got {address!r}"
            )
        target = self._network.reach(self.name, address.removeprefix(SCHEME))
        out, back = (
            Way(self._network, self.name, target.name),
            Way(self._network, target.name, self.name),
        )
        ours = MemoryPipe(self._network, (self.name, target.name), back, out)
        ours.other = MemoryPipe(self._network, (target.name, self.name), out, back)
        ours.other.other = ours
        target.take(ours.other)
        return ours

    def take(self, pipe: MemoryPipe) -> None:
        """A pipe that another one opened."""
        task = asyncio.create_task(self._run(pipe))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _run(self, pipe: MemoryPipe) -> None:
        try:
            if self._accept:
                await self._accept(pipe)
        except Exception:
            log.exception("taking a pipe from %s failed", pipe.remote)
        finally:
            await pipe.close()


async def _change(way: Way) -> None:
    way.changed.clear()
    await way.changed.wait()
