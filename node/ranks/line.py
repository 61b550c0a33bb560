"""The line between the ranks of a node: torch's store for words, a process group for tensors.

    order/N          rank 0's order of that number, until all have answered
    answer/N/RANK    a follower's answer
    alive/RANK       a count that each rank raises every second, from a thread of its own

A thread goes on counting while a pass computes, so silence means a process that is dead, stopped,
asleep or cut off, and is told from a pass that takes long.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from node.ranks.place import RankPlace
from protocol.errors import AddressInUseError, UnavailableError, first_line
from protocol.runfile import RunSpec

START_S = 600.0
"""Longest wait for other ranks at the start: a person is asked, a first pass is measured."""

SLICE_S = 1.0
"""Pause between two looks at ranks that are waited for, and between two signs of life."""

ORDER_S_MIN = 120.0
"""Least time for an order: the first pass compiles."""

SILENCE_S_MIN, SILENCE_S_MAX = 6.0, 30.0
"""Bounds of the time for which a rank may give no sign of life: some seconds of a busy machine."""

POLL_S = 0.001
"""Pause between two looks at an exchange of tensors."""

NO_STORE = (RuntimeError,)
"""Kinds of torch's errors about its store, all below this one."""


@dataclass(frozen=True, slots=True)
class RankPatience:
    """How long ranks wait for each other."""

    silence_s: float
    """Time without a sign of life: half a lease, so that the node begins anew within one."""
    order_s: float
    """Time for an order: that of computing in a round, as a longer pass makes no bell."""


def patience_of(spec: RunSpec) -> RankPatience:
    """The patience that the clock of a run asks for."""
    silence_s = spec.membership.lease_ms / 2000
    return RankPatience(
        min(max(silence_s, SILENCE_S_MIN), SILENCE_S_MAX),
        max(spec.rounds.compute_ms / 1000, ORDER_S_MIN),
    )


def loopback_only() -> None:
    """Has the process group of this process listen on the loopback interface alone."""
    name = "lo" if sys.platform == "linux" else "lo0"
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", name)


def wait_for(begun: Iterable[Any], look: Callable[[], None]) -> None:
    """Wait until exchanges of tensors have ended, which begin as they are drawn. Meanwhile `look`
    is called each second: it raises where there is no reason to wait any more.

    Raises `RuntimeError` for an exchange that has failed.
    """
    look_s = time.monotonic() + SLICE_S
    for work in list(begun):
        while not work.is_completed():
            time.sleep(POLL_S)
            if time.monotonic() > look_s:
                look()
                look_s = time.monotonic() + SLICE_S
        work.wait()


class RankLine:
    """One rank's end of the line."""

    def __init__(self, place: RankPlace, listener_fd: int | None = None) -> None:
        """Rank 0 listens at its address, or on a socket that it has; the others wait for it.

        Raises `AddressInUseError`, and `UnavailableError` where nobody answers for `START_S`.
        """
        self.place = place
        self._store = self._connect(listens=place.rank == 0, listener_fd=listener_fd)
        self._ended = threading.Event()
        self._counted = dict[int, tuple[bytes, float]]()
        self._group: Any = None
        self._timeout = timedelta()
        alive = self._connect(listens=False)  # a client serves one thread at a time
        threading.Thread(target=self._count, args=(alive,), name="alive", daemon=True).start()

    def _connect(self, *, listens: bool, listener_fd: int | None = None) -> Any:
        place = self.place
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                place.address,
                place.port,
                place.count,
                listens and not place.has_store,
                timedelta(seconds=START_S),
                wait_for_workers=False,
                master_listen_fd=listener_fd,
            )
        except NO_STORE as error:
            words = first_line(error)[:200]
            where = f"{place.address}:{place.port}"
            if "EADDRINUSE" in words:
                raise AddressInUseError(
                    f"the ranks of this node cannot meet at {where}, as another process has the "
                    "port: name a free one (torchrun --master-port)"
                ) from error
            raise UnavailableError(
                f"rank {place.rank} does not reach rank 0 at {where}: {words}"
            ) from error
        return distributed_c10d.PrefixStore(f"lockstep/{place.attempt}", store)

    # ---- words

    def say(self, key: str, words: bytes) -> None:
        try:
            self._store.set(key, words)
        except NO_STORE as error:
            raise self._cut_off() from error

    def hear(self, *keys: str) -> list[bytes] | None:
        """The words under all keys; None where one is not there within `SLICE_S`.

        Raises `UnavailableError` where the store is gone.
        """
        try:
            self._store.wait([*keys], timedelta(seconds=SLICE_S))
            return [self._store.get(key) for key in keys]
        except dist.DistNetworkError as error:
            raise self._cut_off() from error
        except NO_STORE:
            return None

    def has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except NO_STORE as error:
            raise self._cut_off() from error

    def forget(self, *keys: str) -> None:
        for key in keys:
            self._store.delete_key(key)

    def _cut_off(self) -> UnavailableError:
        return UnavailableError(f"rank {self.place.rank} lost the store of the ranks: it is gone")

    # ---- signs of life

    def expect_signs(self) -> None:
        """From now on `silent_s` counts."""
        self._counted.clear()

    def silent_s(self, rank: int) -> float:
        """Time for which a rank has given no sign of life, in seconds."""
        key, now_s = f"alive/{rank}", time.monotonic()
        found = self._store.get(key) if self.has(key) else b""
        before, since_s = self._counted.get(rank, (None, now_s))
        if found != before:
            since_s = now_s
        self._counted[rank] = found, since_s
        return now_s - since_s

    def _count(self, store: Any) -> None:
        count = 0
        with suppress(*NO_STORE):  # gone: the other thread finds out
            while not self._ended.wait(SLICE_S if count else 0):
                count += 1
                store.set(f"alive/{self.place.rank}", str(count))

    # ---- tensors

    def join_group(self, backend: str, order_s: float) -> None:
        """Join the process group of all ranks, whose exchanges last at most `order_s`."""
        # NCCL would end the process without a word when another rank is lost.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        self._timeout = timedelta(seconds=order_s)
        dist.init_process_group(
            backend,
            store=distributed_c10d.PrefixStore("group", self._store),
            rank=self.place.rank,
            world_size=self.place.count,
            timeout=self._timeout,
        )
        self._group = dist.group.WORLD

    def broadcast(self, tensor: torch.Tensor, source: int) -> Any:
        """Begin to send a rank's tensor to all, which receive it in place."""
        return dist.broadcast(tensor, source, self._group, async_op=True)

    def reduce(self, tensor: torch.Tensor, target: int) -> Any:
        """Begin to add everybody's tensor to a rank's, in place; on the others it is spent."""
        return dist.reduce(tensor, target, group=self._group, async_op=True)

    def scatter(self, tensor: torch.Tensor, parts: list[torch.Tensor] | None, source: int) -> Any:
        """Begin to give each rank a part of what one has."""
        return dist.scatter(tensor, parts, source, self._group, async_op=True)

    def gather(self, tensor: torch.Tensor, parts: list[torch.Tensor] | None, target: int) -> Any:
        """Begin to put everybody's tensor into the parts that a rank has."""
        return dist.gather(tensor, parts, target, self._group, async_op=True)

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> Any:
        """Begin to put everybody's part together, on all ranks."""
        return dist.all_gather_single(whole, part, self._group, async_op=True)

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> Any:
        """Begin to add up everybody's tensors; each rank gets its part."""
        return dist.reduce_scatter_single(part, whole, group=self._group, async_op=True)

    def regroup(self) -> None:
        """Go on in another group, as exchanges hang in this one which nobody will end."""
        if self._group is not None:
            self._group.abort()  # frees a card; gloo's end by themselves, at their time
        self._group = dist.new_group(timeout=self._timeout)

    def close(self, *, whole: bool = True) -> None:
        """End the signs of life; leave the group, unless the node is not `whole`: an exchange may
        hang in it.
        """
        self._ended.set()
        if self._group is not None and whole:
            dist.destroy_process_group()
        self._group = None
