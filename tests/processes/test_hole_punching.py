"""libp2p across real routers: a relay observes a node's addresses, and a hole leads through two
routers.

    node-0 -- router ---- internet ---- router -- node-1
                        |    |    |
                     relay  three strangers

Each router is a port-restricted cone that keeps ports.

Every computer is a thread of this process with its own event loop and its own network namespace.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.topology import LabHome, Plan
from node.links import kept_peers
from node.links.network import PeerAddress
from node.transports.libp2p import hole_punching
from node.transports.libp2p.hole_punching import OBSERVERS_MIN
from node.transports.libp2p.relay_proof import make_relay
from node.transports.libp2p.transport import Libp2pSettings, Libp2pTransport
from protocol.errors import UnavailableError
from tests.lockstep.wan.lab.fixture import eventually, needs_ground
from tests.node.links.net import Member
from tests.node.transports.conformance import echo
from tests.node.transports.libp2p.p2pd import needs_p2pd

pytestmark = [needs_ground, needs_p2pd]

PORT = 50702
PATIENCE_S = 120.0
BLOB_BYTES = 2 * 1024 * 1024

T = TypeVar("T")


class Computer:
    """A thread whose event loop lives on one computer of the laboratory."""

    def __init__(self, laboratory: Laboratory, name: str) -> None:
        self.listen = f"{laboratory.address(name)}:{PORT}"
        self.public = f"/ip4/{laboratory.public_address(name)}/tcp/{PORT}"
        self._laboratory, self._name = laboratory, name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=name)
        self._thread.start()

    def _live(self) -> None:
        with self._laboratory.inside(self._name):
            self._loop.run_forever()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done there; what it returns or raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def made(self, make: Callable[[], T]) -> T:
        """What is made there."""

        async def making() -> T:
            return make()

        return self.do(making())

    def leave(self) -> None:
        """End its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def computers() -> Iterator[dict[str, Computer]]:
    homes = [LabHome(f"node-{number}", nat="masquerade") for number in range(2)]
    homes += [LabHome(name) for name in ("relay", "stranger-1", "stranger-2", "stranger-3")]
    with Laboratory(Plan(tuple(homes))) as laboratory, ExitStack() as stack:
        found = {}
        for home in homes:
            found[home.name] = Computer(laboratory, home.name)
            stack.callback(found[home.name].leave)
        yield found


@contextmanager
def running(
    computer: Computer, make: Callable[[], Libp2pTransport]
) -> Iterator[tuple[Libp2pTransport, str]]:
    """(a transport on a computer, what it announces first)."""
    transport = computer.made(make)
    try:
        yield transport, computer.do(transport.start(echo))[0]
    finally:
        computer.do(transport.stop())


@pytest.fixture
def relay(computers: dict[str, Computer]) -> Iterator[str]:
    settings = Libp2pSettings(computers["relay"].listen)
    with running(
        computers["relay"], lambda: make_relay(Ed25519PrivateKey.generate(), settings)
    ) as (_, address):
        yield address


@pytest.fixture
def strangers(computers: dict[str, Computer], relay: str) -> Iterator[list[str]]:
    """Addresses of all observers: the relay and three others."""
    with ExitStack() as stack:
        found = [relay]
        for name in ("stranger-1", "stranger-2", "stranger-3"):
            settings = Libp2pSettings(computers[name].listen, public=True)
            make = lambda settings=settings: Libp2pTransport(Ed25519PrivateKey.generate(), settings)  # noqa: E731
            found.append(stack.enter_context(running(computers[name], make))[1])
        yield found


@contextmanager
def members(
    computers: dict[str, Computer], relay: str
) -> Iterator[list[tuple[Computer, Member, Libp2pTransport]]]:
    """Two nodes behind routers that have their places at the relay, and are told of each other."""
    homes = [computers["node-0"], computers["node-1"]]
    settings = [Libp2pSettings(home.listen, relays=(relay,)) for home in homes]
    started: list[tuple[Computer, Member, Libp2pTransport]] = []
    try:
        for number, home in enumerate(homes):
            key = Ed25519PrivateKey.generate()
            transport = home.made(
                lambda number=number, key=key: Libp2pTransport(key, settings[number])
            )  # type: ignore[misc]
            member = home.made(
                lambda key=key, it=transport, number=number: Member(key, [it], None, number)
            )  # type: ignore[misc]
            started.append((home, member, transport))
            member.remote = PeerAddress(member.peer, home.do(member.mesh.start(member)))
        for (home, member, _), (_, other, _) in (started, started[::-1]):
            home.made(lambda member=member, other=other: member.mesh.keep([other.remote]))  # type: ignore[misc]
        yield started
    finally:
        for home, member, _ in started:
            home.do(member.mesh.stop())


def relayed(member: Member) -> list[bool]:
    """For each link of a member, whether it is relayed."""
    return [link.relayed for link in member.mesh.links]


async def see(transport: Libp2pTransport, address: str) -> None:
    """Makes a connection; its other end observes this node's address."""
    await (await transport.dial(address)).close()


@pytest.mark.slow
def test_a_relayed_link_becomes_direct_once_four_others_see_both_ends(
    computers: dict[str, Computer], strangers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_peers, "UPGRADE_S", 1.0)
    monkeypatch.setattr(hole_punching, "PAUSE_MS", (3_000, 3_000))
    relay, *others = strangers
    assert len(strangers) == OBSERVERS_MIN
    with members(computers, relay) as nodes:
        assert eventually(lambda: all(relayed(member) == [True] for _, member, _ in nodes))
        for home, _, transport in nodes:
            for stranger in others:
                home.do(see(transport, stranger))
        assert eventually(lambda: all(relayed(member) == [False] for _, member, _ in nodes))
        (home, one, _), (_, other, _) = nodes
        assert one.mesh.links[0].remote.startswith(computers["node-1"].public)
        digest = other.hold(bytes(BLOB_BYTES))
        assert len(home.do(one.fetched(other.remote, digest))) == BLOB_BYTES
        assert relayed(one) == [False]


@pytest.mark.slow
def test_with_three_observers_the_relay_carries_the_link_and_nobody_hangs_up_in_vain(
    computers: dict[str, Computer], strangers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, *others = strangers[:-1]
    with members(computers, relay) as nodes:
        assert eventually(lambda: all(relayed(member) == [True] for _, member, _ in nodes))
        for home, _, transport in nodes:
            for stranger in others:
                home.do(see(transport, stranger))
        (home, one, transport), (_, other, _) = nodes
        pipe = home.do(transport.dial(other.remote.addresses[0]))
        assert pipe.relayed
        assert relayed(one) == relayed(other) == [True], "the first link still stands beside it"
        digest = other.hold(bytes(BLOB_BYTES))
        assert len(home.do(one.fetched(other.remote, digest))) == BLOB_BYTES


@pytest.mark.slow
def test_a_node_that_can_be_dialled_from_outside_announces_that_address_first_and_others_do_not(
    computers: dict[str, Computer], relay: str
) -> None:
    def make(name: str) -> Libp2pTransport:
        return Libp2pTransport(
            Ed25519PrivateKey.generate(), Libp2pSettings(computers[name].listen, relays=(relay,))
        )

    with (
        running(computers["stranger-1"], lambda: make("stranger-1")) as (public, first),
        running(computers["node-0"], lambda: make("node-0")) as (hidden, circuit),
    ):
        assert first == f"{computers['stranger-1'].public}/p2p/{public.peer}"
        assert circuit == f"{relay}/p2p-circuit/p2p/{hidden.peer}"
        with pytest.raises(UnavailableError):
            computers["stranger-1"].do(
                public.dial(f"{computers['node-0'].public}/p2p/{hidden.peer}")
            )
        assert not computers["node-0"].do(hidden.dial(first)).relayed
