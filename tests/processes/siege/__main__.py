"""Plays one attack in a process of its own: `python -m tests.processes.siege NAME`.

It says "ready", reads the ports and the seconds as a line of JSON from its standard input, attacks,
and prints what it did as a line of JSON.
"""

import asyncio
import json
import os
import resource
import sys
import threading
from collections import Counter

import uvloop

from tests.processes.siege.attacks import COORDINATOR, PAUSE_S, PEER, Spot, Work
from tests.processes.siege.catalogue import ALL

DESCRIPTORS = 20_000
"""Files that the attackers may have open."""

STEP = 200
"""Connections that are opened at once."""

NETWORKS_MAX = 1000
"""Networks of one attack."""


async def again(work: Work, spot: Spot) -> None:
    """Come again when it was cut."""
    while True:
        spot.did["came"] += 1
        try:
            await work(spot)
        except (OSError, EOFError, TimeoutError):
            spot.did["turned away"] += 1
        await asyncio.sleep(PAUSE_S)


def spots(name: str, ports: dict[str, str]) -> list[Spot]:
    """The places of all connections; the ports take turns. No attack has the networks of another
    one: some come in no more for a while.
    """
    attack, first = ALL[name], NETWORKS_MAX * list(ALL).index(name)
    did, found = Counter[str](), []
    for number in range(attack.connections):
        source = attack.source(first + number % attack.networks)
        host = "::1" if ":" in source else "127.0.0.1"
        for process, port in ports.items():
            if process == "coordinator" or not attack.coordinator_only:
                paths = COORDINATOR if process == "coordinator" else PEER
                found.append(Spot((host, int(port)), paths, source, number, did))
    return found


async def play(name: str, ports: dict[str, str], seconds: float) -> None:
    """One attack, at whose end all connections vanish, however late the loop is by then."""
    places = spots(name, ports)

    def end() -> None:
        print(json.dumps(places[0].did), flush=True)
        os._exit(0)

    threading.Timer(seconds, end).start()
    async with asyncio.TaskGroup() as crowd:
        for number, spot in enumerate(places):
            crowd.create_task(again(ALL[name].work, spot))
            if number % STEP == STEP - 1:
                await asyncio.sleep(PAUSE_S / 4)


def main() -> None:
    """Wait for the ports, then attack."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
    print("ready", flush=True)
    told = json.loads(sys.stdin.readline())
    uvloop.run(play(sys.argv[1], told["ports"], told["seconds"]))


if __name__ == "__main__":
    main()
