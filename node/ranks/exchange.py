"""Exchanges of tensors between the ranks, one after the other or all at once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from node.ranks.line import RankLine
from node.system.device import with_threads

PIECE_ENTRIES = 2**21
"""Entries of a rank that are collected at a time: gloo puts those of all together beside the place
where they belong."""


class TensorExchange:
    """One rank's exchanges. All ranks make the same ones in the same order."""

    def __init__(
        self, line: RankLine, device: torch.device, wait: Callable[[Iterable[Any]], None]
    ) -> None:
        """`wait` begins each of torch's exchanges, and waits until all have ended."""
        self._line, self._device, self._wait = line, device, wait

    @property
    def rank(self) -> int:
        return self._line.place.rank

    @property
    def ranks(self) -> int:
        """Ranks of the node."""
        return self._line.place.count

    @property
    def sharing(self) -> int:
        """Ranks that share the memory of this one's device."""
        return self._line.place.local_count if self._device.type == "cpu" else 1

    def threads_among(self, ranks: Collection[int]) -> AbstractContextManager[None]:
        """Compute meanwhile with `RankPlace.threads_among`; a rank on a card keeps its own."""
        if self._device.type != "cpu":
            return nullcontext()
        return with_threads(self._line.place.threads_among(ranks, torch.get_num_threads()))

    def spread(self, tensors: Iterable[tuple[Tensor, int]]) -> None:
        """Send each tensor of a rank to all, which receive it in place."""
        self._wait(self._line.broadcast(tensor, source) for tensor, source in tensors)

    def add_up(self, tensors: Iterable[tuple[Tensor, int]]) -> None:
        """Add everybody's tensors to those of a rank each; on the others they are spent."""
        self._wait(self._line.reduce(tensor, target) for tensor, target in tensors)

    def deal(self, whole: Tensor | None, rows: Tensor, source: int) -> Tensor:
        """The rows of this rank in a rank's tensor, which only that one has: an Nth, rounded up and
        filled up. `rows` is room for them.
        """
        parts = (
            None if whole is None else _filled_up(torch.split(whole, len(rows)), rows, self.ranks)
        )
        self._wait([self._line.scatter(rows, parts, source)])
        return rows

    def collect(self, rows: Tensor, target: int) -> Tensor | None:
        """On the target the rows of all ranks, one below the other."""
        pieces = torch.split(rows, max(1, PIECE_ENTRIES // max(1, rows[0].numel())))
        if self.rank != target:
            self._wait(self._line.gather(piece, None, target) for piece in pieces)
            return None
        whole = rows.new_empty((self.ranks * len(rows), *rows.shape[1:]))
        parts, done = whole.view(self.ranks, *rows.shape), 0
        for piece in pieces:
            there = parts[:, done : (done := done + len(piece))]
            self._wait([self._line.gather(piece, list(there), target)])
        return whole

    def gather(self, whole: Tensor, part: Tensor) -> None:
        """Fill a tensor with the parts of all ranks, in a pass."""
        self._in_pass(self._line.all_gather(whole, part))

    def sum_parts(self, part: Tensor, whole: Tensor) -> None:
        """Fill a part with the sum of what all ranks have in its place of a tensor, which is spent,
        in a pass.
        """
        if self._device.type == "cuda":
            self._in_pass(self._line.reduce_scatter(part, whole))
            return
        parts = whole.chunk(self.ranks)  # gloo itself would sum up all of them on all ranks
        self.add_up((each, rank) for rank, each in enumerate(parts))
        part.copy_(parts[self.rank])

    def tell_numbers(self, *own: float) -> list[list[float]]:
        """The numbers of each rank, in a pass."""
        told = torch.tensor(own, dtype=torch.float64, device=self._device)
        whole = told.new_empty((self.ranks, len(own)))
        self.gather(whole, told[None])
        self.settle()
        numbers: list[list[float]] = whole.tolist()
        return numbers

    def regroup(self) -> None:
        """Leave behind exchanges that hang, on all ranks."""
        self._line.regroup()

    def settle(self) -> None:
        """Wait until the device has ended a pass: all ranks wait for each other, and one that is
        only queued would overrun the bell.
        """
        if self._device.type == "cuda":
            self._wait([_Queued(self._device)])

    def _in_pass(self, work: Any) -> None:
        """A card is told to wait for it, and the host goes on."""
        if self._device.type == "cuda":
            work.wait()
        else:
            self._wait([work])

    def tell(self, tensor: Tensor, source: int) -> Tensor:
        """Send a rank's tensor, of any type and on any device, to all, which have one like it."""
        if tensor.numel():
            held = tensor.contiguous()
            raw = held.view(-1).view(torch.uint8)
            there = raw.to(self._device)
            self.spread([(there, source)])
            if self.rank != source and there.data_ptr() != raw.data_ptr():
                raw.copy_(there)
        return tensor


class _Queued:
    """What a card was given so far, as an exchange that may be waited for."""

    def __init__(self, device: torch.device) -> None:
        self._event: Any = torch.Event(device)
        self._event.record(torch.cuda.current_stream(device))

    def is_completed(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()


class Pool:
    """Rows of all ranks in a pass, such as one a token: some ranks have more than others."""

    def __init__(self, exchange: TensorExchange, count: int, number: float = 0.0) -> None:
        """`count`: the rows of this rank."""
        self._exchange = exchange
        counts, numbers = zip(*exchange.tell_numbers(count, number), strict=True)
        self._counts = [int(each) for each in counts]
        self.number = max(numbers)
        """The largest number that a rank has told."""

    def all(self, part: Tensor) -> Tensor:
        """The rows of all ranks, one below the other; this one's are the first ones of `part`."""
        room = part.new_zeros((max(self._counts), *part.shape[1:]))
        own = self._counts[self._exchange.rank]
        room[:own] = part[:own]
        whole = part.new_empty((self._exchange.ranks * len(room), *part.shape[1:]))
        self._exchange.gather(whole, room)
        parts = zip(torch.split(whole, len(room)), self._counts, strict=True)
        return torch.cat([each[:count] for each, count in parts])

    def own(self, whole: Tensor) -> Tensor:
        """The rows of this rank among those of all."""
        return torch.split(whole, self._counts)[self._exchange.rank]

    def sums(self, whole: Tensor) -> Tensor:
        """The rows of this rank in the sum of what all ranks have."""
        most = max(self._counts)
        room = whole.new_zeros((len(self._counts), most, *whole.shape[1:]))
        for place, rows in zip(room, torch.split(whole, self._counts), strict=True):
            place[: len(rows)] = rows
        self._exchange.sum_parts(part := torch.empty_like(room[0]), room.flatten(0, 1))
        return part[: self._counts[self._exchange.rank]]


def _filled_up(parts: Sequence[Tensor], rows: Tensor, ranks: int) -> list[Tensor]:
    """A part for each rank, all like `rows`."""
    return [
        part.contiguous()
        if len(part) == len(rows)
        else torch.cat([part, torch.zeros_like(rows[len(part) :])])
        for part in [*parts, *[rows[:0]] * (ranks - len(parts))]
    ]
