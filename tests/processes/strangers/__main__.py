"""Plays one attack in a process of its own: `python -m tests.processes.strangers NAME HOST`.

It says "ready" when all is imported, reads the target as a line of JSON from its standard input,
attacks for the seconds that stand there, and prints what it did as a line of JSON.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
from pathlib import Path

from protocol.ids import RunId
from tests.processes.strangers.catalogue import ATTACKS
from tests.processes.strangers.client import FAILURES, PAUSE_S, Target
from tests.processes.strangers.outside import forwarded

DESCRIPTORS = 20_000
"""Files that a process of strangers may have open."""


async def play(name: str, host: str, told: dict[str, str], seconds: float) -> None:
    """One attack, then a line that says what the strangers did. They vanish without a word."""
    behind = told["address"]
    async with forwarded(behind, host) as address:
        target = Target(address, behind, RunId(told["run_id"]), host, Path(told["directory"]))

        async def attack() -> None:
            while True:
                with contextlib.suppress(*FAILURES):
                    await ATTACKS[name].work(target)
                await asyncio.sleep(PAUSE_S)

        attacking = asyncio.create_task(attack())
        await asyncio.wait({attacking}, timeout=seconds)
        if attacking.done():
            attacking.result()  # a fault of the attack's own
        print(json.dumps(target.did), flush=True)
        os._exit(0)


def main() -> None:
    """Wait for the target, then attack."""
    _, name, host = sys.argv
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
    print("ready", flush=True)
    told = json.loads(sys.stdin.readline())
    asyncio.run(play(name, host, told, told["seconds"]))


if __name__ == "__main__":
    main()
