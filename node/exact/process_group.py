"""The ranks of a torch process group, or one process alone, and what they gather from each other.

A rank whose process has ended, or that goes on without making steps, makes a collective fail or
time out on the others, and torch does not say whose fault it was. So each rank notes in the group's
store, which is not waited for, that it has begun a step; after a failure those are named that have
not.
"""

import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from protocol.errors import SettingsError, UnavailableError, first_line

if dist.is_available():
    # The first optimizer of a process imports this module, whose default arguments keep the
    # default process group of that moment alive: gloo's threads then outlive
    # `destroy_process_group` and may abort a Python that is exiting. Imported here, before there
    # is a group, it keeps nothing.
    import torch.distributed.nn.functional

_LENGTH: Final = struct.Struct("<q")

LATE_S: Final = 3.0
"""Time that ranks get, after a failure, to note that they have begun the step, too."""

_begun: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Steps that this process has begun, of all optimizers, by process group."""


class Ranks:
    """A process group; None stands for the default one, or for this process alone if there is
    none.
    """

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        """`SettingsError` for a group that this process is no member of."""
        self._group = process_group
        if process_group is not None and self.mine < 0:
            raise SettingsError("expected a process_group with this rank in it, got one without")

    @property
    def count(self) -> int:
        return dist.get_world_size(self._group) if self._connected else 1

    @property
    def mine(self) -> int:
        """This process's rank in the group."""
        return dist.get_rank(self._group) if self._connected else 0

    @property
    def names(self) -> list[int]:
        """The ranks of the group as torch counts all processes."""
        if self._group is None or not self._connected:
            return [*range(self.count)]
        return dist.get_process_group_ranks(self._group)

    def begin(self) -> None:
        """Note that this rank begins a step."""
        if self.count > 1:
            group = self._group or dist.group.WORLD
            _begun[group] = _begun.get(group, 0) + 1
            with suppress(Exception):  # only needed to name the rank at fault
                if (store := _store(group)) is not None:
                    store.set(_key(self.names[self.mine]), str(_begun[group]))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor, of one shape and dtype, by rank, on the CPU.

        `UnavailableError` that names the ranks at fault, where they can be known.
        """
        if self.count == 1:
            return [tensor]
        on_cpu = dist.get_backend(self._group) != "nccl"
        tensor = tensor.to("cpu" if on_cpu else torch.device("cuda", torch.cuda.current_device()))
        everybody = [torch.empty_like(tensor) for _ in range(self.count)]
        try:
            dist.all_gather(everybody, tensor, group=self._group)
            return [other.cpu() for other in everybody]
        except RuntimeError as error:
            raise UnavailableError(self._failure(error)) from error

    def gather(self, blob: bytes) -> list[bytes]:
        """Everybody's bytes by rank, of one length, at least 1, on all ranks."""
        tensor = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        return [other.numpy().tobytes() for other in self.all_gather(tensor)]

    def gather_any(self, blob: bytes, room_bytes: int = 0) -> list[bytes]:
        """Everybody's bytes by rank, of any length.

        One collective, if no rank has more than `room_bytes`, which are equal on all; else two.
        """
        if self.count == 1:
            return [blob]
        opening = _LENGTH.pack(len(blob)) + blob[:room_bytes].ljust(room_bytes, b"\0")
        openings = self.gather(opening)
        lengths = [_LENGTH.unpack_from(each)[0] for each in openings]
        found = [each[_LENGTH.size :] for each in openings]
        if (rest := max(lengths) - room_bytes) > 0:
            rests = self.gather(blob[room_bytes:].ljust(rest, b"\0"))
            found = [each + more for each, more in zip(found, rests, strict=True)]
        return [each[:length] for each, length in zip(found, lengths, strict=True)]

    @property
    def _connected(self) -> bool:
        return dist.is_available() and dist.is_initialized()

    # ---- after a failure

    def _failure(self, error: RuntimeError) -> str:
        """A sentence about a collective that failed, with the ranks at fault."""
        reason = first_line(error)
        if stopped := self._stopped():
            ranks = f"rank {stopped[0]} has" if len(stopped) == 1 else f"ranks {stopped} have"
            return f"expected a step of all ranks, but {ranks} stopped making steps ({reason})"
        return f"expected a step of all ranks, but one failed within the step ({reason})"

    def _stopped(self) -> list[int]:
        """Ranks that have begun fewer steps than this one; all others, if there is one other."""
        mine = self.names[self.mine]
        others = [rank for rank in self.names if rank != mine]
        if len(others) == 1:
            return others
        group = self._group or dist.group.WORLD
        with suppress(Exception):  # the store may be gone with the rank that held it
            if (store := _store(group)) is not None:
                return _late(store, others, _begun[group])
        return []


def _late(store: Any, ranks: Sequence[int], step: int) -> list[int]:
    """Those of the ranks that have not begun this step, some time after another one failed."""
    until = time.monotonic() + LATE_S
    while True:
        late = [
            rank
            for rank in ranks
            if not store.check([_key(rank)]) or int(store.get(_key(rank))) < step
        ]
        if not late or time.monotonic() > until:
            return late
        time.sleep(0.05)


def _key(rank: int) -> str:
    return f"lockstep/steps/{rank}"


def _store(group: Any) -> Any:
    """The store of a process group; None where torch has none that forgets what it was told, as
    one in a file, which would grow.
    """
    from torch.distributed import distributed_c10d

    find = getattr(distributed_c10d, "_get_process_group_store", None)
    if find is None:
        return None
    store = innermost = find(group)
    while isinstance(innermost, distributed_c10d.PrefixStore):
        innermost = innermost.underlying_store
    return None if type(innermost).__name__ == "FileStore" else store
