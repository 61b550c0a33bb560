"""A node whose coordinator is outside dials no private address on a stranger's word."""

import asyncio

import pytest

from node.transports.dial_guard import DialGuard
from node.transports.grpc_transport import GrpcTransport
from protocol.errors import UnavailableError

OUTSIDE = "8.8.8.8:50700"

NAMES = {
    "run.example": ["9.9.9.9"],
    "six.example": ["2606:4700:4700::1111"],
    "rebound.example": ["10.0.0.1"],
    "both.example": ["9.9.9.9", "192.168.1.1"],
    "coordinator.example": ["8.8.8.8"],
}


async def resolve(host: str) -> list[str]:
    if host not in NAMES:
        raise OSError(-2, "Name or service not known")
    return NAMES[host]


def guard(coordinator: str = OUTSIDE, *, private: bool = False) -> DialGuard:
    return DialGuard(coordinator, private=private, resolve=resolve)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:22",
        "10.1.2.3:80",
        "192.168.1.1:80",
        "169.254.169.254:80",
        "100.64.0.7:80",
        "0.0.0.0:80",
        "224.0.0.1:80",
        "[::1]:80",
        "[fe80::1]:80",
        "[fd00::1]:80",
        "[::ffff:10.0.0.1]:80",
        "[64:ff9b::a00:1]:80",
        "[2002:a00:1::]:80",
        "rebound.example:80",
        "both.example:80",
        "/ip4/192.168.1.1/tcp/80/p2p/ID",
        "/dns4/rebound.example/tcp/80/p2p/ID",
    ],
)
async def test_no_private_address_is_dialled_when_the_coordinator_is_outside(address: str) -> None:
    with pytest.raises(UnavailableError, match="--dial-private"):
        await guard().checked(address)
    assert await guard(private=True).checked(address) == address
    assert await guard("192.168.1.7:50700").checked(address) == address
    assert await guard("127.0.0.1:50700").checked(address) == address


@pytest.mark.parametrize(
    ("address", "dialled"),
    [
        ("9.9.9.9:1", "9.9.9.9:1"),
        ("[2606:4700:4700::1111]:1", "[2606:4700:4700::1111]:1"),
        ("run.example:1", "9.9.9.9:1"),
        ("six.example:1", "[2606:4700:4700::1111]:1"),
        ("/ip4/9.9.9.9/tcp/1/p2p/ID", "/ip4/9.9.9.9/tcp/1/p2p/ID"),
        ("/p2p/ID", "/p2p/ID"),
    ],
)
async def test_a_name_is_dialled_at_the_address_that_was_checked(
    address: str, dialled: str
) -> None:
    assert await guard().checked(address) == dialled
    assert await guard("coordinator.example:50700").checked(address) == dialled


async def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"nobody\.example has no address"):
        await guard().checked("nobody.example:80")


async def test_the_link_is_not_even_begun() -> None:
    reached = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = GrpcTransport("127.0.0.1:0", guard=guard())

    async def accept(_: object) -> None:
        return

    await transport.start(accept)
    try:
        with pytest.raises(UnavailableError, match="not dialled"):
            await transport.dial(f"127.0.0.1:{port}")
        assert not reached.is_set()
    finally:
        await transport.stop()
        server.close()
