"""TLS between a server and a client that know each other by ed25519 keys."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.events.acts import Token
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from node.control.client import CoordinatorClient
from node.system.tls import CHANNEL_OPTIONS, ask_certificate, fetch_certificate, server_credentials
from protocol import wire_pb2 as wire
from protocol.border.join_link import JoinLink, parse_link
from protocol.errors import RefusedError, RemoteProtocolError, SettingsError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import sha256
from protocol.wire_pb2_grpc import CoordinatorStub
from tests.coordinator.client import COORDINATOR_KEY, quiet_spec, running

THIEF = Ed25519PrivateKey.from_private_bytes(b"t" * 32)


@asynccontextmanager
async def secure_coordinator(
    directory: Path, listen: str = "127.0.0.1:0", key: Ed25519PrivateKey = COORDINATOR_KEY
) -> AsyncIterator[CoordinatorProcess]:
    process = CoordinatorProcess(
        quiet_spec(),
        CoordinatorSettings(directory, listen),
        COORDINATOR_KEY,
        credentials=server_credentials(key),
    )
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


def client_of(link: JoinLink) -> CoordinatorClient:
    return CoordinatorClient(link, Ed25519PrivateKey.generate())


async def test_a_node_with_the_whole_link_reaches_the_run_over_tls(tmp_path: Path) -> None:
    async with secure_coordinator(tmp_path) as process:
        assert process.link.key == public_bytes(COORDINATOR_KEY)
        client = client_of(process.link)
        assert (await client.calls.fetch_run()).run_id == process.run_id
        assert client.secure
        await client.close()


async def test_a_connection_without_tls_is_not_served(tmp_path: Path) -> None:
    async with (
        secure_coordinator(tmp_path) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await CoordinatorStub(channel).GetRun(wire.GetRunRequest(), timeout=20)


async def test_a_restarted_coordinator_with_another_certificate_is_found_again(
    tmp_path: Path,
) -> None:
    async with secure_coordinator(tmp_path) as process:
        client, address = client_of(process.link), process.address
        await client.calls.fetch_run()
    async with secure_coordinator(tmp_path, address) as process:
        assert (await client.calls.fetch_commits(-1)).head_round == -1
        await client.close()


async def test_another_key_s_coordinator_is_refused_before_a_word_is_said(tmp_path: Path) -> None:
    async with secure_coordinator(tmp_path) as process:
        other = JoinLink(process.address, process.run_id, public_bytes(THIEF))
        client = client_of(other)
        with pytest.raises(RemoteProtocolError, match="another machine stands between"):
            await client.calls.fetch_run()
        await client.close()


async def test_a_man_in_the_middle_with_a_key_of_his_own_is_found_out(tmp_path: Path) -> None:
    """He serves the run as it is; only his TLS has another key."""
    async with secure_coordinator(tmp_path, key=THIEF) as process:
        client = client_of(parse_link(process.address))
        with pytest.raises(RemoteProtocolError, match="another machine stands between"):
            await client.calls.fetch_run()
        await client.close()


async def test_a_man_in_the_middle_who_shows_the_right_certificate_hears_nothing(
    tmp_path: Path,
) -> None:
    """He can pass bytes on, but whoever ends the TLS needs the coordinator's own P-256 key."""
    async with secure_coordinator(tmp_path) as process:
        shown = await fetch_certificate(process.address, 20)
        assert shown
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", server_credentials(THIEF))
    await server.start()
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{port}", shown.credentials, options=CHANNEL_OPTIONS
    ) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await CoordinatorStub(channel).GetRun(wire.GetRunRequest(), timeout=20)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.stop(None)


async def test_plain_text_is_for_this_machine_alone(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        client = client_of(process.link)
        await client.calls.fetch_run()
        assert not client.secure
        await client.close()
        port = process.address.rpartition(":")[2]
        elsewhere = parse_link(f"{_own_address()}:{port}")
        assert not elsewhere.may_be_plain


async def test_a_plain_coordinator_on_a_network_is_refused_unless_the_link_says_plain(
    tmp_path: Path,
) -> None:
    process = CoordinatorProcess(
        quiet_spec(), CoordinatorSettings(tmp_path, f"{_own_address()}:0"), COORDINATOR_KEY
    )
    try:
        await process.start()
        assert process.link.text().startswith("plain://" if not _is_alone() else "lockstep://")
        if not _is_alone():
            client = client_of(parse_link(process.address))
            with pytest.raises(RemoteProtocolError, match="plain://"):
                await client.calls.fetch_run()
            await client.close()
        client = client_of(process.link)
        assert (await client.calls.fetch_run()).run_id == process.run_id
        await client.close()
    finally:
        await process.stop()


async def test_a_link_of_another_run_is_refused(tmp_path: Path) -> None:
    async with secure_coordinator(tmp_path) as process:
        link = JoinLink(process.address, type(process.run_id)("f" * 32))
        client = client_of(link)
        with pytest.raises(SettingsError, match="which the link names"):
            await client.calls.fetch_run()
        await client.close()


async def test_both_ways_of_asking_show_the_same_certificate(tmp_path: Path) -> None:
    async with secure_coordinator(tmp_path) as process:
        shown = await fetch_certificate(process.address, 20)
        assert shown == await asyncio.to_thread(ask_certificate, process.address, 5)
        assert shown
        assert shown.key == public_bytes(COORDINATOR_KEY)


async def test_a_certificate_is_valid_whatever_the_clock_of_either_end_shows(
    tmp_path: Path,
) -> None:
    async with secure_coordinator(tmp_path) as process:
        shown = await fetch_certificate(process.address, 20)
    assert shown
    found = x509.load_pem_x509_certificate(shown.pem)
    assert found.not_valid_before_utc.timestamp() == 0, "a small computer begins in 1970"
    assert found.not_valid_after_utc.year == 9999


async def test_nobody_at_the_address_is_told_with_the_cause() -> None:
    with pytest.raises(UnavailableError, match="refused"):
        await fetch_certificate("127.0.0.1:1", 5)
    with pytest.raises(UnavailableError, match="refused"):
        ask_certificate("127.0.0.1:1", 5)
    with pytest.raises(UnavailableError, match="no address is known"):
        await fetch_certificate("nowhere.invalid:1", 5)


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_asked() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UnavailableError, match="nobody answered in time"):
            await fetch_certificate(f"127.0.0.1:{silent.getsockname()[1]}", 0.3)
        with pytest.raises(UnavailableError, match="nobody answered in time"):
            ask_certificate(f"127.0.0.1:{silent.getsockname()[1]}", 0.3)


def _own_address() -> str:
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _is_alone() -> bool:
    return _own_address().startswith("127.")


async def test_a_token_is_not_sent_in_plain_text_over_a_network(tmp_path: Path) -> None:
    if _is_alone():
        pytest.skip("this machine has no address but loopback")
    settings = CoordinatorSettings(tmp_path, f"{_own_address()}:0", admit="token")
    process = CoordinatorProcess(quiet_spec(), settings, COORDINATOR_KEY)
    try:
        await process.start()
        await process.desk.order(Token("t", sha256(b"s3cret")))
        link = replace(process.link, token="s3cret")  # no parsed link is such a one
        assert link.plain
        client = client_of(link)
        hello = wire.Hello(addresses=["192.0.2.7:1"], name="n")
        with pytest.raises(RefusedError, match="--token TOKEN"):
            await client.run(await client.calls.fetch_run(), hello, Mock())
        assert process.rounds.state.operator.admission.tokens["t"].uses == 0
        await client.close()
    finally:
        await process.stop()
