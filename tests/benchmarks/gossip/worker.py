"""One node's gossip, and the naive push beside it, as a process that obeys orders line by line.

    python -m tests.benchmarks.gossip.worker PLACE-AS-JSON       {"number", "host", "kinds", ...}

    <- {"peer", "addresses", "push"}                             it listens
    -> {"meet": {peer: addresses}, "push": [[host, port], ...]}  <- {}, once it is linked to all
    -> {"gossip": ROUND, "at_ns": ...}                           <- {"seconds"}, once it holds all
    -> {"settle": ROUND}                                         <- {}, its payloads are deleted
    -> {"push": SIZE, "at_ns": ...}                              <- {"seconds"}, once all others
                                                                    hold its payload
    -> {"statistics": null}                                      <- the `Statistics` of its links
    -> the end of standard input                                 it stops

The swarm, its links and its log are those of a node; there is no coordinator and no training. Times
are of the monotonic clock, which all processes of a machine share, and begin at the common instant
`at_ns`.
"""

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.service.signals import run_event_loop
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.mesh import Mesh
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.system.malloc import keep_freed_memory
from node.transports.factory import make_transports
from protocol.handshake import public_bytes
from protocol.ids import Digest, RunId, parse_peer_id, peer_id
from tests.benchmarks.wan.slow_motion import slow_waits
from tests.support.unchecked import Unchecked

RUN = RunId("ab" * 16)

LOG_BYTES_MAX = 1 << 30
"""Limit of the log, larger than any round here; settled payloads are deleted at once."""

LINK_S = 90
"""Longest time until all nodes are linked to all: libp2p's daemons start slowly on a busy
machine."""

ROUND_S = 300
"""Longest round; the longest that is measured, a push through a thin uplink, takes a minute."""

_LENGTH_BYTES = 8
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Number, address and settings of one node."""

    number: int
    host: str
    """Address to listen at."""
    kinds: tuple[str, ...]
    """Transports of the gossip; the push has streams of its own."""
    neighbours: int
    size: int
    """Bytes of a payload."""
    slowed: int = 1
    """Factor by which lines are slower than life."""


class Push:
    """One end of the naive push: a TCP connection to each other node, kept open.

    Not gRPC: sixteen of its calls on one thin uplink delay each other's keepalive until it closes
    them.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._server: asyncio.Server | None = None
        self._streams = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        self._taken = dict[asyncio.Task[None], asyncio.StreamWriter]()

    async def start(self) -> tuple[str, int]:
        """Listen; returns host and port."""
        self._server = await asyncio.start_server(self._take, self._host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return self._host, port

    async def connect(self, host: str, port: int) -> None:
        """Open the stream to one more node."""
        self._streams.append(await asyncio.open_connection(host, port))

    async def push(self, blob: bytes) -> None:
        """Send a blob to all at once; returns when all have it."""
        await asyncio.gather(*(self._send(*stream, blob) for stream in self._streams))

    async def stop(self) -> None:
        """Stop."""
        if self._server:
            self._server.close()
        for writer in (*(writer for _, writer in self._streams), *self._taken.values()):
            writer.close()
        await asyncio.gather(*self._taken)

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, blob: bytes
    ) -> None:
        writer.write(len(blob).to_bytes(_LENGTH_BYTES, "big") + blob)
        await writer.drain()
        await reader.readexactly(1)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task, "asyncio runs it as one"
        self._taken[task] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                left = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                while left:
                    left -= len(await reader.readexactly(min(left, _READ_BYTES)))
                writer.write(b"k")


class Worker:
    """The node of one place."""

    def __init__(self, place: Place, directory: Path) -> None:
        self._place = place
        key = Ed25519PrivateKey.from_private_bytes(bytes([place.number + 1] * 32))
        self._peer = peer_id(public_bytes(key))
        transports = make_transports(place.kinds, key, f"{place.host}:0", (), ())
        self._mesh = Mesh(
            Identity(key, RUN, place.number), transports, Uplink(None, clock_ms), clock_ms
        )
        self._swarm = Swarm(
            self._peer,
            RUN,
            SwarmLimits(place.size, place.neighbours),
            log=PayloadLog(directory, 1, LOG_BYTES_MAX),
            network=self._mesh,
            check=Unchecked(),
            key=key,
            report_holding=self._report_holding,
            clock_ms=clock_ms,
        )
        self._push = Push(place.host)
        self._others = 0
        self._held: dict[int, set[Digest]] = {}
        self._news = asyncio.Event()

    async def start(self) -> dict[str, Any]:
        """Listen, for the gossip and for the push."""
        return {
            "peer": self._peer,
            "addresses": await self._swarm.start(),
            "push": await self._push.start(),
        }

    async def stop(self) -> None:
        """Stop."""
        await self._swarm.stop()
        await self._push.stop()

    async def obey(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Obey one order."""
        match order:
            case {"meet": members, "push": addresses}:
                await self._meet(members, addresses)
            case {"gossip": int(round), "at_ns": int(at_ns)}:
                return {"seconds": await self._gossip(round, at_ns)}
            case {"settle": int(round)}:
                self._swarm.settle(round, ())
            case {"push": int(size), "at_ns": int(at_ns)}:
                return {"seconds": await self._pushed(size, at_ns)}
            case {"statistics": None}:
                return self._swarm.statistics.document()
            case _:
                raise ValueError(f"expected an order of gossip_worker, got {order}")
        return {}

    async def _meet(
        self, members: Mapping[str, Sequence[str]], push: Sequence[tuple[str, int]]
    ) -> None:
        self._swarm.set_members(
            {parse_peer_id(peer): tuple(addresses) for peer, addresses in members.items()}
        )
        self._others = len(members) - 1
        await asyncio.gather(*(self._push.connect(host, port) for host, port in push))
        async with asyncio.timeout(LINK_S):
            while len(self._mesh.links) < self._others:  # noqa: ASYNC110 (only the swarm hears of links)
                await asyncio.sleep(0.05)

    async def _gossip(self, round: int, at_ns: int) -> float:
        payload = random.Random(f"{self._place.number} of {round}").randbytes(self._place.size)
        held = self._held[round] = set()
        self._swarm.open(round)
        await _until(at_ns)
        async with asyncio.timeout(ROUND_S):
            await self._swarm.publish(round, payload)
            while len(held) < self._others:
                self._news.clear()
                await self._news.wait()
        return _seconds_since(at_ns)

    async def _pushed(self, size: int, at_ns: int) -> float:
        await _until(at_ns)
        async with asyncio.timeout(ROUND_S):
            await self._push.push(bytes(size))
        return _seconds_since(at_ns)

    def _report_holding(self, round: int, digests: list[Digest]) -> None:
        self._held[round].update(digests)
        self._news.set()


def clock_ms() -> int:
    """As a node's own."""
    return time.monotonic_ns() // 1_000_000


async def _until(at_ns: int) -> None:
    await asyncio.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))


def _seconds_since(at_ns: int) -> float:
    return (time.monotonic_ns() - at_ns) / 1e9


async def _serve(place: Place) -> None:
    keep_freed_memory()
    slow_waits(place.slowed)
    with tempfile.TemporaryDirectory() as directory:
        worker = Worker(place, Path(directory))
        try:
            _say(await worker.start())
            while line := await asyncio.to_thread(sys.stdin.readline):
                _say(await worker.obey(json.loads(line)))
        except Exception as error:
            _say({"error": f"node {place.number}: {type(error).__name__}: {error}"})
        finally:
            await worker.stop()


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_event_loop(_serve(Place(**json.loads(sys.argv[1]))))
