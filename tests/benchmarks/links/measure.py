"""Measures one kind of link at one distance, each node in a process of its own."""

import asyncio
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.links.carriers import Carrier, make, port_of, through
from tests.benchmarks.links.delay import delayed
from tests.benchmarks.spread import spread

MB = 1_000_000
STREAM_MB = (8, 1)  # the larger first: flow-control windows grow with use
GATHER_NODES = 8
GATHER_BYTES = MB
WARM_UP = 3
"""Number of unmeasured repeats before measured ones: windows grow, code is loaded."""

ANSWER_S = 300
BASELINE = "hivemind"


def measure(kind: str, round_trip_ms: float, repeats: int, nodes: int) -> dict[str, Any]:
    """All four figures of one kind at one distance."""
    with linked(kind, round_trip_ms, 2) as (one, other):
        calls = one.ask("calls", 10 * repeats)
        streams = {str(size): one.ask("carries", size * MB, repeats) for size in STREAM_MB}
        before = cpu_seconds(one.pid) + cpu_seconds(other.pid)
        one.ask("carries", max(STREAM_MB) * MB, repeats)
        used = cpu_seconds(one.pid) + cpu_seconds(other.pid) - before
    with linked(kind, round_trip_ms, nodes) as everyone:
        gathers = [
            _seconds(lambda: _all(everyone, "gather", GATHER_BYTES))
            for _ in range(WARM_UP + repeats)
        ]
    return {
        "small_call_ms": spread([1e3 * seconds for seconds in calls]),
        "stream_mb_per_s": {
            size: spread([int(size) / seconds for seconds in times])
            for size, times in streams.items()
        },
        "cpu_ms_per_mb": 1e3 * used / (max(STREAM_MB) * (WARM_UP + repeats)),
        "all_gather_ms": spread([1e3 * seconds for seconds in gathers[WARM_UP:]]),
    }


# ---- processes


class Node:
    """A carrier in a process of its own that obeys orders."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_node, args=(kind, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process.pid
        return self._process.pid

    def tell(self, *order: Any) -> None:
        """Give an order."""
        self._connection.send(order)

    def answer(self) -> Any:
        """The answer; raises the node's error."""
        if not self._connection.poll(ANSWER_S):
            raise TimeoutError(f"a node did not answer within {ANSWER_S} s")
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, *order: Any) -> Any:
        """Give an order and wait for the answer."""
        self.tell(*order)
        return self.answer()

    def stop(self) -> None:
        """Stop it, by force if necessary."""
        self.tell("stop")
        self._process.join(10)
        self._process.kill()
        self._process.join()


@contextmanager
def linked(kind: str, round_trip_ms: float, count: int) -> Iterator[list[Node]]:
    """Nodes, each linked to all others over that distance; with two, the first to the second."""
    nodes = [Node(kind) for _ in range(count)]
    try:
        addresses: list[str] = _all(nodes, "start")
        with delayed([port_of(address) for address in addresses], round_trip_ms) as ports:
            far = [through(address, port) for address, port in zip(addresses, ports, strict=True)]
            dialling = nodes if count > 2 else nodes[:1]
            for node in dialling:
                node.tell(
                    "connect",
                    [there for other, there in zip(nodes, far, strict=True) if other is not node],
                )
            for node in dialling:
                node.answer()
            yield nodes
    finally:
        for node in nodes:
            node.stop()


def _all(nodes: Sequence[Node], *order: Any) -> list[Any]:
    """Give all nodes an order at once and wait for their answers."""
    for node in nodes:
        node.tell(*order)
    return [node.answer() for node in nodes]


def _node(kind: str, connection: Connection) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(kind, connection))
    else:
        uvloop.run(_serve(kind, connection))


async def _serve(kind: str, connection: Connection) -> None:
    carrier = make(kind, tuple({GATHER_BYTES, *(size * MB for size in STREAM_MB)}))
    peers: list[str] = []
    try:
        while True:
            order, *values = await asyncio.to_thread(connection.recv)
            if order == "stop":
                break
            try:
                connection.send(await _obey(carrier, peers, order, values))
            except Exception as error:
                connection.send(RuntimeError(f"{kind} {order}: {type(error).__name__}: {error}"))
    finally:
        await carrier.stop()


async def _obey(carrier: Carrier, peers: list[str], order: str, values: list[Any]) -> Any:
    match order, values:
        case "start", []:
            return await carrier.start()
        case "connect", [addresses]:
            peers += addresses
            await asyncio.gather(*(carrier.connect(address) for address in addresses))
        case "calls", [repeats]:
            return await _timed(lambda: carrier.call(peers[0]), repeats)
        case "carries", [size, repeats]:
            return await _timed(lambda: carrier.carry(peers[0], size), repeats)
        case "gather", [size]:
            await asyncio.gather(*(carrier.carry(peer, size) for peer in peers))
    return None


async def _timed(work: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each repeat after the unmeasured ones."""
    seconds = []
    for _ in range(WARM_UP + repeats):
        started = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:]


# ---- figures


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of its children that are alive."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children")
    threads = Path(f"/proc/{pid}/task").glob("*/children") if children.exists() else []
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(
        cpu_seconds(int(child)) for thread in threads for child in thread.read_text().split()
    )


def ratios(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ratios of the baseline to each kind at each distance; above 1 the kind is better."""
    baselines = {row["round_trip_ms"]: row for row in results if row["kind"] == BASELINE}
    rows = []
    for row in results:
        if (base := baselines.get(row["round_trip_ms"])) and row is not base:
            faster = {
                name: base[name]["median"] / row[name]["median"]
                for name in ("small_call_ms", "all_gather_ms")
            }
            streams = {
                size: rate["median"] / base["stream_mb_per_s"][size]["median"]
                for size, rate in row["stream_mb_per_s"].items()
            }
            cpu = base["cpu_ms_per_mb"] / row["cpu_ms_per_mb"] if row["cpu_ms_per_mb"] else None
            names = {"kind": row["kind"], "round_trip_ms": row["round_trip_ms"]}
            rows.append({**names, **faster, "stream_mb_per_s": streams, "cpu_ms_per_mb": cpu})
    return rows


def machine() -> dict[str, Any]:
    """The machine and the versions of the packages."""
    return {
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("grpcio", "hivemind", "uvloop")},
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
