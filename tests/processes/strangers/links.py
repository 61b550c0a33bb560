"""Attacks of a stranger that is linked to the nodes: places, payloads, addresses, reading."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec

from node.links.network import BlobRange, Purpose
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.codec.payload_header import read_header
from protocol.ids import Digest, peer_id, sha256
from tests.processes.strangers.client import FAILURES, Target, beating, forever
from tests.processes.strangers.linked import Attacker, honest_nodes, linked
from tests.processes.strangers.rounds import ABSURD_LOSS

VERSION_2 = b"LSP1\x02\x00\x91\x02"
"""A whole payload of another protocol version: once it ended every node, for ever."""

VICTIMS = 8
"""Keys that announce a victim's address."""

READERS = 32
AHEAD = 4
"""Rounds ahead of the head for which places are taken."""

Part = Callable[[Attacker, wire.RoundOpened], Awaitable[None]]


async def linked_member(target: Target, part: Part) -> None:
    """Be ready and linked to all, and play a part in every round, until the session ends."""
    async with linked(target, ready=True) as attacker, beating(attacker.stranger):
        target.did["linked"] += 1
        async for opened in attacker.stranger.opened():
            target.did["asked to work"] += 1
            await part(attacker, opened)


async def other_version(target: Target) -> None:
    """F1: an 8-byte payload of another protocol version, announced, offered and served."""

    async def poison(attacker: Attacker, opened: wire.RoundOpened) -> None:
        await attacker.publish(opened.round, VERSION_2)
        target.did["published"] += 1

    await forever(lambda: linked_member(target, poison), target)


async def noise(target: Target) -> None:
    """F12: 400 random bytes as payload, announced as the largest that the run allows, with a loss
    beyond all bounds.
    """

    async def publish(attacker: Attacker, opened: wire.RoundOpened) -> None:
        payload = secrets.token_bytes(400)
        await attacker.publish(opened.round, payload, payload_bytes=10_000, loss=ABSURD_LOSS)
        target.did["published"] += 1

    await forever(lambda: linked_member(target, publish), target)


async def copies(target: Target) -> None:
    """F18: each round's first honest payload once more, first byte for byte, in the next round
    with the attacker's own name in it and the highest loss that is taken.
    """

    async def copy(attacker: Attacker, opened: wire.RoundOpened) -> None:
        async with asyncio.timeout(10):
            payload = await first_payload(attacker, opened.round)
        own = bytes.fromhex(attacker.stranger.peer)
        author = bytes.fromhex(read_header(payload).author)
        exact = target.did["copied"] % 2
        losses = (1e4, ABSURD_LOSS)
        told = payload if exact else payload.replace(author, own, 1)
        await attacker.publish(opened.round, told, loss=losses[target.did["copied"] // 2 % 2])
        target.did["copied"] += 1

    await forever(lambda: linked_member(target, copy), target)


async def first_payload(attacker: Attacker, round: int) -> bytes:
    """The first payload of a round that an honest node offers."""
    while True:
        offers = await attacker.heard.get()
        source = next((each for each in attacker.honest if each.peer_id == offers.sender), None)
        for offer in offers.offers:
            if source and offer.round == round and peer_id(offer.author_key) == offers.sender:
                blob = BlobRange(Digest(offer.digest))
                parts = attacker.mesh.fetch(source, blob, Purpose.PAYLOAD)
                return b"".join([part.data async for part in parts])


async def heads(attacker: Attacker) -> AsyncIterator[int]:
    """The newest committed round, again and again."""
    while True:
        request = wire.GetCommitsRequest(after_round=10**9)
        yield (await attacker.stranger.stub.GetCommits(request)).head_round
        await asyncio.sleep(0.05)


async def places(target: Target) -> None:
    """F6: offers of payloads that do not exist, unsigned ones and eight of one author in each
    round, by a key that is not ready.
    """

    async def fill() -> None:
        async with linked(target, ready=False) as attacker, beating(attacker.stranger):
            async for head in heads(attacker):
                for round in range(head + 1, head + 1 + AHEAD):
                    digests = [sha256(secrets.token_bytes(8)) for _ in range(8)]
                    unsigned = [
                        wire.OfferedPayload(round=round, digest=digest, payload_bytes=400)
                        for digest in digests
                    ]
                    own = [attacker.signed(round, digest, 400) for digest in digests]
                    await attacker.offer(*own, *unsigned)
                    target.did["offers"] += 16

    await forever(fill, target)


async def wrong_sizes(target: Target) -> None:
    """F20: offers of an honest payload with ever other sizes, and of own ones with impossible
    sizes, as fast as they are taken.
    """

    async def lie() -> None:
        async with linked(target, ready=True) as attacker, beating(attacker.stranger):
            size = 0
            async for head in heads(attacker):
                for _ in range(50):
                    size += 1
                    sizes = size, 2**40 + size, 0
                    digest = sha256(size.to_bytes(8))
                    own = [attacker.signed(head + 1, digest, each) for each in sizes]
                    await attacker.offer(*own)
                    target.did["offers"] += len(own)

    await forever(lie, target)


async def reading(target: Target) -> None:
    """F21: a key that is no member and reads old payloads without end."""
    stranger = target.stranger()
    attacker = Attacker(stranger)
    await attacker.mesh.start(attacker)
    try:
        attacker.honest = await honest_nodes(stranger)
        reply = await stranger.stub.GetCommits(wire.GetCommitsRequest(after_round=-1))
        bodies = [msgspec.msgpack.decode(row.body, type=Commit) for row in reply.commits]
        digests = [entry.digest for commit in bodies for entry in commit.entries]

        async def read(number: int) -> None:
            for digest in digests[number:] + digests[:number]:
                source = attacker.honest[number % len(attacker.honest)]
                with contextlib.suppress(*FAILURES):
                    parts = attacker.mesh.fetch(source, BlobRange(digest), Purpose.CATCH_UP)
                    target.did["bytes"] += sum([len(part.data) async for part in parts])
                    target.did["payloads read"] += 1

        await asyncio.gather(*(forever(partial(read, number), target) for number in range(READERS)))
    finally:
        await attacker.mesh.stop()
        await stranger.close()


async def addresses(target: Target) -> None:
    """F13: ready keys whose addresses are those of a victim, which counts who dials it."""

    def dialled(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target.did["victim dialled"] += 1
        writer.close()

    victims = [await asyncio.start_server(dialled, host, 0) for host in ("127.0.0.1", "127.0.0.77")]
    hosts = [victim.sockets[0].getsockname() for victim in victims]
    told = [f"{host}:{port}" for host, port in hosts for _ in range(4)]

    async def point() -> None:
        stranger = target.stranger()
        try:
            await stranger.join_ready(addresses=told)
            target.did["ready"] += 1
            async with beating(stranger):
                await stranger.hear("evicted", "refused")
        finally:
            await stranger.close()

    try:
        await asyncio.gather(*(forever(point, target) for _ in range(VICTIMS)))
    finally:
        for victim in victims:
            victim.close()
