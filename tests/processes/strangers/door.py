"""Attacks on the coordinator's door, and on that of a node: places, connections, calls, keys."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial

from lockstep.service.keys import KEY_NAME, read_key
from protocol import wire_pb2 as wire
from protocol.limits import MEMBERS_MAX
from tests.processes.siege.frames import OPENING
from tests.processes.strangers.client import Stranger, Target, beating, forever

GHOSTS = 160
"""More than the members that the run may have."""

SILENT_CONNECTIONS = 1200
DUMB_PIPES = 90
RELAYS = 24
GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes.fromhex("16030102000100fc0303") + bytes(500),
    OPENING + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(70_000),
    OPENING + b"\0\0\1\1\4\0\0\0\1\xff" * 1000,
)
"""HTTP/1, a TLS hello, a frame of 16 MB, headers that are none."""

LONG_ADDRESSES = [f"{'a' * 240}:{number}" for number in range(8)]


async def ghosts(target: Target) -> None:
    """F7: keys that only beat, more than there are places, and are never ready."""

    async def haunt() -> None:
        stranger = target.stranger()
        try:
            await stranger.hello()
            await stranger.hear("welcome")
            target.did["welcomed"] += 1
            async with beating(stranger):
                await stranger.hear("refused", "evicted")
                target.did["put out"] += 1
        finally:
            await stranger.close()

    await asyncio.gather(*(forever(haunt, target) for _ in range(GHOSTS)))


async def joins(target: Target) -> None:
    """F7, F9: keys with long texts that join, leave and are made anew without end."""

    async def join() -> None:
        stranger = target.stranger()
        try:
            await stranger.hello(addresses=LONG_ADDRESSES)
            await stranger.say(leave=wire.Leave(reason="x" * 256))
            await stranger.call.read()
            target.did["joined"] += 1
        finally:
            await stranger.close()

    await asyncio.gather(*(forever(join, target) for _ in range(8)))


async def receipts(target: Target) -> None:
    """F9: receipts of 4096 payloads of a round far away, and wrong states, without end."""
    digests = [secrets.token_bytes(32) for _ in range(MEMBERS_MAX)]

    async def lie() -> None:
        stranger = target.stranger()
        try:
            await stranger.hello()
            while True:
                await stranger.say(holding=wire.Holding(round=10**9, digests=digests))
                await stranger.say(applied=wire.Applied(round=0, state_digest=1))
                target.did["receipts"] += 1
        finally:
            await stranger.close()

    await forever(lie, target)


async def silent_connections(target: Target) -> None:
    """F10: more connections than a process usually has descriptors; half of them say half of what
    opens HTTP/2, and all say nothing more.
    """
    host, _, port = target.behind.rpartition(":")
    with contextlib.ExitStack() as opened:
        for number in range(SILENT_CONNECTIONS):
            silent = socket.create_connection((host, int(port)), 10, (target.host, 0))
            opened.enter_context(silent)
            if number % 2:
                silent.sendall(OPENING)
            target.did["connected"] += 1
            await asyncio.sleep(0)

        async def knock() -> None:
            visitor = Stranger(target.behind, target.run_id)
            try:
                async with asyncio.timeout(5):
                    await visitor.connect()
                target.did["others let in"] += 1
            finally:
                await visitor.close()
            await asyncio.sleep(0.5)

        await forever(knock, target)


async def relay_places(target: Target) -> None:
    """F11: more relays than there are places, which neither beat nor relay."""

    async def sit() -> None:
        stranger = target.stranger()
        try:
            await stranger.hello(relay=True)
            heard = await stranger.hear("welcome", "refused")
            target.did[str(heard.WhichOneof("kind"))] += 1
            await stranger.hear("evicted")
        finally:
            await stranger.close()

    await asyncio.gather(*(forever(sit, target) for _ in range(RELAYS)))


async def node_ports(target: Target) -> list[str]:
    """The ports on which nodes listen, as anybody is told."""
    asking = target.stranger()
    members = (await asking.stub.GetMembers(wire.GetMembersRequest())).members
    await asking.close()
    return [member.addresses[0].rpartition(":")[2] for member in members if member.addresses]


async def dumb_pipes(target: Target) -> None:
    """F14: connections to each node's port that say nothing, opened again when they are cut."""

    async def stare(port: str) -> None:
        await say(target, port, OPENING)

    ports = await node_ports(target)
    await asyncio.gather(
        *(forever(partial(stare, port), target) for port in ports for _ in range(DUMB_PIPES))
    )


async def garbage(target: Target) -> None:
    """F31: HTTP/1, a TLS hello, broken and huge frames, random bytes, at every port."""

    async def throw(port: str) -> None:
        for told in (*GARBAGE, secrets.token_bytes(100_000)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await say(target, port, told)

    ports = [*await node_ports(target), target.behind.rpartition(":")[2]]
    await asyncio.gather(*(forever(partial(throw, port), target) for port in ports * 16))


async def say(target: Target, port: str, told: bytes) -> None:
    """Open a connection, say something, and listen until the other end closes it."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(port), local_addr=(target.host, 0)
    )
    try:
        writer.write(told)
        target.did["connected"] += 1
        while await reader.read(1024):
            pass
    finally:
        writer.close()


async def calls(target: Target) -> None:
    """F15: 64 callers without a pause, and sessions without a hello."""
    stranger = target.stranger()

    kinds: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: stranger.stub.GetStatus(wire.GetStatusRequest(), timeout=20),
        lambda: stranger.stub.GetCommits(wire.GetCommitsRequest(after_round=-1), timeout=20),
        lambda: stranger.stub.GetMembers(wire.GetMembersRequest(), timeout=20),
        lambda: stranger.stub.Session(wait_for_ready=True).read(),
    )

    async def counted(call: Callable[[], Awaitable[object]]) -> None:
        await call()
        target.did["answered"] += 1

    await asyncio.gather(
        *(forever(partial(counted, kind), target) for kind in kinds for _ in range(16))
    )


async def unread_sessions(target: Target) -> None:
    """F16: one key that opens session after session and reads none."""
    stranger = target.stranger()
    kept = []

    async def join() -> None:
        await stranger.hello()
        kept.append(stranger.call)
        target.did["hellos"] += 1

    await forever(join, target)


async def copied_key(target: Target) -> None:
    """F25: the key of a node at work, on another machine."""
    key = read_key(target.directory / "node-0" / KEY_NAME)

    async def impersonate() -> None:
        copy = target.stranger(key)
        try:
            await copy.hello(name="the copy")
            heard = await copy.hear("welcome", "refused")
            target.did[str(heard.WhichOneof("kind"))] += 1
        finally:
            await copy.close()

    await asyncio.gather(*(forever(impersonate, target) for _ in range(4)))
