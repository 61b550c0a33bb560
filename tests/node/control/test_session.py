"""A node whose addresses change tells the coordinator in another session, and not for a moment's
change.
"""

import asyncio
from collections.abc import Sequence

import pytest

from node.control import session as control_session
from node.control.client import Listener
from node.control.members import MemberList
from node.control.session import keep_session
from protocol import wire_pb2 as wire
from protocol.errors import RefusedError
from tests.support.waiting import until


def members(*relays: str, gone: tuple[str, ...] = (), changes: bool = False) -> wire.Members:
    told = [
        wire.Member(peer_id=peer, addresses=["192.0.2.7:1", f"/{peer}"], relay=True)
        for peer in relays
    ]
    told.append(wire.Member(peer_id="f" * 32, addresses=["/member"]))
    return wire.Members(members=told, gone=gone, changes=changes)


class Moving:
    """A transport whose addresses the test changes, and another's beside it."""

    kind = "libp2p"

    def __init__(self) -> None:
        self.now: tuple[str, ...] = ("/one",)
        self.changed = asyncio.Event()
        self.relays: list[list[str]] = []
        self.asked: list[tuple[str, ...]] = []

    def move(self, *addresses: str) -> None:
        self.now = addresses
        self.changed.set()

    def dials(self, address: str) -> bool:
        return address.startswith("/")

    def use_relays(self, relays: Sequence[str]) -> None:
        self.relays.append(list(relays))

    async def moved(self, announced: tuple[str, ...]) -> tuple[str, ...]:
        self.asked.append(announced)
        while self.now == announced:
            self.changed.clear()
            await self.changed.wait()
        return self.now


class Client:
    """What each session said in its hello."""

    def __init__(self) -> None:
        self.hellos: list[list[str]] = []
        self.listener: Listener | None = None
        self.fails: Exception | None = None

    async def run(self, info: object, hello: wire.Hello, listener: Listener) -> None:
        self.hellos.append(list(hello.addresses))
        self.listener = listener
        if self.fails:
            raise self.fails
        await asyncio.Event().wait()


class Heard:
    """A listener."""

    def __init__(self) -> None:
        self.kinds: list[str | None] = []

    def members_changed(self, members: MemberList) -> None:
        self.kinds.append("members")

    def welcomed(self, welcome: wire.Welcome) -> None:
        self.kinds.append("welcome")

    def received(self, message: wire.CoordinatorMessage) -> None:
        self.kinds.append(message.WhichOneof("kind"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_session, "SETTLE_S", 0.01)
    monkeypatch.setattr(control_session, "TELL_S", 0.02)


def session(
    client: Client, hello: wire.Hello, listener: Listener, *transports: object
) -> "asyncio.Task[None]":
    return asyncio.create_task(keep_session(client, None, hello, listener, transports))  # type: ignore[arg-type]


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_other_addresses_are_told_in_another_session_beside_those_of_other_transports() -> (
    None
):
    client, moving = Client(), Moving()
    keeping = session(client, wire.Hello(addresses=["h:1", "/one", "h:2"]), Heard(), moving)
    await until(lambda: client.hellos)
    moving.move("/two", "/three")
    await until(lambda: len(client.hellos) == 2)
    moving.move("/four")
    await until(lambda: len(client.hellos) == 3)
    await ended(keeping)
    assert client.hellos == [
        ["h:1", "/one", "h:2"],
        ["h:1", "/two", "/three", "h:2"],
        ["h:1", "/four", "h:2"],
    ]


@pytest.mark.parametrize(("name", "for_a_moment"), [("SETTLE_S", ["/one", "/two"]), ("TELL_S", [])])
async def test_an_address_that_comes_or_goes_for_a_moment_is_not_told(
    name: str, for_a_moment: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_session, name, 3600.0)
    client, moving = Client(), Moving()
    keeping = session(client, wire.Hello(addresses=["/one"]), Heard(), moving)
    await until(lambda: client.hellos)
    moving.move(*for_a_moment)
    await until(lambda: moving.asked[-1] == tuple(for_a_moment))
    monkeypatch.setattr(control_session, name, 0.01)
    moving.move("/one")
    await until(lambda: moving.asked[-1] == ("/one",))
    moving.move("/three")
    await until(lambda: len(client.hellos) == 2)
    await ended(keeping)
    assert client.hellos == [["/one"], ["/three"]]


async def test_relays_reach_the_transport_and_every_message_reaches_the_listener() -> None:
    client, moving, heard = Client(), Moving(), Heard()
    keeping = session(client, wire.Hello(addresses=["/one"]), heard, moving)
    await until(lambda: client.listener)
    assert client.listener
    one, two = "a" * 32, "b" * 32
    known = MemberList()
    known.update(members(one))
    client.listener.members_changed(known)
    client.listener.welcomed(wire.Welcome())
    known.update(members(two, gone=(one,), changes=True))
    client.listener.members_changed(known)
    client.listener.received(wire.CoordinatorMessage(skipped=wire.RoundSkipped(round=1)))
    await ended(keeping)
    assert moving.relays == [[f"/{one}"], [f"/{two}"]]
    assert heard.kinds == ["members", "welcome", "members", "skipped"]


async def test_an_error_that_ends_the_session_for_good_is_raised() -> None:
    client = Client()
    client.fails = RefusedError("no")
    for transports in ((), (Moving(),)):
        with pytest.raises(RefusedError, match="no"):
            await session(client, wire.Hello(), Heard(), *transports)
