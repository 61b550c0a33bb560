"""Promises of the libp2p transport: those of every transport, and its own."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import Accept
from node.transports.libp2p import daemon, daemon_control, supervisor
from node.transports.libp2p import dialler as dialler_module
from node.transports.libp2p import transport as transport_module
from node.transports.libp2p.multiaddr import libp2p_id
from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport
from protocol.errors import SettingsError, UnavailableError
from tests.node.transports.conformance import (
    MIB,
    Close,
    Door,
    ProcessConformance,
    TransportConformance,
    echo,
    pattern,
    receive,
    send,
    soon,
)
from tests.node.transports.libp2p.p2pd import daemon_pid, is_alive, needs_p2pd
from tests.support.waiting import until

pytestmark = needs_p2pd

LOCAL = Libp2pSettings(listen="127.0.0.1:0", public=True)


class TestLibp2pConformance(TransportConformance, ProcessConformance):
    """What every transport promises."""

    async def make(self, at: str | None = None) -> tuple[Libp2pTransport, Close]:
        keys = self.__dict__.setdefault("keys", {})  # an announced address names a key
        words = (at or "/ip4/127.0.0.1/tcp/0/p2p/any").split("/")
        key = keys.get(words[-1]) or Ed25519PrivateKey.generate()
        settings = Libp2pSettings(listen=f"{words[2]}:{words[4]}", public=True)
        transport = Libp2pTransport(key, settings)
        keys[transport.peer] = key
        return transport, transport.stop


@asynccontextmanager
async def started(
    accept: Accept = echo, settings: Libp2pSettings = LOCAL, key: Ed25519PrivateKey | None = None
) -> AsyncIterator[tuple[Libp2pTransport, tuple[str, ...]]]:
    """(a transport, what it announces)."""
    transport = Libp2pTransport(key or Ed25519PrivateKey.generate(), settings)
    try:
        yield transport, await transport.start(accept)
    finally:
        await transport.stop()


async def test_the_identity_is_a_function_of_the_key_and_both_ends_of_a_pipe_have_proof_of_it() -> (
    None
):
    keys, door = [Ed25519PrivateKey.generate() for _ in range(2)], Door()
    public = [key.public_key().public_bytes_raw() for key in keys]
    names = [libp2p_id(key) for key in public]
    async with started(door, key=keys[0]) as (one, addresses), started(key=keys[1]) as (two, _):
        pipe = await two.dial(addresses[0])
        assert [one.peer, two.peer] == names
        assert addresses[0].endswith(f"/p2p/{names[0]}")
        accepted = await door.pipes.get()
        assert [pipe.proves(key) for key in public] == [True, False]
        assert [accepted.proves(key) for key in public] == [False, True]
        assert pipe.remote.endswith(f"/p2p/{names[0]}")


async def test_ten_megabytes_both_ways() -> None:
    data = pattern(10 * MIB)
    async with started() as (_, addresses), started() as (dialler, _):
        pipe = await dialler.dial(addresses[0])
        _, received = await asyncio.gather(send(pipe, data), receive(pipe, len(data)))
        assert received == data


async def test_a_pipe_waits_for_a_descriptor_and_nothing_spins_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_module, "ACCEPT_PAUSE_S", 0.5)
    async with started() as (acceptor, addresses), started() as (dialler, _):
        assert acceptor._listener
        asyncio.get_running_loop().remove_reader(acceptor._listener)
        short = ShortListener(acceptor._listener)
        monkeypatch.setattr(acceptor, "_listener", short)
        acceptor._listen_on()
        dialling = asyncio.create_task(dialler.dial(addresses[0]))
        await until(lambda: short.refused)
        for _ in range(100):
            await asyncio.sleep(0)
        assert short.refused == 1
        short.lacks = False
        pipe = await dialling
        await pipe.write(b"x")
        assert await pipe.read() == b"x"


class ShortListener:
    """A listening socket of a process that lacks descriptors."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self.lacks, self.refused = listener, True, 0

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        self._listener.close()

    def accept(self) -> tuple[socket.socket, Any]:
        if self.lacks:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()


async def test_another_peer_at_the_address_is_not_taken_for_the_one_that_was_dialled() -> None:
    other = libp2p_id(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    async with started() as (_, addresses), started() as (dialler, _):
        where = addresses[0].rpartition("/p2p/")[0]
        with pytest.raises(UnavailableError, match="mismatch"):
            await dialler.dial(f"{where}/p2p/{other}")


async def test_a_second_dial_soon_after_a_failure_fails_at_once_with_the_reason() -> None:
    async with started() as (_, addresses):
        pass
    async with started() as (dialler, _):
        with pytest.raises(UnavailableError, match="refused"):
            await dialler.dial(addresses[0])
        with pytest.raises(UnavailableError, match=r"dialled again in [0-9.]+ s: .*refused"):
            await dialler.dial(addresses[0])


async def test_a_failure_is_forgotten_when_the_pause_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialler_module, "REDIAL_S", 0.0)
    async with started() as (dialler, _):
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                await dialler.dial(f"/ip4/127.0.0.1/tcp/1/p2p/{dialler.peer[:-1]}A")
            assert "dialled again in" not in str(caught.value)


async def test_failures_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialler_module, "FAILURES_MAX", 2)
    monkeypatch.setattr(dialler_module, "REDIAL_S", 1000.0)
    async with started() as (dialler, _):
        first, *others = [libp2p_id(bytes([number] * 32)) for number in range(3)]
        for peer in (first, *others):
            with pytest.raises(UnavailableError):
                await dialler.dial(f"/p2p/{peer}")
        for peer, again in ((others[1], True), (others[0], True), (first, False)):
            with pytest.raises(UnavailableError) as caught:
                await dialler.dial(f"/p2p/{peer}")
            assert ("dialled again in" in str(caught.value)) == again


async def test_a_node_that_cannot_be_dialled_is_reached_over_the_connection_that_it_made() -> None:
    door = Door()
    private = Libp2pSettings(listen="127.0.0.1:0", behind_router_for_test=True)
    async with started() as (public, addresses), started(door, private) as (hidden, announced):
        with pytest.raises(UnavailableError):
            await public.dial(announced[-1])
    async with started() as (public, addresses), started(door, private) as (hidden, announced):
        assert announced == (f"/p2p/{hidden.peer}",)
        await hidden.dial(addresses[0])
        pipe = await public.dial(announced[0])
        await pipe.write(b"found")
        assert await receive(await door.pipes.get(), 5) == b"found"


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/p2p/",
        "/p2p/no",
        "/ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3/tcp/1/p2p/{}",
        "/x/p2p/{}",
        "/ip4" * 999,
    ],
)
async def test_an_address_that_is_nonsense_is_not_dialled(address: str) -> None:
    transport = Libp2pTransport(Ed25519PrivateKey.generate(), LOCAL)
    with pytest.raises(UnavailableError, match="cannot be dialled"):
        await transport.dial(address.format(transport.peer))


async def test_advertised_addresses_are_announced_with_the_port_that_was_bound() -> None:
    settings = Libp2pSettings(
        listen="127.0.0.1:0", advertise=("node.example:0", "192.0.2.7:5"), public=True
    )
    async with started(settings=settings) as (transport, announced):
        assert announced[1] == f"/ip4/192.0.2.7/tcp/5/p2p/{transport.peer}"
        assert announced[0].startswith("/dns/node.example/tcp/")
        assert announced[0] != f"/dns/node.example/tcp/0/p2p/{transport.peer}"


@pytest.mark.parametrize(
    "settings",
    [
        {"advertise": ("nobody",)},
        {"advertise": ("192.0.2.7:1",) * 9},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(SettingsError):
        Libp2pSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["", "127.0.0.1", "127.0.0.1:99999", "192.0.2.7:1"])
async def test_an_address_that_cannot_be_listened_on_is_refused(listen: str) -> None:
    transport = Libp2pTransport(Ed25519PrivateKey.generate(), Libp2pSettings(listen=listen))
    with pytest.raises(SettingsError):
        await transport.start(echo)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["own", "remote"])
async def test_a_daemon_that_is_killed_breaks_its_pipes_and_is_replaced_at_the_same_address(
    killed: str,
) -> None:
    async with started() as (one, addresses), started() as (two, _):
        pipe = await two.dial(addresses[0])
        dead = two if killed == "own" else one
        os.kill(daemon_pid(dead.directory), signal.SIGKILL)
        with pytest.raises(UnavailableError):
            await soon(asyncio.create_task(pipe.read()))
        with pytest.raises(UnavailableError):
            await pipe.write(b"x")
        await until(lambda: dead.restarts == 1)
        assert await one.addresses() == addresses
        pipe = await two.dial(addresses[0])
        await pipe.write(b"again")
        assert await receive(pipe, 5) == b"again"


async def test_while_there_is_no_daemon_a_dial_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_MS", (1_000_000, 1_000_000))
    async with started() as (transport, addresses):
        pid = daemon_pid(transport.directory)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not transport.is_running)
        with pytest.raises(UnavailableError, match="no libp2p daemon is running"):
            await transport.dial(addresses[0])


@pytest.mark.slow
async def test_a_daemon_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as (transport, _), started() as (dialler, _):
        monkeypatch.setattr(supervisor, "HEALTH_INTERVAL_S", 0.05)
        monkeypatch.setattr(daemon_control, "ASK_TIMEOUT_S", 1)
        monkeypatch.setattr(daemon, "STOP_TIMEOUT_S", 0.1)
        await transport.stop()
        await transport.start(echo)  # with the shorter interval
        pid = daemon_pid(transport.directory)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: transport.restarts == 1)
        assert not is_alive(pid)
        await dialler.dial((await transport.addresses())[0])


async def test_a_stop_leaves_no_process_and_no_file() -> None:
    async with started() as (transport, addresses), started() as (dialler, _):
        await dialler.dial(addresses[0])
        directory = transport.directory
        pid = daemon_pid(directory)
        assert directory.is_dir()
        await transport.stop()
        assert not is_alive(pid)
        assert not directory.exists()


KILLED = """
import asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport
async def main():
    transport = Libp2pTransport(Ed25519PrivateKey.generate(), Libp2pSettings(listen="127.0.0.1:0"))
    await transport.start(None)
    print(transport.directory, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_process_that_is_killed_leaves_no_daemon_and_the_next_start_removes_its_files() -> (
    None
):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    directory = Path((await process.stdout.readline()).decode().strip())
    try:
        pid = daemon_pid(directory)
        assert is_alive(pid)
    finally:
        process.kill()
        await process.wait()
    await until(lambda: not is_alive(pid))
    os.utime(directory, (0, 0))  # as if it had happened long ago
    async with started() as (transport, _):
        assert not directory.exists()  # noqa: ASYNC240
        assert transport.directory.exists()


def test_neither_the_transport_nor_the_relay_imports_torch_or_hivemind() -> None:
    code = (
        "import sys, node.transports.libp2p.transport, node.transports.libp2p.relay_proof; "
        "print({'torch', 'hivemind'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
