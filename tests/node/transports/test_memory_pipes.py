"""Promises of the network in memory: those of every transport, and that its troubles are what they
say.
"""

import asyncio
from itertools import count

import pytest

from node.transports.base import Pipe, Transport
from protocol.errors import UnavailableError
from tests.node.transports.conformance import (
    Close,
    Door,
    TransportConformance,
    abandoned,
    pattern,
    receive,
    send,
)
from tests.node.transports.memory_pipes import WINDOW_BYTES, Clock, MemoryNetwork


class TestMemoryPipes(TransportConformance):
    """The common promises."""

    def setup_method(self) -> None:
        self._network, self._names = MemoryNetwork(), count()

    async def make(self, at: str | None = None) -> tuple[Transport, Close]:
        name = at.removeprefix("memory:") if at else f"node{next(self._names)}"
        transport = self._network.transport(name)
        return transport, transport.stop


async def opened(network: MemoryNetwork) -> tuple[Pipe, Pipe]:
    """(a's end, b's end) of a pipe that a opened."""
    a, b, door = network.transport("a"), network.transport("b"), Door()
    await a.start(Door())
    (address,) = await b.start(door)
    return await a.dial(address), await door.pipes.get()


async def nothing_arrives(pipe: Pipe) -> None:
    """A read waits."""
    await abandoned(asyncio.create_task(pipe.read()))


async def test_bytes_arrive_when_the_clock_says_so_and_the_end_after_them() -> None:
    clock = Clock()
    left, right = await opened(MemoryNetwork(clock, delay_ms=75))
    await left.write(b"one")
    clock.advance(50)
    await left.write(b"two")
    await left.close()
    await nothing_arrives(right)
    clock.advance(25)
    assert await right.read() == b"one"
    await nothing_arrives(right)
    clock.advance(50)
    assert await right.read() == b"two"
    assert await right.read() == b""


async def test_a_stall_is_silent_one_way_and_loses_nothing() -> None:
    network = MemoryNetwork()
    left, right = await opened(network)
    network.stall("a", "b")
    data = pattern(2 * WINDOW_BYTES)
    sending = asyncio.create_task(send(left, data))
    await nothing_arrives(right)
    await right.write(b"back")
    assert await left.read() == b"back"
    network.resume("a", "b")
    assert await receive(right, len(data)) == data
    await sending


async def test_a_cut_breaks_both_ends_until_it_is_healed() -> None:
    network = MemoryNetwork()
    left, right = await opened(network)
    reading = asyncio.create_task(right.read())
    await asyncio.sleep(0)
    network.cut("b", "a")
    for ending in (left.read(), left.write(b"x"), right.write(b"x")):
        with pytest.raises(UnavailableError, match="the network was cut"):
            await ending
    with pytest.raises(UnavailableError, match="the network was cut"):
        await reading
    a = network.listening["a"]
    with pytest.raises(UnavailableError):
        await a.dial("memory:b")
    network.heal("a", "b")
    await a.dial("memory:b")


async def test_a_corruption_turns_one_bit_of_one_write() -> None:
    network = MemoryNetwork()
    left, right = await opened(network)
    network.corrupt("a", "b")
    await left.write(b"\x00\x00")
    await left.write(b"\x00\x00")
    await right.write(b"\x00\x00")
    assert await receive(right, 4) == b"\x00\x01\x00\x00"
    assert await receive(left, 2) == b"\x00\x00"


async def test_a_hidden_one_dials_and_is_not_dialled() -> None:
    network = MemoryNetwork()
    await opened(network)
    network.hide("b")
    with pytest.raises(UnavailableError):
        await network.listening["a"].dial("memory:b")
    await network.listening["b"].dial("memory:a")
