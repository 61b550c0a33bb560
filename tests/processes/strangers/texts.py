"""Attacks by texts: names, addresses and reasons that command a terminal or forge a line."""

import asyncio

from protocol import wire_pb2 as wire
from tests.processes.strangers.client import Target, beating, forever

FORGED = "journal is lost"
"""The end of a line that a stranger would like in a log."""

LINE = f"127.0.0.1:1\n2026-01-01 00:00:00,000 ERROR lockstep.coordinator {FORGED}"
MARKUP = "[/x]"
ESCAPES = "\x1b]0;owned\x07\x1b[2J"


async def texts(target: Target) -> None:
    """F20, F23: control characters and forged lines in every text that a stranger may say, and
    markup as the name of a ready member.
    """
    told = (
        {"name": ESCAPES},
        {"addresses": [LINE], "relay": True},
        {"hardware": LINE},
        {"cannot_train": LINE},
        {"token": ESCAPES},
        {"run_id": LINE},
    )

    async def say() -> None:
        for fields in told:
            stranger = target.stranger()
            try:
                await stranger.hello(**fields)
                heard = await stranger.hear("refused", "welcome")
                target.did[str(heard.WhichOneof("kind"))] += 1
                await stranger.say(leave=wire.Leave(reason=LINE))
            finally:
                await stranger.close()

    async def marked() -> None:
        stranger = target.stranger()
        try:
            await stranger.join_ready(name=MARKUP, hardware="[link=file:///etc]x[/link]")
            target.did["ready with markup"] += 1
            async with beating(stranger):
                await stranger.hear("evicted", "refused")
        finally:
            await stranger.close()

    await asyncio.gather(forever(marked, target), *(forever(say, target) for _ in range(4)))
