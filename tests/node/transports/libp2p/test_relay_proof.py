"""Promises of the libp2p relay, and of nodes that only it connects."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.base import Pipe
from node.transports.libp2p import daemon, relay_proof, reservations, transport
from node.transports.libp2p.daemon import Daemon, DaemonSettings
from node.transports.libp2p.multiaddr import libp2p_id
from node.transports.libp2p.relay_proof import make_relay, prove
from node.transports.libp2p.supervisor import DaemonSupervisor
from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport
from protocol.errors import UnavailableError
from tests.node.transports.conformance import MIB, echo, pattern, receive, send
from tests.node.transports.libp2p.p2pd import daemon_pid, needs_p2pd
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = [needs_p2pd, pytest.mark.slow]


@asynccontextmanager
async def relay(key: Ed25519PrivateKey, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """The address of a relay that has proven itself."""
    running = make_relay(key, Libp2pSettings(listen=listen))
    try:
        yield (await running.start(echo))[0]
    finally:
        await running.stop()


@asynccontextmanager
async def private(through: str) -> AsyncIterator[tuple[Libp2pTransport, tuple[str, ...]]]:
    """(a node that nobody can dial directly, as far as it says; what it announces)."""
    settings = Libp2pSettings(
        listen="127.0.0.1:0", relays=(through,), behind_router_for_test=True, direct_wait_s=0.1
    )
    transport = Libp2pTransport(Ed25519PrivateKey.generate(), settings)
    try:
        yield transport, await transport.start(echo)
    finally:
        await transport.stop()


async def dialled(node: Libp2pTransport, address: str) -> Pipe:
    """A pipe to an address, as soon as one can be had."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await node.dial(address)
            except UnavailableError:
                await asyncio.sleep(0.05)


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
        assert pipe.remote.endswith(f"/p2p/{one.peer}")
        _, received = await asyncio.gather(send(pipe, data), receive(pipe, len(data)))
        assert received == data


async def test_a_relay_takes_pipes_itself() -> None:
    async with relay(Ed25519PrivateKey.generate()) as address, private(address) as (node, _):
        pipe = await node.dial(address)
        await pipe.write(b"hello")
        assert await receive(pipe, 5) == b"hello"
        assert not pipe.relayed


async def test_a_relay_that_was_gone_for_a_while_reaches_its_nodes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservations, "RETRY_MS", (100, 100))
    key = Ed25519PrivateKey.generate()
    async with relay(key) as address:
        _, _, host, _, port, *_ = address.split("/")
        node = private(address)
        transport, announced = await node.__aenter__()
    try:
        async with relay(key, f"{host}:{port}") as again:
            assert again == address
            async with private(address) as (other, _):
                pipe = await dialled(other, announced[0])
                await pipe.write(b"back")
                assert await receive(pipe, 4) == b"back"
            assert not transport.restarts, "its daemon stayed"
    finally:
        await node.__aexit__(None, None, None)


async def test_running_nodes_use_a_relay_that_comes_and_do_not_announce_one_that_goes() -> None:
    async with (
        relay(Ed25519PrivateKey.generate()) as first,
        private(first) as (node, announced),
        private(first) as (other, _),
    ):
        bare = f"/p2p/{node.peer}"
        assert announced == (f"{first}/p2p-circuit{bare}", bare)
        pid = daemon_pid(node.directory)
        async with relay(Ed25519PrivateKey.generate()) as second:
            node.use_relays((first, second))
            both = await node.moved(announced)
            assert set(both[:-1]) == {f"{first}/p2p-circuit{bare}", f"{second}/p2p-circuit{bare}"}
            node.use_relays((second,))
            alone = await node.moved(both)
            assert alone == (f"{second}/p2p-circuit{bare}", bare)
            pipe = await other.dial(alone[0])
            await pipe.write(b"hello")
            assert await receive(pipe, 5) == b"hello"
            assert pipe.relayed
            assert second.rpartition("/")[2] in pipe.remote
        assert daemon_pid(node.directory) == pid, "nothing had to be started anew"


async def test_a_daemon_that_is_replaced_has_its_place_at_the_relay_again() -> None:
    async with (
        relay(Ed25519PrivateKey.generate()) as through,
        private(through) as (node, announced),
        private(through) as (other, _),
    ):
        os.kill(daemon_pid(node.directory), signal.SIGKILL)
        await until(lambda: node.restarts)
        pipe = await dialled(other, announced[0])
        await pipe.write(b"again")
        assert await receive(pipe, 5) == b"again"
        assert await node.addresses() == announced


async def test_a_node_without_a_router_announces_its_own_address_first_and_is_dialled_there() -> (
    None
):
    settings = Libp2pSettings(listen="127.0.0.1:0", direct_wait_s=0)
    async with relay(Ed25519PrivateKey.generate()) as through, private(through) as (other, _):
        node = Libp2pTransport(Ed25519PrivateKey.generate(), settings)
        try:
            listens = await node.start(echo)
            node.use_relays((through,))
            announced = await node.moved(listens)
            while len(announced) < 3:  # the place comes before the look
                announced = await node.moved(announced)
            assert announced == (
                listens[0],
                f"{through}/p2p-circuit/p2p/{node.peer}",
                f"/p2p/{node.peer}",
            )
            relayed = await other.dial(announced[1])
            assert relayed.relayed
            direct = await other.dial(announced[0])
            assert not direct.relayed
            await direct.write(b"hello")
            assert await receive(direct, 5) == b"hello"
        finally:
            await node.stop()


async def test_a_relayed_pipe_stays_when_nobody_answers_at_the_direct_address() -> None:
    async with (
        relay(Ed25519PrivateKey.generate()) as through,
        private(through) as (node, announced),
        private(through) as (other, _),
    ):
        pipe = await other.dial(announced[0])
        with pytest.raises(
            UnavailableError, match="nobody answers at this address; a relay connects the two"
        ):
            await other.dial(f"/ip4/127.0.0.1/tcp/1/p2p/{node.peer}")
        await pipe.write(b"still")
        assert await receive(pipe, 5) == b"still"


async def test_a_node_that_is_no_relay_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(daemon: Daemon) -> None:
        """A daemon needs no preparation."""

    monkeypatch.setattr(relay_proof, "PROOF_TIMEOUT_S", 8)
    key = Ed25519PrivateKey.generate()
    plain = DaemonSupervisor(key, "127.0.0.1:0", DaemonSettings(), nothing)
    await plain.start()
    try:
        with pytest.raises(UnavailableError, match="does not carry"):
            await prove(f"{plain.local_address}/p2p/{plain.peer}")
    finally:
        await plain.stop()


async def test_a_relay_that_carries_little_is_neither_announced_nor_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def believed(relay: str) -> None:
        """Without a proof."""

    monkeypatch.setattr(relay_proof, "prove", believed)
    monkeypatch.setattr(
        daemon, "_UNLIMITED_BYTES", 1 << 16
    )  # less than libp2p's own default, which may win the race
    monkeypatch.setattr(reservations, "WAIT_S", 1000.0)
    trouble = f"expected {reservations.CIRCUIT_BYTES_MIN} bytes for each circuit"
    with caplog.at_level("INFO", reservations.__name__):
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            relay(Ed25519PrivateKey.generate()) as address,
        ):
            async with private(address) as (node, announced):
                assert announced == (f"/p2p/{node.peer}",)
                assert trouble in node.relay_trouble
                assert any(trouble in getattr(each, "reason", "") for each in caplog.records)
            with pytest.raises(UnavailableError, match=f"does not carry .*{trouble}"):
                await prove(address)


async def test_an_address_of_no_relay_is_skipped() -> None:
    async with (
        relay(Ed25519PrivateKey.generate()) as address,
        private(address) as (node, announced),
    ):
        bare = f"/p2p/{node.peer}"
        nonsense = ("/", "192.0.2.7:1", "/p2p/x", "/ip4/192.0.2.7/tcp/1", bare)
        for each in (*nonsense, f"{address}/p2p-circuit{bare}"):
            node.use_relays((each, address))
            assert await node.addresses() == announced, each


async def test_of_many_relays_a_node_uses_some_and_every_node_others() -> None:
    relays = [
        f"/ip4/192.0.2.7/tcp/{number}/p2p/{libp2p_id(bytes([number] * 32))}"
        for number in range(1, 17)
    ]
    chosen = [
        reservations.choose_relays(libp2p_id(bytes([200 + number] * 32)), relays)
        for number in range(20)
    ]
    assert {len(few) for few in chosen} == {reservations.RELAYS_MAX}
    assert len({each.relay for few in chosen for each in few}) > 3 * reservations.RELAYS_MAX


async def test_a_daemon_that_cuts_circuits_short_is_replaced_by_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proofs: list[str] = []

    async def fails_twice(relay: str) -> None:
        proofs.append(relay)
        if len(proofs) < 3:
            raise UnavailableError("cut after 128 KB")

    monkeypatch.setattr(relay_proof, "prove", fails_twice)
    async with relay(Ed25519PrivateKey.generate()) as address:
        assert proofs == [address] * 3


async def test_a_relay_that_never_proves_itself_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(relay: str) -> None:
        raise UnavailableError("cut after 128 KB")

    monkeypatch.setattr(relay_proof, "prove", fails)
    monkeypatch.setattr(transport, "PROVEN_STARTS_MAX", 2)
    with pytest.raises(UnavailableError, match="cut after 128 KB"):
        async with relay(Ed25519PrivateKey.generate()):
            pass
