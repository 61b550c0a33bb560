"""A rank of a test: `python -m tests.node.ranks.follower RANK COUNT PORT`."""

import sys

import torch

from node.ranks.following import FollowingRank
from node.ranks.line import RankLine, loopback_only
from node.ranks.orders import Hello
from node.ranks.place import RankPlace


def hello_of(rank: int) -> Hello:
    return Hello("a release", {}, f"host-{rank}", "a CPU", "cpu")


if __name__ == "__main__":
    rank, count, port = map(int, sys.argv[1:])
    loopback_only()
    torch.set_num_threads(1)
    line = RankLine(RankPlace(rank, count, rank, count, "127.0.0.1", port))
    FollowingRank(line, torch.device("cpu")).follow(hello_of(rank))
