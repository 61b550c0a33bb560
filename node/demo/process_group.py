"""The ranks of a torch process group, or one process alone, and their exchange in a step."""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    # The first optimizer of a process imports this module, whose default arguments keep the
    # default process group of that moment alive: gloo's threads then outlive
    # `destroy_process_group` and may abort a Python that is exiting. Imported here, before there
    # is a group, it keeps nothing.
    import torch.distributed.nn.functional


class Ranks:
    """A process group; None stands for the default one, or for this process alone if there is
    none.
    """

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._group = process_group

    @property
    def count(self) -> int:
        return dist.get_world_size(self._group) if self._connected else 1

    @property
    def mine(self) -> int:
        """This process's rank."""
        return dist.get_rank(self._group) if self._connected else 0

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor, of one shape and dtype, by rank, on the CPU."""
        if self.count == 1:
            return [tensor]
        on_cpu = dist.get_backend(self._group) != "nccl"
        tensor = tensor.to("cpu" if on_cpu else torch.device("cuda", torch.cuda.current_device()))
        everybody = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(everybody, tensor, group=self._group)
        return [other.cpu() for other in everybody]

    def exchange(
        self, payloads: Sequence[bytes], flags: Sequence[bool]
    ) -> tuple[list[list[bytes]], list[bool]]:
        """Everybody's payloads by rank, and for each flag whether any rank has it set.

        Payloads may differ in length, but their number and that of the flags are equal on all
        ranks. Two collectives: the first exchanges sizes and flags, the second the bytes, padded to
        the longest.
        """
        sizes = [len(payload) for payload in payloads]
        told = torch.stack(self.all_gather(torch.tensor([*sizes, *flags], dtype=torch.int64)))
        lengths = told[:, : len(payloads)]
        # At least one byte, as some backends refuse empty tensors.
        padded = bytearray(b"".join(payloads).ljust(max(1, int(lengths.sum(1).max())), b"\0"))
        blobs = self.all_gather(torch.frombuffer(padded, dtype=torch.uint8))
        everybody = [
            _cut(blob.numpy().tobytes(), row)
            for blob, row in zip(blobs, lengths.tolist(), strict=True)
        ]
        return everybody, told[:, len(payloads) :].any(dim=0).tolist()

    @property
    def _connected(self) -> bool:
        return dist.is_available() and dist.is_initialized()


def _cut(blob: bytes, lengths: Sequence[int]) -> list[bytes]:
    """The first pieces of a blob, of these lengths."""
    return [
        blob[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)
    ]
