"""What every transport promises, as cases that a new one inherits: `node/transports/base.py` says
it in words.

    class TestGrpcPipes(TransportConformance, ProcessConformance):
        async def make(self, at=None):
            transport = GrpcTransport(at or "127.0.0.1:0")
            return transport, transport.stop

`make` returns a transport that is not started and what lets go of everything that came with it.
With `at`, an address that a transport of this class has announced, it listens exactly there. Each
test has an instance of the class to itself, so `self` may hold what its transports share. A
transport that lives in one process only leaves `ProcessConformance` out. The module run as a
program is the process that these cases kill.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from node.transports.base import PIPE_BYTES_MAX, Accept, Pipe, Transport
from protocol.errors import AddressInUseError, UnavailableError
from tests.support.elsewhere import elsewhere
from tests.support.waiting import until

MIB = 1024 * 1024
SIZES = (1, 65535, MIB, 8 * MIB)

ENDS = (0, 1)
"""The dialling end of a pipe, and the accepting one."""

BUFFERED_BYTES_MAX = 64 * MIB
"""More than all buffers of a pipe together: flow-control windows, sockets, a daemon in between."""

STUCK_SECONDS = 2.0
"""A writer that has not ended by now is waiting for its reader. On a machine too slow for that a
case may pass that should fail; none fails that should pass."""

NOTICED_SECONDS = 20.0
"""Bound for what must happen "within seconds", on a machine that does other things too."""

PIPES = 50

Close = Callable[[], Awaitable[None]]
T = TypeVar("T")


class Door:
    """Accepts pipes, hands them over and keeps them open until it is shut."""

    def __init__(self) -> None:
        self.pipes: asyncio.Queue[Pipe] = asyncio.Queue()
        self._shut = asyncio.Event()

    async def __call__(self, pipe: Pipe) -> None:
        """The accept."""
        pipe.admit()
        self.pipes.put_nowait(pipe)
        await self._shut.wait()

    def shut(self) -> None:
        """Return from every accept, which closes its pipe."""
        self._shut.set()


class Cases:
    """What both groups of cases start from."""

    async def make(self, at: str | None = None) -> tuple[Transport, Close]:
        """A transport that is not started, and what lets go of all that came with it."""
        raise NotImplementedError

    @asynccontextmanager
    async def transport(self, at: str | None = None) -> AsyncIterator[Transport]:
        """A transport that is stopped and let go of at the end."""
        transport, close = await self.make(at)
        try:
            yield transport
        finally:
            await transport.stop()
            await close()

    @asynccontextmanager
    async def started(
        self, accept: Accept, at: str | None = None
    ) -> AsyncIterator[tuple[Transport, str]]:
        """(a transport that listens, the address it announced first)."""
        async with self.transport(at) as transport:
            yield transport, (await transport.start(accept))[0]

    @asynccontextmanager
    async def pairs(self) -> AsyncIterator[Callable[[], Awaitable[tuple[Pipe, Pipe]]]]:
        """What makes (dialling end, accepting end) of one more pipe between two transports;
        afterwards no task of theirs is left.
        """
        before, door = asyncio.all_tasks(), Door()
        async with self.started(door) as (_, address), self.started(Door()) as (dialler, _):

            async def another() -> tuple[Pipe, Pipe]:
                pipe = await dialler.dial(address)
                return pipe, await door.pipes.get()

            yield another
        await until(lambda: asyncio.all_tasks() <= before)

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Pipe, Pipe]]:
        """(dialling end, accepting end) of one pipe."""
        async with self.pairs() as another:
            yield await another()


class TransportConformance(Cases):
    """Cases within one process."""

    # ---- bytes

    async def test_bytes_arrive_in_order_both_ways(self) -> None:
        async with self.pair() as (left, right):
            for size in SIZES:
                data = pattern(size)
                for one, other in ((left, right), (right, left)):
                    _, received = await asyncio.gather(send(one, data), receive(other, size))
                    assert received == data, size

    async def test_both_directions_carry_at_once(self) -> None:
        there, back = pattern(8 * MIB), pattern(8 * MIB, seed=1)
        async with self.pair() as (left, right):
            _, _, at_left, at_right = await asyncio.gather(
                send(left, there),
                send(right, back),
                receive(left, len(back)),
                receive(right, len(there)),
            )
        assert at_left == back
        assert at_right == there

    async def test_many_small_writes_arrive_in_order(self) -> None:
        pieces = [pattern(1 + number % 7, seed=number) for number in range(1000)]
        async with self.pair() as (left, right):
            _, received = await asyncio.gather(
                send_pieces(left, pieces), receive(right, sum(len(piece) for piece in pieces))
            )
        assert received == b"".join(pieces)

    async def test_an_empty_write_is_no_end_and_a_read_never_returns_it(self) -> None:
        async with self.pair() as (left, right):
            for pipe, other in ((left, right), (right, left)):
                await pipe.write(b"")
                await pipe.write(b"x")
                assert await other.read() == b"x"

    async def test_a_buffer_may_be_used_again_after_its_write(self) -> None:
        data = pattern(4 * PIPE_BYTES_MAX)
        kinds: list[Callable[[bytearray], bytes | bytearray | memoryview]]
        kinds = [bytes, lambda buffer: buffer, memoryview]
        async with self.pair() as (left, right):
            for written in kinds:
                reading = asyncio.create_task(receive(right, len(data)))
                buffer = bytearray(PIPE_BYTES_MAX)
                for start in range(0, len(data), len(buffer)):
                    buffer[:] = data[start : start + len(buffer)]
                    await left.write(written(buffer))
                    buffer[:] = bytes(len(buffer))
                assert await reading == data

    async def test_a_reader_that_stops_makes_the_writer_wait_and_nothing_is_lost(self) -> None:
        data = pattern(MIB)
        async with self.pair() as (left, right):
            writing = asyncio.create_task(send_pieces(left, [data] * (BUFFERED_BYTES_MAX // MIB)))
            done, _ = await asyncio.wait({writing}, timeout=STUCK_SECONDS)
            assert not done, (
                f"{BUFFERED_BYTES_MAX} bytes were taken from the writer though nobody reads"
            )
            assert await receive(right, BUFFERED_BYTES_MAX) == data * (BUFFERED_BYTES_MAX // MIB)
            await writing

    async def test_a_reader_that_stops_does_not_hold_up_the_other_direction(self) -> None:
        async with self.pair() as (left, right):
            writing = asyncio.create_task(fill(left))
            _, received = await asyncio.gather(send(right, pattern(MIB)), receive(left, MIB))
            assert received == pattern(MIB)
            await abandoned(writing)

    async def test_a_read_that_is_cancelled_loses_nothing(self) -> None:
        async with self.pair() as (left, right):
            for pipe, other in ((left, right), (right, left)):
                for _ in range(3):
                    await abandoned(asyncio.create_task(pipe.read()))
                await other.write(b"here")
                assert await receive(pipe, 4) == b"here"

    async def test_a_pipe_says_where_it_leads(self) -> None:
        async with self.pair() as (left, right):
            assert left.remote
            assert right.remote
            assert not left.relayed
            assert not right.relayed

    # ---- the end of a pipe

    async def test_a_close_is_seen_by_the_other_end(self) -> None:
        async with self.pairs() as another:
            for closer in ENDS:
                pipes = await another()
                closing, other = pipes[closer], pipes[1 - closer]
                await closing.write(b"last")
                assert await receive(other, 4) == b"last"
                reading = asyncio.create_task(other.read())
                await closing.close()
                assert await soon(reading) == b""
                await ended_by_writing(other)

    async def test_a_close_frees_a_writer_at_the_other_end(self) -> None:
        async with self.pairs() as another:
            for closer in ENDS:
                pipes = await another()
                writing = asyncio.create_task(fill(pipes[1 - closer]))
                await pipes[closer].read()
                await pipes[closer].close()
                with pytest.raises(UnavailableError):
                    await soon(writing)

    async def test_a_close_ends_the_read_and_the_write_that_wait(self) -> None:
        async with self.pairs() as another:
            for closer in ENDS:
                pipes = await another()
                pipe = pipes[closer]
                reading = asyncio.create_task(pipe.read())
                writing = asyncio.create_task(fill(pipe))
                await pipes[1 - closer].read()
                await pipe.close()
                for waiting in (reading, writing):
                    with pytest.raises(UnavailableError):
                        await soon(waiting)

    async def test_a_closed_pipe_neither_reads_nor_writes_and_closes_again(self) -> None:
        async with self.pairs() as another:
            for closer in ENDS:
                pipes = await another()
                await pipes[1 - closer].write(b"too late")
                await asyncio.gather(pipes[closer].close(), pipes[closer].close())
                await pipes[closer].close()
                with pytest.raises(UnavailableError):
                    await pipes[closer].write(b"x")
                with pytest.raises(UnavailableError):
                    await pipes[closer].read()

    async def test_an_accept_that_returns_closes_its_pipe(self) -> None:
        async def greet(pipe: Pipe) -> None:
            await pipe.write(b"hi")
            await pipe.read()

        async with self.started(greet) as (_, address), self.started(Door()) as (dialler, _):
            pipe = await dialler.dial(address)
            assert await receive(pipe, 2) == b"hi"
            await pipe.write(b"thanks")
            assert await soon(asyncio.create_task(pipe.read())) == b""

    async def test_an_accept_that_fails_closes_its_pipe_and_the_next_is_taken(self) -> None:
        door, failing = Door(), iter([True, False])

        async def accept(pipe: Pipe) -> None:
            if next(failing):
                raise RuntimeError("a bug above")
            await door(pipe)

        async with self.started(accept) as (_, address), self.started(Door()) as (dialler, _):
            # The end may come before the dialler has its pipe: then the dial says so.
            with contextlib.suppress(UnavailableError):
                await ended_by_reading(await dialler.dial(address))
            pipe = await dialler.dial(address)
            await pipe.write(b"x")
            assert await (await door.pipes.get()).read() == b"x"

    # ---- dials

    async def test_a_dial_to_nobody_fails_within_seconds(self) -> None:
        async with self.started(Door()) as (_, address):
            pass
        async with self.started(Door()) as (dialler, _), asyncio.timeout(NOTICED_SECONDS):
            with pytest.raises(UnavailableError):
                await dialler.dial(address)

    async def test_an_address_of_another_kind_is_not_dialled(self) -> None:
        async with self.started(Door()) as (dialler, address):
            assert dialler.dials(address)
            for other in ("", "nonsense", "a b:1", "unix:///run/x.sock", "http://127.0.0.1:80"):
                assert not dialler.dials(other)
                with pytest.raises(UnavailableError):
                    await dialler.dial(other)

    async def test_an_announced_address_dials_back(self) -> None:
        left, right = Door(), Door()
        async with self.started(left) as (one, at_one), self.started(right) as (two, at_two):
            there = await two.dial(at_one)
            back = await one.dial(at_two)
            await there.write(b"there")
            await back.write(b"back")
            assert await receive(await left.pipes.get(), 5) == b"there"
            assert await receive(await right.pipes.get(), 4) == b"back"

    async def test_dials_at_once_in_both_directions_give_separate_pipes(self) -> None:
        left, right = Door(), Door()
        async with self.started(left) as (one, at_one), self.started(right) as (two, at_two):
            pipes = await asyncio.gather(
                one.dial(at_two), one.dial(at_two), two.dial(at_one), two.dial(at_one)
            )
            for number, pipe in enumerate(pipes):
                await pipe.write(b"%d" % number)
            assert {await (await right.pipes.get()).read() for _ in range(2)} == {b"0", b"1"}
            assert {await (await left.pipes.get()).read() for _ in range(2)} == {b"2", b"3"}

    async def test_a_dial_that_is_given_up_leaves_nothing(self) -> None:
        before = asyncio.all_tasks()
        async with self.started(Door()) as (_, address), self.started(Door()) as (dialler, _):
            await given_up(lambda: dialler.dial(address))
            await (await dialler.dial(address)).write(b"and the next one works")
        await until(lambda: asyncio.all_tasks() <= before)

    async def test_fifty_pipes_stay_apart(self) -> None:
        async with self.started(echo) as (_, address), self.started(Door()) as (dialler, _):
            pipes = await asyncio.gather(*(dialler.dial(address) for _ in range(PIPES)))
            messages = [pattern(10_000 + number, seed=number) for number in range(PIPES)]
            for _ in range(2):
                await asyncio.gather(*map(send, pipes, messages))
                received = await asyncio.gather(
                    *(
                        receive(pipe, len(message))
                        for pipe, message in zip(pipes, messages, strict=True)
                    )
                )
                assert received == messages

    # ---- start and stop

    async def test_a_stop_ends_every_pipe_at_both_ends_and_its_accepts(self) -> None:
        before, door = asyncio.all_tasks(), Door()
        async with self.transport() as listener, self.started(Door()) as (dialler, _):
            address = (await listener.start(door))[0]
            dialled = [await dialler.dial(address) for _ in range(3)]
            accepted = [await door.pipes.get() for _ in dialled]
            reads = [asyncio.create_task(pipe.read()) for pipe in (*dialled, *accepted)]
            await listener.stop()
            for pipe, reading in zip(dialled, reads[:3], strict=True):
                with contextlib.suppress(UnavailableError):
                    assert await soon(reading) == b""
                await ended_by_writing(pipe)
            for pipe, reading in zip(accepted, reads[3:], strict=True):
                with pytest.raises(UnavailableError):
                    await soon(reading)
                with pytest.raises(UnavailableError):
                    await pipe.write(b"x")
            with pytest.raises(UnavailableError):
                await dialler.dial(address)
        await until(lambda: asyncio.all_tasks() <= before)

    async def test_a_stop_of_the_dialler_is_seen_by_the_acceptor(self) -> None:
        door = Door()
        async with self.started(door) as (_, address), self.transport() as dialler:
            await dialler.start(Door())
            pipe = await dialler.dial(address)
            accepted = await door.pipes.get()
            await dialler.stop()
            await ended_by_reading(accepted)
            with pytest.raises(UnavailableError):
                await pipe.read()

    async def test_stop_twice_and_without_a_start(self) -> None:
        async with self.transport() as transport:
            await transport.stop()
        async with self.started(Door()) as (transport, _):
            await transport.stop()
            await transport.stop()

    async def test_an_address_in_use_is_refused_and_its_owner_goes_on(self) -> None:
        async with self.started(echo) as (_, address), self.transport(address) as second:
            with pytest.raises(AddressInUseError):
                await second.start(Door())
            async with self.started(Door()) as (dialler, _):
                pipe = await dialler.dial(address)
                await pipe.write(b"x")
                assert await receive(pipe, 1) == b"x"

    async def test_an_address_is_free_again_after_a_stop(self) -> None:
        async with self.started(echo) as (_, address), self.started(Door()) as (dialler, _):
            pipe = await dialler.dial(address)
            await pipe.write(b"x")
            assert await receive(pipe, 1) == b"x"
        async with self.started(echo, address) as (_, again):
            assert again == address


class ProcessConformance(Cases):
    """Cases that need a peer in another process, which dies in them."""

    @asynccontextmanager
    async def elsewhere(self) -> AsyncIterator[tuple[int, str]]:
        """(process id, address) of an echoing transport of this class in a process of its own."""
        kind = f"{type(self).__module__}:{type(self).__qualname__}"
        async with elsewhere("tests.node.transports.conformance", kind) as (process, address):
            yield process.pid, address

    @pytest.mark.parametrize("busy", [False, True], ids=["idle", "writing"])
    async def test_a_peer_that_is_killed_is_noticed_within_seconds(self, busy: bool) -> None:
        async with self.elsewhere() as (pid, address), self.started(Door()) as (dialler, _):
            pipe = await dialler.dial(address)
            await pipe.write(b"alive")
            assert await receive(pipe, 5) == b"alive"
            noticing = asyncio.create_task(fill(pipe) if busy else ended_by_reading(pipe))
            os.kill(pid, signal.SIGKILL)
            if busy:
                with pytest.raises(UnavailableError):
                    await soon(noticing)
                await ended_by_reading(pipe)
            else:
                await soon(noticing)
            await ended_by_writing(pipe)

    async def test_bytes_cross_between_processes(self) -> None:
        data = pattern(8 * MIB)
        async with self.elsewhere() as (_, address), self.started(Door()) as (dialler, _):
            pipe = await dialler.dial(address)
            _, received = await asyncio.gather(send(pipe, data), receive(pipe, len(data)))
            assert received == data


# ---- helpers


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes in which a piece lost, doubled or moved shows; its period of 251 divides no buffer
    size.
    """
    period = bytes((seed + position) % 251 for position in range(251))
    return (period * (size // 251 + 1))[:size]


async def send(pipe: Pipe, data: bytes) -> None:
    """Write it all, in pieces as large as a write takes."""
    view = memoryview(data)
    await send_pieces(
        pipe,
        [view[start : start + PIPE_BYTES_MAX] for start in range(0, len(data), PIPE_BYTES_MAX)],
    )


async def send_pieces(pipe: Pipe, pieces: list[bytes] | list[memoryview]) -> None:
    """Write the pieces one after the other."""
    for piece in pieces:
        await pipe.write(piece)


async def fill(pipe: Pipe) -> None:
    """Write for ever, which ends when the pipe does."""
    data = pattern(MIB)
    while True:
        await pipe.write(data)


async def receive(pipe: Pipe, size: int) -> bytes:
    """Exactly `size` bytes, for tests that send no more."""
    received = bytearray()
    while len(received) < size:
        piece = await pipe.read()
        assert 0 < len(piece) <= PIPE_BYTES_MAX, (
            f"expected 1 to {PIPE_BYTES_MAX} bytes, got {len(piece)}"
        )
        received += piece
    assert len(received) == size
    return bytes(received)


async def ended_by_reading(pipe: Pipe) -> None:
    """Read until the pipe ends in whichever way; what was on its way may come first."""
    with contextlib.suppress(UnavailableError):
        async with asyncio.timeout(NOTICED_SECONDS):
            while await pipe.read():
                pass


async def ended_by_writing(pipe: Pipe) -> None:
    """Write until the pipe says that it is no more."""
    async with asyncio.timeout(NOTICED_SECONDS):
        try:
            while True:
                await pipe.write(b"x")
                await asyncio.sleep(0)
        except UnavailableError:
            pass


async def soon(task: "asyncio.Task[T]") -> T:
    """The result of a task that has to end within seconds."""
    async with asyncio.timeout(NOTICED_SECONDS):
        return await task


async def given_up(dial: Callable[[], Coroutine[Any, Any, Pipe]]) -> None:
    """Begin to dial and cancel it. Where other processes carry pipes, a busy machine may let them
    answer before the loop has its first turn: then nothing was given up, and it is begun again.
    """
    for _ in range(10):
        dialling = asyncio.create_task(dial())
        await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.wait({dialling})
        if dialling.cancelled():
            return
        await dialling.result().close()
    pytest.fail("every dial ended, or swallowed its cancellation")


async def abandoned(task: "asyncio.Task[Any]") -> None:
    """Let a task begin to wait, for five turns of the loop, and cancel it."""
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled(), "the task ended, or swallowed its cancellation"


async def echo(pipe: Pipe) -> None:
    """An accept that sends everything back."""
    pipe.admit()
    with contextlib.suppress(UnavailableError):
        while data := await pipe.read():
            await pipe.write(data)


async def _serve(kind: str) -> None:
    """The other process: echo at an address that is printed, until standard input ends."""
    module, _, name = kind.partition(":")
    cases: ProcessConformance = getattr(importlib.import_module(module), name)()
    async with cases.started(echo) as (_, address):
        print(address, flush=True)  # noqa: T201 - the test reads it
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
