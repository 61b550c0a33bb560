"""Which connections a dial opens, closes and waits for, against a daemon that obeys the test."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest

from node.transports.base import DIAL_S
from node.transports.libp2p import dialler
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.dialler import PROTOCOL, REDIAL_S, Dialler
from node.transports.libp2p.hole_punching import OBSERVERS_MIN
from node.transports.libp2p.multiaddr import libp2p_id
from protocol.errors import UnavailableError
from protocol.limits import TEXT_BYTES_MAX

OWN, PEER, RELAY = sorted(libp2p_id(bytes([number]) * 32) for number in range(1, 4))
"""The own id is the lowest: this end is the one that hangs up."""

DIRECT = "/ip4/11.0.0.1/tcp/4001"
CIRCUIT = f"/ip4/11.0.0.2/tcp/4001/p2p/{RELAY}/p2p-circuit"
RELAYED = Contact(PEER, f"{CIRCUIT}/p2p/{PEER}")
OBSERVERS = [
    Contact(f"observer-{number}", f"/ip4/12.0.{number}.1/tcp/1") for number in range(OBSERVERS_MIN)
]


class Daemon:
    """What the dialler asks of the daemon, in order; `punches`: looks at the contacts until the
    peer is connected directly, None: never.
    """

    def __init__(self, contacts: Iterable[Contact] = (), punches: int | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.known = list(contacts)
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails: Callable[[], Exception | None] = lambda: None
        self._punches = punches
        self._sockets: list[socket.socket] = []

    async def contacts(self) -> list[Contact]:
        if self._punches is not None and ("connect", CIRCUIT) in self.asked:
            self._punches -= 1
            if self._punches < 0:
                return [*self.known, Contact(PEER, DIRECT)]
        return self.known

    async def connect(self, peer: str, addresses: tuple[str, ...], timeout_s: int) -> None:
        assert peer == PEER
        assert timeout_s == dialler.DIAL_S
        self.asked.append(("connect", *addresses))
        await self.answers.wait()
        if error := self.fails():
            raise error

    async def disconnect(self, peer: str) -> None:
        assert peer == PEER
        self.asked.append(("disconnect",))

    async def open(self, peer: str, protocol: str, timeout_s: int) -> tuple[socket.socket, Contact]:
        assert (peer, protocol, timeout_s) == (PEER, PROTOCOL, DIAL_S)
        self.asked.append(("open",))
        ours, theirs = socket.socketpair()
        self._sockets += [ours, theirs]
        return ours, Contact(PEER, DIRECT)

    def close(self) -> None:
        for each in self._sockets:
            each.close()


async def dialled(daemon: Daemon, where: str, wait_s: float = 30.0) -> list[tuple[str, ...]]:
    """What a first dial of `where` asks of the daemon."""
    try:
        await dialler_of(daemon, wait_s).dial(f"{where}/p2p/{PEER}")
        return daemon.asked
    finally:
        daemon.close()


def dialler_of(daemon: Daemon, wait_s: float = 30.0) -> Dialler:
    return Dialler(OWN, lambda: daemon, wait_s)  # type: ignore[arg-type, return-value]


async def test_a_direct_address_is_connected_and_a_stream_is_opened() -> None:
    assert await dialled(Daemon(), DIRECT) == [("connect", DIRECT), ("open",)]


async def test_a_peer_without_an_address_is_opened_over_the_connection_that_exists() -> None:
    assert await dialled(Daemon(), "") == [("open",)]


async def test_a_direct_dial_closes_the_relayed_connection_when_somebody_answers() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    where = f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"
    async with server:
        asked = await dialled(Daemon([RELAYED]), where)
    assert asked == [("disconnect",), ("connect", where), ("open",)]


async def test_the_relayed_connection_stays_when_nobody_answers_at_the_direct_address() -> None:
    with socket.socket() as held:  # bound and not listening: refused
        held.bind(("127.0.0.1", 0))
        daemon = Daemon([RELAYED])
        with pytest.raises(UnavailableError, match="nobody answers at this address"):
            await dialled(daemon, f"/ip4/127.0.0.1/tcp/{held.getsockname()[1]}")
    assert daemon.asked == []


async def test_a_direct_connection_beside_the_relayed_one_is_left_alone() -> None:
    asked = await dialled(Daemon([RELAYED, Contact(PEER, DIRECT)]), DIRECT)
    assert asked == [("connect", DIRECT), ("open",)]


async def test_through_a_relay_the_dial_hangs_up_where_a_hole_may_be_punched_and_waits_for_it() -> (
    None
):
    asked = await dialled(Daemon([RELAYED, *OBSERVERS], punches=3), CIRCUIT)
    assert asked == [("disconnect",), ("connect", CIRCUIT), ("open",)]


async def test_without_enough_observers_the_relayed_connection_is_used_as_it_is() -> None:
    asked = await dialled(Daemon([RELAYED, *OBSERVERS[1:]]), CIRCUIT, wait_s=0.01)
    assert asked == [("connect", CIRCUIT), ("open",)]


async def test_a_hole_that_is_never_punched_delays_the_stream_and_does_not_lose_it() -> None:
    asked = await dialled(Daemon([RELAYED, *OBSERVERS]), CIRCUIT, wait_s=0.01)
    assert asked[-1] == ("open",)


async def test_an_address_that_failed_is_not_dialled_again_at_once_and_the_reason_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialler, "time", SimpleNamespace(monotonic=lambda: 0.0))
    daemon, address = Daemon(), f"{DIRECT}/p2p/{PEER}"
    daemon.fails = lambda: UnavailableError("no\nroute " + "x" * 2 * TEXT_BYTES_MAX)
    dialling = dialler_of(daemon)
    with pytest.raises(UnavailableError, match=r"no route x+$") as first:
        await dialling.dial(address)
    assert len(str(first.value)) <= len(address) + 2 + TEXT_BYTES_MAX
    with pytest.raises(UnavailableError, match=rf"dialled again in {REDIAL_S:.1f} s: no route"):
        await dialling.dial(address)
    assert daemon.asked == [("connect", DIRECT)]
    dialling.forget_failures()
    daemon.fails = lambda: None
    await dialling.dial(address)
    daemon.close()
    assert daemon.asked[1:] == [("connect", DIRECT), ("open",)]


async def test_a_dial_without_an_answer_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialler, "DIAL_S", 0)
    daemon = Daemon()
    daemon.answers.clear()
    with pytest.raises(UnavailableError, match="no answer within 0 s"):
        await dialler_of(daemon).dial(f"{DIRECT}/p2p/{PEER}")
    assert ("open",) not in daemon.asked


@pytest.mark.parametrize("address", ["127.0.0.1:4001", f"{DIRECT}/p2p/", f"/ip4/x/p2p/{PEER}"])
async def test_an_address_that_cannot_be_dialled_reaches_no_daemon(address: str) -> None:
    daemon = Daemon()
    with pytest.raises(
        UnavailableError, match="a peer announced an address that cannot be dialled"
    ):
        await dialler_of(daemon).dial(address)
    assert daemon.asked == []
