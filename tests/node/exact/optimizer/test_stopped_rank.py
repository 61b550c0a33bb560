"""A rank that makes no further step, over a store that forgets what it was told, as torchrun's."""

import multiprocessing
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from tests.node.exact.optimizer.pair import Training


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_rank(rank: int, ranks: int, port: int, folder: str, stays: bool) -> None:
    """The last rank makes one step less than the others; then it ends, or stays without a step."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    seconds = 6 if stays else 120
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    mine = Training(rank)
    mine.step()
    if rank == ranks - 1:
        while stays and len([*Path(folder).glob("*.txt")]) < ranks - 1:
            time.sleep(0.02)
        return
    mine.backward()
    said = mine.refused()
    Path(folder, "said.tmp").with_suffix(f".{rank}").write_text(said)
    Path(folder, "said.tmp").with_suffix(f".{rank}").rename(Path(folder, f"{rank}.txt"))
    while len([*Path(folder).glob("*.txt")]) < ranks - 1:  # the store is that of rank 0
        time.sleep(0.02)


def sentences(folder: Path, ranks: int, *, stays: bool) -> list[str]:
    """What each rank but the last says of its second step."""
    context = multiprocessing.get_context("spawn")
    number = port()
    processes = [
        context.Process(target=run_rank, args=(rank, ranks, number, str(folder), stays))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [(folder / f"{rank}.txt").read_text() for rank in range(ranks - 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stays"), [(3, False), (2, True)])
def test_a_rank_that_has_stopped_making_steps_is_named(
    tmp_path: Path, ranks: int, stays: bool
) -> None:
    for said in sentences(tmp_path, ranks, stays=stays):
        assert said.startswith(
            "UnavailableError: expected a step of all ranks, but "
            f"rank {ranks - 1} has stopped making steps ("
        )
