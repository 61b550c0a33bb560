"""The ranks of a node, each a process: `python -m tests.support.crew RANK COUNT PORT THREADS`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from node.ranks.crew import Crew
from node.ranks.following import FollowingRank
from node.ranks.line import RankLine, RankPatience, loopback_only
from node.ranks.meeting import meet
from node.ranks.orders import Hello
from node.ranks.place import RankPlace
from node.system.malloc import keep_freed_memory

CPU = torch.device("cpu")

MUCH_PATIENCE = RankPatience(silence_s=60.0, order_s=240.0)


def hello_of(rank: int) -> Hello:
    return Hello("a release", {}, f"host-{rank}", "a CPU", "cpu")


@contextmanager
def crew_of(
    count: int,
    threads: int = 1,
    pids: list[int] | None = None,
    patience: RankPatience = MUCH_PATIENCE,
) -> Iterator[Crew]:
    """The crew of a node of this many ranks, of which this process is the first. The variables of
    `loopback_only` must be set. The process ids of the others are added to `pids`.
    """
    torch.set_num_threads(threads * count)
    listener = socket.create_server(("127.0.0.1", 0))
    place = RankPlace(0, count, 0, count, *listener.getsockname())
    command = [sys.executable, "-m", "tests.support.crew"]
    processes = [
        subprocess.Popen([*command, *map(str, (rank, count, place.port, threads))])
        for rank in range(1, count)
    ]

    if pids is not None:
        pids += [process.pid for process in processes]

    def ended() -> dict[int, str]:
        codes = {rank: process.poll() for rank, process in enumerate(processes, 1)}
        return {rank: f"ended with {code}" for rank, code in codes.items() if code is not None}

    try:
        crew = meet(RankLine(place, listener.detach()), CPU, hello_of(0), patience, ended)
        try:
            yield crew
        finally:
            crew.close()
        codes = [process.wait(60) for process in processes]
        assert not any(codes), f"expected all ranks to leave, found exit codes {codes}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    rank, count, port, threads = map(int, sys.argv[1:])
    keep_freed_memory()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    loopback_only()
    torch.set_num_threads(threads)
    line = RankLine(RankPlace(rank, count, rank, count, "127.0.0.1", port))
    FollowingRank(line, CPU).follow(hello_of(rank))
