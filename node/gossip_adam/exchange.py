"""Messages between ranks of a torch process group, in the background of a pass."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from node.exact.process_group import Ranks


class RankMessages:
    """One message to and one from each neighbour of a round, all of one length.

    gloo moves them in threads of its own, nccl in a stream of its own. A neighbour that is gone
    ends the group: a process group cannot lose a rank.
    """

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._group = process_group
        self._works: list[dist.Work] = []
        self._sent: list[Tensor] = []  # kept alive until they have left
        self._received: dict[int, Tensor] = {}

    def begin(self, messages: Mapping[int, Tensor]) -> None:
        """Start sending these messages, by rank, and receiving as many from the same ranks."""
        operations = []
        for rank, message in sorted(messages.items()):
            there = message if self._backend == "nccl" else message.cpu()
            self._sent.append(there)
            self._received[rank] = torch.empty_like(there)
            peer = dist.get_global_rank(self._group, rank) if self._group else rank
            operations += [
                dist.P2POp(dist.isend, there, peer, self._group),
                dist.P2POp(dist.irecv, self._received[rank], peer, self._group),
            ]
        if operations:
            self._works = list(dist.batch_isend_irecv(operations))

    def finish(self) -> dict[int, Tensor]:
        """Wait for all of them: what each rank sent."""
        for work in self._works:
            work.wait()
        received, self._received = self._received, {}
        self._works, self._sent = [], []
        return received

    @property
    def _backend(self) -> str:
        return str(dist.get_backend(self._group))


def mean_of(values: Tensor, ranks: Ranks, process_group: dist.ProcessGroup | None) -> Tensor:
    """The mean over all ranks, float32 [numbers]: one all-reduce."""
    if ranks.count == 1:
        return values.clone()
    on_cpu = dist.get_backend(process_group) != "nccl"
    total = values.to("cpu" if on_cpu else values.device, copy=True)
    dist.all_reduce(total, group=process_group)
    return total.div_(ranks.count).to(values.device)


def first_rank_s(values: Tensor, ranks: Ranks, process_group: dist.ProcessGroup | None) -> Tensor:
    """Rank 0's values, equal to the bit on all ranks: one broadcast. float32 [numbers]."""
    if ranks.count == 1:
        return values.clone()
    on_cpu = dist.get_backend(process_group) != "nccl"
    theirs = values.to("cpu" if on_cpu else values.device, copy=True)
    source = dist.get_global_rank(process_group, 0) if process_group else 0
    dist.broadcast(theirs, source, group=process_group)
    return theirs.to(values.device)
