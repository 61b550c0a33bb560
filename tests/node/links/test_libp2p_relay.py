"""Promises of the libp2p relay, and of nodes that only it connects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links import libp2p_pipes, libp2p_relay, reservations
from node.links.daemon import Daemon, DaemonSettings
from node.links.daemon_keeper import DaemonKeeper
from node.links.libp2p_pipes import Libp2pSettings, Libp2pTransport
from node.links.libp2p_relay import make_relay, prove
from protocol.errors import UnavailableError
from tests.node.links.conformance import MIB, echo, pattern, receive, send
from tests.node.links.p2pd import needs_p2pd
from tests.waiting import until

pytestmark = needs_p2pd


@asynccontextmanager
async def relay(key: Ed25519PrivateKey, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """The address of a relay that has proven itself."""
    running = make_relay(key, Libp2pSettings(listen=listen, upnp=False))
    try:
        yield (await running.start(echo))[0]
    finally:
        await running.stop()


@asynccontextmanager
async def private(through: str) -> AsyncIterator[tuple[Libp2pTransport, tuple[str, ...]]]:
    """(a node that cannot be dialled directly, what it announces)."""
    settings = Libp2pSettings(listen="127.0.0.1:0", relays=(through,), upnp=False, direct_wait_s=0.1)
    transport = Libp2pTransport(Ed25519PrivateKey.generate(), settings)
    try:
        yield transport, await transport.start(echo)
    finally:
        await transport.stop()


async def test_two_nodes_behind_routers_exchange_megabytes_through_a_relay_and_say_so() -> None:
    data = pattern(5 * MIB)
    async with (
        relay(Ed25519PrivateKey.generate()) as address,
        private(address) as (one, announced),
        private(address) as (two, _),
    ):
        assert announced == (f"{address}/p2p-circuit/p2p/{one.peer}", f"/p2p/{one.peer}")
        pipe = await two.dial(announced[0])
        assert pipe.relayed
        assert pipe.peer == one.peer
        _, received = await asyncio.gather(send(pipe, data), receive(pipe, len(data)))
        assert received == data


async def test_a_relay_takes_pipes_itself() -> None:
    async with relay(Ed25519PrivateKey.generate()) as address, private(address) as (node, _):
        pipe = await node.dial(address)
        await pipe.write(b"hello")
        assert await receive(pipe, 5) == b"hello"
        assert not pipe.relayed


async def test_a_relay_that_was_gone_for_a_while_reaches_its_nodes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "PING_INTERVAL_S", 0.05)
    key = Ed25519PrivateKey.generate()
    async with relay(key) as address:
        _, _, host, _, port, *_ = address.split("/")
        node = private(address)
        transport, announced = await node.__aenter__()
    try:
        async with relay(key, f"{host}:{port}") as again:
            assert again == address
            await until(lambda: transport.restarts)
            async with private(address) as (other, _):
                pipe = await other.dial(announced[0])
                await pipe.write(b"back")
                assert await receive(pipe, 4) == b"back"
    finally:
        await node.__aexit__(None, None, None)


async def test_what_is_no_relay_does_not_prove_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(daemon: Daemon) -> None:
        """A daemon needs no preparation."""

    monkeypatch.setattr(libp2p_relay, "PROOF_TIMEOUT_S", 8)
    key = Ed25519PrivateKey.generate()
    plain = DaemonKeeper(key, "127.0.0.1:0", DaemonSettings(), nothing)
    await plain.start()
    try:
        with pytest.raises(UnavailableError, match="does not carry"):
            await prove(f"{plain.local_address}/p2p/{plain.peer}")
    finally:
        await plain.stop()


async def test_a_daemon_that_cuts_circuits_short_is_replaced_by_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proofs: list[str] = []

    async def fails_twice(relay: str) -> None:
        proofs.append(relay)
        if len(proofs) < 3:
            raise UnavailableError("cut after 128 KB")

    monkeypatch.setattr(libp2p_relay, "prove", fails_twice)
    async with relay(Ed25519PrivateKey.generate()) as address:
        assert proofs == [address] * 3


async def test_a_relay_that_never_proves_itself_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(relay: str) -> None:
        raise UnavailableError("cut after 128 KB")

    monkeypatch.setattr(libp2p_relay, "prove", fails)
    monkeypatch.setattr(libp2p_pipes, "PROVEN_STARTS_MAX", 2)
    with pytest.raises(UnavailableError, match="cut after 128 KB"):
        async with relay(Ed25519PrivateKey.generate()):
            pass
