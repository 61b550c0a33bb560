"""Which of this machine's addresses a node listens on by itself, and how others hear of it when
they change.
"""

import asyncio
from collections.abc import Sequence

import pytest

from node.control import addresses
from node.control.addresses import address_towards, keep_session
from node.control.client import Listener
from protocol import wire_pb2 as wire
from protocol.errors import RefusedError, UnavailableError
from tests.support.waiting import until


def test_a_coordinator_on_loopback_makes_a_node_listen_on_loopback() -> None:
    assert address_towards("127.0.0.1:50700") == "127.0.0.1:0"


def test_a_name_is_resolved() -> None:
    assert address_towards("localhost:50700") in ("127.0.0.1:0", "[::1]:0")


def test_a_name_that_leads_nowhere_is_told_with_what_to_check() -> None:
    with pytest.raises(
        UnavailableError,
        match=r"no way from this machine to a coordinator at no\.such\.host\.invalid:1",
    ):
        address_towards("no.such.host.invalid:1")


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

    def welcomed(self, welcome: wire.Welcome) -> None:
        self.kinds.append("welcome")

    def received(self, message: wire.CoordinatorMessage) -> None:
        self.kinds.append(message.WhichOneof("kind"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(addresses, "TELL_SECONDS", 0.02)


def session(
    client: Client, hello: wire.Hello, listener: Listener, *transports: object
) -> "asyncio.Task[None]":
    return asyncio.create_task(keep_session(client, None, hello, listener, transports))  # type: ignore[arg-type]


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_other_addresses_are_told_in_another_session_and_those_of_other_transports_stay_in_their_places() -> (
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


@pytest.mark.parametrize(
    ("name", "for_a_moment"), [("SETTLE_SECONDS", ["/one", "/two"]), ("TELL_SECONDS", [])]
)
async def test_neither_what_comes_nor_what_goes_for_a_moment_is_told(
    name: str, for_a_moment: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, name, 3600.0)
    client, moving = Client(), Moving()
    keeping = session(client, wire.Hello(addresses=["/one"]), Heard(), moving)
    await until(lambda: client.hellos)
    moving.move(*for_a_moment)
    await until(lambda: moving.asked[-1] == tuple(for_a_moment))
    monkeypatch.setattr(addresses, name, 0.01)
    moving.move("/one")
    await until(lambda: moving.asked[-1] == ("/one",))
    moving.move("/three")
    await until(lambda: len(client.hellos) == 2)
    await ended(keeping)
    assert client.hellos == [["/one"], ["/three"]]


async def test_the_relays_of_the_member_list_reach_the_transport_and_everything_reaches_the_listener() -> (
    None
):
    client, moving, heard = Client(), Moving(), Heard()
    keeping = session(client, wire.Hello(addresses=["/one"]), heard, moving)
    await until(lambda: client.listener)
    assert client.listener
    one, two = "a" * 32, "b" * 32
    client.listener.welcomed(wire.Welcome(members=members(one)))
    client.listener.received(
        wire.CoordinatorMessage(members=members(two, gone=(one,), changes=True))
    )
    client.listener.received(wire.CoordinatorMessage(skipped=wire.RoundSkipped(round=1)))
    await ended(keeping)
    assert moving.relays == [[f"/{one}"], [f"/{two}"]]
    assert heard.kinds == ["welcome", "members", "skipped"]


async def test_what_ends_the_session_for_good_is_raised_and_without_such_a_transport_it_is_one_session() -> (
    None
):
    client = Client()
    client.fails = RefusedError("no")
    for transports in ((), (Moving(),)):
        with pytest.raises(RefusedError, match="no"):
            await session(client, wire.Hello(), Heard(), *transports)
