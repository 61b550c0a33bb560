"""The channel to the coordinator: another one after each failure, so a name is looked up again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control import channel
from node.control.channel import CoordinatorChannel
from node.control.client import CoordinatorClient
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from tests.coordinator.client import quiet_spec, running
from tests.node.control.test_client import Heard
from tests.support.waiting import until

NAME = "coordinator.example:50700"
LINK = parse_link(f"plain://{NAME}")


class Names:
    """A name service: gRPC looks a name up when a channel is made, and here only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address, self.lookups = "127.0.0.1:1", 0
        self._real = channel.grpc.aio.insecure_channel
        monkeypatch.setattr(channel.grpc.aio, "insecure_channel", self._channel)
        monkeypatch.setattr(channel, "fetch_certificate", self._no_certificate)

    async def _no_certificate(self, *_: object) -> None:
        """The coordinator of these tests has no TLS."""

    def _channel(self, name: str, **options: Any) -> Any:
        self.lookups += 1
        return self._real(self.address if name == NAME else name, **options)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


async def test_a_node_finds_a_coordinator_whose_name_leads_to_another_address(
    tmp_path: Path, names: Names
) -> None:
    heard, client = (
        Heard(),
        CoordinatorClient(LINK, Ed25519PrivateKey.generate()),
    )
    async with running(tmp_path, quiet_spec()) as process:
        names.address = process.address
        info = await client.calls.fetch_run()
        session = asyncio.create_task(client.run(info, wire.Hello(name="n"), heard))
        await until(lambda: heard.calls.count("welcome") == 1)
        await client.calls.fetch_commits(-1)
        assert names.lookups == 1, "a channel that works stays"
    await until(lambda: not client.connected)
    asking = asyncio.create_task(client.calls.fetch_commits(-1))
    async with running(tmp_path, quiet_spec()) as process:
        assert names.address != process.address
        names.address = process.address
        await until(lambda: heard.calls.count("welcome") == 2)
        assert (await asking).head_round == -1
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        await client.close()


async def test_calls_under_way_outlive_the_renewal_of_their_channel(
    tmp_path: Path, names: Names
) -> None:
    async with running(tmp_path, quiet_spec()) as process:
        names.address = process.address
        line = CoordinatorChannel(LINK)
        call = asyncio.ensure_future((await line.stub()).GetRun(wire.GetRunRequest(), timeout=20))
        await asyncio.sleep(0)
        line.renew()
        assert (await call).run_id == process.run_id
        assert (
            await (await line.stub()).GetRun(wire.GetRunRequest(), timeout=20)
        ).run_id == process.run_id
        await line.close()


async def test_a_node_that_was_away_opens_another_session_at_once(tmp_path: Path) -> None:
    heard = Heard()
    spec = quiet_spec(membership={"heartbeat_ms": 300_000})  # no word comes, no silence ends it
    async with running(tmp_path, spec) as process:
        client = CoordinatorClient(parse_link(process.address), Ed25519PrivateKey.generate())
        client.reopen()  # nothing to give up yet
        info = await client.calls.fetch_run()
        session = asyncio.create_task(client.run(info, wire.Hello(name="n"), heard))
        await until(lambda: heard.calls.count("welcome") == 1)
        client.reopen()
        client.reopen()
        await until(lambda: heard.calls.count("welcome") == 2)
        assert len(process.rounds.members) == 1
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        await client.close()
