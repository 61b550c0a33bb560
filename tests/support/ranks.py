"""Processes of torch.distributed over gloo, on the loopback interface alone."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def join_group(rank: int, folder: str, *, ranks: int, timeout_s: float) -> None:
    """Join the process group of this many ranks that meet in a folder, with one thread each."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout_s),
    )
