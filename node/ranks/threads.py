"""The CPU threads of a machine, which its ranks share.

a pass     each rank has its part, all at once
a step     ranks that have matrices to orthogonalise have all between them: the others wait
else       rank 0 has all, as the others wait for it, and a follower its part
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch

from node.ranks.place import RankPlace


class SharedThreads:
    """One rank's view of them; of one on a card they are its own."""

    def __init__(self, place: RankPlace, device: torch.device) -> None:
        first = place.rank - place.local_rank
        is_shared = device.type == "cpu" and place.local_count > 1
        self._here = range(first, first + place.local_count) if is_shared else range(0)
        self._parts = 1 if place.rank == 0 else place.local_count
        """Parts in all threads that are like the one that this rank has between orders."""

    @contextmanager
    def among(self, ranks: Collection[int]) -> Iterator[None]:
        """Compute with a part of the threads, as each of these ranks of this machine does; nothing
        changes where none of them is here.
        """
        here, threads = sum(rank in self._here for rank in ranks), torch.get_num_threads()
        if not here:
            yield
            return
        torch.set_num_threads(max(1, threads * self._parts // here))
        try:
            yield
        finally:
            torch.set_num_threads(threads)
