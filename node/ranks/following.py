"""A follower: a rank that obeys rank 0's orders. It has no key, no links and no coordinator.

It waits for nothing for ever: for an order as long as rank 0 gives signs of life, for an exchange
as long as the group allows; a clock beside Python ends a process that hangs in spite of that.
"""

import faulthandler
import os
from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec
import torch
from torch import Tensor

from node.ranks.exchange import TensorExchange
from node.ranks.line import START_S, RankLine, wait_for
from node.ranks.orders import (
    Hello,
    Hold,
    Leave,
    Limit,
    Measure,
    Order,
    OrderAnswer,
    Regroup,
    Rest,
    Welcome,
    Work,
    decode_order,
    decode_welcome,
    encode,
)
from node.ranks.part import RankPart
from node.system.device import give_back_memory, held_bytes_max, limit_memory
from protocol.errors import UnavailableError, first_line

HANG_S = 60.0
"""Time beyond all others after which a follower that does not come back from torch is ended."""


class ExchangeError(Exception):
    """An exchange of tensors with other ranks failed."""


class FollowingRank:
    """One rank's obedience; `device` is its own."""

    def __init__(self, line: RankLine, device: torch.device) -> None:
        self._line, self._device = line, device
        self._exchange = TensorExchange(line, device, self._wait)
        self._part = RankPart(self._exchange)
        self._order_s = self._silence_s = START_S
        self._number = 0
        self._watchdog: IO[str] = open(os.devnull, "w")  # noqa: SIM115 - as long as the process

    def follow(self, hello: Hello) -> None:
        """Meet the other ranks and obey until rank 0 says leave, or refuses to start the node.

        Raises `UnavailableError` when rank 0 is gone, and what kept an order from being obeyed,
        once rank 0 was told.
        """
        rank = self._line.place.rank
        self._line.say(f"hello/{rank}", encode(hello))
        welcome: Welcome = decode_welcome(self._next("welcome"))
        if welcome.refused or hello.error:
            return
        self._order_s, self._silence_s = welcome.order_s, welcome.silence_s
        self._line.join_group(welcome.backend, welcome.order_s)
        for number, order in self._orders():
            answer, error = self._obeyed(order)
            self._line.say(f"answer/{number}/{rank}", encode(answer))
            if error:
                raise error

    def _orders(self) -> Iterator[tuple[int, Order]]:
        while True:
            self._number += 1
            order = decode_order(self._next(f"order/{self._number}"))
            if isinstance(order, Leave):
                faulthandler.cancel_dump_traceback_later()
                self._line.close()
                return
            yield self._number, order

    def _next(self, key: str) -> bytes:
        """Rank 0's words under a key, once they are there."""
        self._line.expect_signs()
        while True:
            faulthandler.dump_traceback_later(
                self._order_s + HANG_S, exit=True, file=self._watchdog
            )
            if found := self._line.hear(key):
                return found[0]
            if silent := self._silent():
                raise UnavailableError(silent)

    def _obeyed(self, order: Order) -> tuple[OrderAnswer, Exception | None]:
        """The answer to an order, and the error with which this process ends after it."""
        try:
            answer, held = self._obey(order), held_bytes_max(self._device)
            return msgspec.structs.replace(answer, memory_bytes=held), None
        except torch.OutOfMemoryError as error:
            short = str(error)[:200]
        except ExchangeError as error:  # stays until rank 0 has found out who is at fault
            return OrderAnswer(lost=str(error)[:200]), None
        except Exception as error:
            return OrderAnswer(error=f"{type(error).__name__}: {error}"[:300]), error
        # Out here the error is gone, whose traceback held on to the tensors of the failed pass.
        give_back_memory()
        return OrderAnswer(short=short), None

    def _obey(self, order: Order) -> OrderAnswer:
        match order:
            case Hold():
                self._part = RankPart(self._exchange)
                self._part.hold(order, self._device)
            case Work():
                own, alike = tokens_of(order)[self._line.place.rank], order.recomputes
                nats, seconds = self._part.gradient(own, anew=order.anew, recomputes=alike)
                return OrderAnswer(nats=nats, seconds=seconds)
            case Measure():
                own = tokens_of(order)[self._line.place.rank]
                return OrderAnswer(nats=self._part.nats(own))
            case Regroup():
                self._part.regroup(measured=order.measured)
            case Limit():
                limit_memory(self._device, order.gpu_memory)
            case Rest():
                self._part = RankPart(self._exchange)
                give_back_memory()
            case Leave():
                pass
            case _:
                outcome = self._part.obey(order)
                return OrderAnswer(digest=outcome.digest, unbounded=outcome.unbounded)
        return OrderAnswer()

    def _wait(self, begun: Iterable[Any]) -> None:
        try:
            wait_for(begun, self._look)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            raise ExchangeError(first_line(error)) from error

    def _look(self) -> None:
        """Raises `ExchangeError` where rank 0 has broken off the order, or is gone."""
        if self._line.has(f"end/{self._number}"):
            raise ExchangeError("rank 0 has broken it off")
        if silent := self._silent():
            raise ExchangeError(silent)

    def _silent(self) -> str:
        """Why rank 0 is taken to be gone; empty while it gives signs of life."""
        silent_s = self._line.silent_s(0)
        if silent_s <= self._silence_s:
            return ""
        return f"rank 0 gave no sign of life for {silent_s:.0f} s"


def tokens_of(order: Work | Measure) -> tuple[Tensor, ...]:
    """The samples of each rank: int64 [samples, length + 1]."""
    total = sum(order.shares)
    whole = torch.frombuffer(bytearray(order.tokens), dtype=torch.int32).long()
    return torch.split(whole.view(total, -1), list(order.shares))
