"""Attacks with a member's own words: receipts, states, announcements, silence."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from tests.processes.strangers.client import Stranger, Target, beating, forever, going_on

LIARS = 8
"""More than the honest nodes."""

WRONG = 0xBAD
ABSURD_LOSS = 1e308
ABSURD_SAMPLES = 2**40

Part = Callable[[Stranger, wire.RoundOpened], Awaitable[None]]
"""What a member does in a round in which it is asked to work."""


async def nothing(_: Stranger) -> None:
    """No work beside rounds."""


async def member(
    target: Target, part: Part, beside: Callable[[Stranger], Awaitable[None]] = nothing
) -> None:
    """Be ready, and play a part in every round in which there is work, until the session ends; do
    something beside it all the time.
    """
    stranger = target.stranger()
    try:
        await stranger.join_ready()
        target.did["ready"] += 1
        async with beating(stranger), going_on(beside(stranger)):
            async for opened in stranger.opened():
                target.did["asked to work"] += 1
                await part(stranger, opened)
    finally:
        await stranger.close()


async def members(target: Target, count: int, part: Part) -> None:
    """Several members that come again whenever they are put out."""
    await asyncio.gather(*(forever(lambda: member(target, part), target) for _ in range(count)))


async def false_receipts(target: Target) -> None:
    """F2: whoever is asked to work announces a payload that does not exist, and all others say that
    they hold it.
    """
    said = dict[bytes, tuple[int, PeerId]]()

    async def announce(stranger: Stranger, opened: wire.RoundOpened) -> None:
        digest = secrets.token_bytes(32)
        await stranger.announce(opened.round, digest)
        said[digest] = opened.round, stranger.peer
        target.did["announced"] += 1

    async def confirm(stranger: Stranger) -> None:
        told = set(said)
        while True:
            for digest in said.keys() - told:
                round, author = said[digest]
                held = wire.Holding(round=round, digests=[digest], authors=[author])
                await stranger.say(holding=held)
                told.add(digest)
                target.did["confirmed"] += 1
            await asyncio.sleep(0.02)

    await asyncio.gather(
        *(forever(lambda: member(target, announce, confirm), target) for _ in range(LIARS))
    )


async def wrong_states(target: Target) -> None:
    """F3: more keys than honest nodes report one wrong state after every round, half of them from
    their first word on. Those that are told to start over say so at once, and lie again.
    """

    async def lie(*, at_once: bool) -> None:
        stranger = target.stranger()
        try:
            if at_once:
                await stranger.hello()
                head = (await stranger.hear("welcome")).welcome.head_round
                await stranger.ready(head, WRONG)
            else:
                await stranger.join_ready()
            async with beating(stranger):
                await answer(stranger)
        finally:
            await stranger.close()

    async def answer(stranger: Stranger) -> None:
        while True:
            heard = await stranger.hear("committed", "resync", "evicted", "refused")
            match heard.WhichOneof("kind"):
                case "committed":
                    head = await stranger.stub.GetCommits(wire.GetCommitsRequest(after_round=10**9))
                    applied = wire.Applied(round=head.head_round, state_digest=WRONG)
                    await stranger.say(applied=applied)
                    target.did["lies"] += 1
                case "resync":
                    target.did["told to start over"] += 1
                    asked = heard.resync
                    await stranger.ready(asked.round, WRONG, asked.number)
                case _:
                    target.did["put out"] += 1
                    return

    await asyncio.gather(
        *(forever(lambda: lie(at_once=True), target) for _ in range(LIARS // 2)),
        *(forever(lambda: lie(at_once=False), target) for _ in range(LIARS // 2)),
    )


async def mutual_confirmation(target: Target) -> None:
    """F4: two keys announce payloads that do not exist and confirm each other's at once, in each
    round that they hear of, asked or not.
    """
    digests = dict[tuple[int, int], bytes]()

    async def burn(number: int) -> None:
        stranger = target.stranger()
        try:
            round = (await stranger.join_ready()).head_round
            async with beating(stranger):
                while True:
                    heard = await stranger.hear("opened", "committed", "skipped")
                    asked = heard.WhichOneof("kind") == "opened"
                    round = heard.opened.round if asked else round + 1
                    for ahead in range(round, round + 3):
                        own = digests.setdefault((ahead, number), secrets.token_bytes(32))
                        await stranger.announce(ahead, own)
                        other = digests.setdefault((ahead, 1 - number), secrets.token_bytes(32))
                        await stranger.say(holding=wire.Holding(round=ahead, digests=[other]))
                        target.did["confirmed"] += 1
        finally:
            await stranger.close()

    await asyncio.gather(forever(lambda: burn(0), target), forever(lambda: burn(1), target))


async def unavailable_payloads(target: Target) -> None:
    """F5: keys that announce what nobody can fetch, in every round."""

    async def announce(stranger: Stranger, opened: wire.RoundOpened) -> None:
        await stranger.announce(opened.round, secrets.token_bytes(32))
        target.did["announced"] += 1

    await members(target, 4, announce)


async def silence(target: Target) -> None:
    """F5: ready keys that beat and never announce."""

    async def ignore(_: Stranger, __: wire.RoundOpened) -> None:
        target.did["ignored"] += 1

    await members(target, LIARS, ignore)


async def absurd_numbers(target: Target) -> None:
    """F12: announcements of payloads that do not exist, of absurd sizes and losses."""

    async def announce(stranger: Stranger, opened: wire.RoundOpened) -> None:
        size = 10 ** target.did["announced"] % 10**15 or 1
        about = {"payload_bytes": size, "loss": ABSURD_LOSS}
        await stranger.announce(opened.round, secrets.token_bytes(32), **about)
        target.did["announced"] += 1

    await members(target, 4, announce)


async def claimed_speed(target: Target) -> None:
    """F17: all samples of a share in a millisecond, with payloads that nobody can fetch; and more
    samples than were leased.
    """

    async def announce(stranger: Stranger, opened: wire.RoundOpened) -> None:
        leased = sum(share.count for share in opened.shares)
        target.did["samples leased"] += leased
        samples = ABSURD_SAMPLES if target.did["announced"] % 4 == 3 else leased
        about = {"samples": samples, "compute_ms": 1}
        await stranger.announce(opened.round, secrets.token_bytes(32), **about)
        target.did["announced"] += 1

    await members(target, 4, announce)
