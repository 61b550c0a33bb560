"""The admin port, over real sockets on loopback."""

import asyncio
import contextlib
import json
import logging
import math
import re
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from lockstep.service.admin import HEADERS, AdminServer
from lockstep.service.logs import without_traceback
from protocol.errors import AddressInUseError, SettingsError


class FakeService:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Counter("lockstep_rounds", "Rounds.", registry=self.registry).inc(3)
        self.reason = ""

    def status(self) -> dict[str, object]:
        return {"round": 7, "loss": math.nan}

    def unready(self) -> str:
        return self.reason


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def url(service: FakeService) -> AsyncIterator[str]:
    server = AdminServer(service)
    yield await server.start()
    await server.stop()


async def get(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return reply.status, await reply.text(), reply.content_type


async def test_metrics_are_prometheus_text_of_the_service_s_own_registry(url: str) -> None:
    status, text, kind = await get(f"{url}/metrics")
    assert (status, kind) == (200, "text/plain")
    assert "lockstep_rounds_total 3.0" in text
    assert "python_info" not in text


async def test_health_is_the_loop_and_readiness_is_the_work(url: str, service: FakeService) -> None:
    assert (await get(f"{url}/readyz"))[:2] == (200, "ready\n")
    service.reason = "no coordinator answers"
    assert (await get(f"{url}/readyz"))[:2] == (503, "no coordinator answers\n")
    assert (await get(f"{url}/healthz"))[:2] == (200, "ok\n")


async def test_the_status_is_valid_json_even_when_a_loss_is_not_a_number(url: str) -> None:
    status, text, kind = await get(f"{url}/status.json")
    assert (status, kind) == (200, "application/json")
    assert json.loads(text, parse_constant=pytest.fail) == {"round": 7, "loss": None}


async def test_the_port_is_bound_to_loopback_unless_told_otherwise(url: str) -> None:
    assert url.startswith("http://127.0.0.1:")
    assert not url.endswith(":0")


async def status_at(url: str, host: str) -> tuple[int, str]:
    """Status and text of the answer to a request that names a host."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/status.json", headers={"Host": host}) as reply,
    ):
        return reply.status, await reply.text()


@pytest.mark.parametrize(
    "host", ["attacker.example:{}", "127.0.0.1.attacker.example", "[x", "10.0.0.1"]
)
async def test_a_port_on_loopback_answers_no_name_that_a_web_page_can_have(
    url: str, host: str
) -> None:
    host = host.format(url.rpartition(":")[2])
    status, text = await status_at(url, host)
    assert status == 421
    assert text.count("\n") == 1
    assert f"got {host!r}" in text
    assert "round" not in text


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST:8080", "[::1]:1", "127.0.1.1:80"])
async def test_a_port_on_loopback_answers_hosts_of_loopback_at_any_port_of_a_tunnel(
    url: str, host: str
) -> None:
    assert (await status_at(url, host))[0] == 200


@pytest.mark.parametrize("host", ["node-cable:50701", "training.example.org", "192.0.2.7:50701"])
async def test_a_port_for_others_answers_to_the_names_of_monitors_and_proxies(
    service: FakeService, host: str
) -> None:
    server = AdminServer(service, "0.0.0.0:0")
    await server.start()
    try:
        assert (await status_at(f"http://127.0.0.1:{server.port}", host))[0] == 200
    finally:
        await server.stop()


@pytest.mark.parametrize("path", ["metrics", "healthz", "readyz", "status.json", "nothing"])
async def test_every_answer_has_the_headers_that_keep_other_pages_out(url: str, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/{path}") as reply:
        assert HEADERS.items() <= dict(reply.headers).items()
        assert "Access-Control-Allow-Origin" not in reply.headers


async def test_a_taken_port_is_named(service: FakeService) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match=address):
            await AdminServer(service, address).start()


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:x", ":80", "192.0.2.1:0"])
async def test_an_invalid_or_foreign_address_is_a_settings_error(
    service: FakeService, address: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(address)):
        await AdminServer(service, address).start()


async def test_a_node_that_was_given_the_admin_port_costs_one_line_and_no_traceback(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("aiohttp.server")
    logger.addFilter(without_traceback)
    try:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        async with asyncio.timeout(20):
            while await reader.read(1000):
                pass
        writer.close()
    finally:
        logger.removeFilter(without_traceback)
    records = [each for each in caplog.records if each.name == "aiohttp.server"]
    assert all(each.exc_info is None for each in records)
    assert all("nodes use the other one" in each.getMessage() for each in records)
    assert records, "the operator is told"


async def test_connections_beyond_the_room_are_closed_and_places_come_back(
    service: FakeService,
) -> None:
    server = AdminServer(service, connections_max=2)
    url = await server.start()
    held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
        for each in [writer, *(opened for _, opened in held)]:
            each.close()
            await each.wait_closed()
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                assert (await get(f"{url}/healthz"))[0] == 200
                break
    await server.stop()
