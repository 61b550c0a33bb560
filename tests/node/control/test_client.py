"""The coordinator client's session: its states, its words for people, and the member list that it
keeps.
"""

import asyncio
from asyncio import Event, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.events import acts
from coordinator.process import CoordinatorProcess
from node.control.client import CoordinatorClient, SessionState
from node.control.members import MemberList
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.errors import RefusedError
from protocol.ids import sha256
from tests.coordinator.client import ScriptedNode, node_key, quiet_spec, running
from tests.support.waiting import until


class Heard:
    """A listener that records its calls, and the members that it was told of."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.members: list[set[str]] = []

    def members_changed(self, members: MemberList) -> None:
        self.calls.append("members")
        self.members.append(set(members.members))

    def welcomed(self, welcome: wire.Welcome) -> None:
        self.calls.append("welcome")

    def received(self, message: wire.CoordinatorMessage) -> None:
        self.calls.append(str(message.WhichOneof("kind")))


@asynccontextmanager
async def session_of(
    process: CoordinatorProcess, heard: Heard, address: str = ""
) -> AsyncIterator[CoordinatorClient]:
    link = parse_link(address or process.address)
    client = CoordinatorClient(link, Ed25519PrivateKey.generate())
    info = await client.calls.fetch_run()
    hello = wire.Hello(addresses=["127.0.0.1:1"], name="n")
    session = asyncio.create_task(client.run(info, hello, heard))
    try:
        yield client
    finally:
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        await client.close()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    async with running(tmp_path, quiet_spec()) as process:
        yield process


def test_before_its_first_session_a_client_is_offline_and_says_so() -> None:
    client = CoordinatorClient(parse_link("127.0.0.1:1"), Ed25519PrivateKey.generate())
    assert client.state is SessionState.NOT_CONNECTED
    assert not client.connected
    assert client.words == client.offline == "not connected yet"


async def test_a_session_that_is_lost_is_opened_again_and_the_reason_is_told(
    process: CoordinatorProcess,
) -> None:
    heard = Heard()
    async with session_of(process, heard) as client:
        await until(lambda: client.connected)
        assert (client.state, client.words, client.offline) == (
            SessionState.CONNECTED,
            "connected",
            "",
        )
        process.service.delivery.close()
        await until(lambda: client.state is SessionState.LOST)
        assert client.words == client.offline
        assert client.words.startswith(f"the coordinator at {process.address} closed the session")
        assert client.words.endswith("; reconnecting")
        await until(lambda: client.connected)
        assert heard.calls.count("welcome") == 2


async def test_an_evicted_node_says_why_and_that_it_waits(process: CoordinatorProcess) -> None:
    heard = Heard()
    async with session_of(process, heard) as client:
        await until(lambda: client.connected)
        (member,) = process.status()["members"]
        await process.desk.order(acts.Evict(member["peer_id"], "too hot"))
        await until(lambda: "removed this node: the operator" in client.words)
        assert "too hot; it may come back in" in client.words
        await until(lambda: "refused this node: the operator removed this node" in client.words)
    assert "evicted" in heard.calls


def test_one_more_look_in_vain_is_not_logged_and_another_kind_of_reason_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = CoordinatorClient(parse_link("127.0.0.1:1"), Ed25519PrivateKey.generate())
    for seconds in (20, 18, 9):
        client._lose("away", f"removed; it may come back in {seconds} s")
    client._lose("silent", "nobody answers there")
    assert [vars(record)["reason"] for record in caplog.records] == [
        "removed; it may come back in 20 s",
        "nobody answers there",
    ]
    assert client.words == "nobody answers there; reconnecting"


@asynccontextmanager
async def tunnel(address: str) -> AsyncIterator[tuple[str, Event]]:
    """A forwarder in front of an address, and whether its other end is there: without it the
    forwarder takes connections and drops them.
    """
    there, (host, _, port) = Event(), address.rpartition(":")
    there.set()

    async def carry(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            if not there.is_set():
                writer.transport.abort()
                return
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            ends.update((writer, far_writer))
            await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))

    ends = set[StreamWriter]()
    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", there
    finally:
        for end in ends:
            end.transport.abort()
        server.close()


async def _pipe(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.transport.abort()


async def test_a_look_through_a_tunnel_whose_other_end_is_away_fails_at_once(
    process: CoordinatorProcess,
) -> None:
    """It does not wait until the coordinator counts as silent."""
    heard = Heard()
    async with (
        tunnel(process.address) as (address, there),
        session_of(process, heard, address) as client,
    ):
        await until(lambda: client.connected)
        there.clear()
        process.service.delivery.close()
        await until(lambda: client.state is SessionState.LOST)
        closed = client.words
        await until(lambda: client.words != closed)
        assert "fell silent" not in client.words
        there.set()
        await until(lambda: client.connected)
        assert client.sessions_lost == 1, "a look in vain is no loss of a session"


async def test_members_are_told_before_the_welcome_and_whenever_they_change(
    process: CoordinatorProcess,
) -> None:
    heard = Heard()
    async with session_of(process, heard) as client:
        await until(lambda: "welcome" in heard.calls)
        assert heard.calls[heard.calls.index("welcome") - 1] == "members"
        async with ScriptedNode(process.address, process.run_id, node_key(2)) as other:
            await other.join()
            await until(lambda: client.members.member_count == 2)
        assert heard.members[-1] == set(client.members.members)


async def test_a_node_waits_for_a_place_in_a_full_run(tmp_path: Path) -> None:
    """It does not end: places become free."""
    spec, heard = quiet_spec(membership={"members_max": 2}), Heard()
    async with (
        running(tmp_path, spec) as process,
        ScriptedNode(process.address, process.run_id, node_key(1)) as one,
        ScriptedNode(process.address, process.run_id, node_key(2)) as two,
    ):
        await one.join()
        await two.join()
        async with session_of(process, heard) as client:
            await until(lambda: "the run is full: 2 members; reconnecting" in client.words)
            await two.say(wire.NodeMessage(leave=wire.Leave(reason="goodbye")))
            await until(lambda: client.connected)


async def test_a_client_shows_the_token_of_its_link_and_is_refused_without_one(
    process: CoordinatorProcess,
) -> None:
    await process.desk.order(acts.Admit("token"))
    await process.desk.order(acts.Token("t", sha256(b"s3cret")))
    hello = wire.Hello(addresses=["127.0.0.1:1"], name="n")
    key = Ed25519PrivateKey.generate()
    for token, words in (("", "--token"), ("wrong", "not one of this run's")):
        client = CoordinatorClient(parse_link(process.address).with_token(token), key)
        with pytest.raises(RefusedError, match=words):
            await client.run(await client.calls.fetch_run(), hello, Heard())
        await client.close()
    client = CoordinatorClient(parse_link(process.address).with_token("s3cret"), key)
    session = asyncio.create_task(client.run(await client.calls.fetch_run(), hello, Heard()))
    await until(lambda: client.connected)
    session.cancel()
    await asyncio.gather(session, return_exceptions=True)
    await client.close()
