"""A follower: a rank that obeys rank 0's orders. It has no key, no links and no coordinator.

It waits for nothing for ever: for an order as long as rank 0 gives signs of life, for an exchange
as long as the group allows; a clock beside Python ends a process that hangs in spite of that.
"""

import faulthandler
import os
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, assert_never

import torch
from torch import Tensor

from node.model.build import build_model
from node.model.precision import gradient_of
from node.model.training import TrainingModel
from node.ranks.line import START_S, RankLine
from node.ranks.orders import (
    Hello,
    Hold,
    Leave,
    Limit,
    Load,
    Order,
    OrderAnswer,
    Rest,
    Sum,
    Welcome,
    Work,
    decode_order,
    decode_welcome,
    encode,
)
from node.ranks.passes import computed
from node.system.device import give_back_memory, held_bytes_max, limit_memory
from protocol.errors import LocalProtocolError, UnavailableError

HANG_S = 60.0
"""Time beyond all others after which a follower that does not come back from torch is ended."""


class ExchangeError(Exception):
    """An exchange of tensors with other ranks failed."""


class FollowingRank:
    """One rank's obedience; `device` is its own."""

    def __init__(self, line: RankLine, device: torch.device) -> None:
        self._line, self._device = line, device
        self._trainee: TrainingModel | None = None
        self._wait_s = START_S
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
        self._wait_s = welcome.order_s
        self._line.join_group(welcome.backend, welcome.order_s)
        for number, order in self._orders():
            answer, error = self._obeyed(order)
            self._line.say(f"answer/{number}/{rank}", encode(answer))
            if error:
                raise error

    def _orders(self) -> Iterator[tuple[int, Order]]:
        number = 0
        while True:
            number += 1
            order = decode_order(self._next(f"order/{number}"))
            if isinstance(order, Leave):
                faulthandler.cancel_dump_traceback_later()
                self._line.close()
                return
            yield number, order

    def _next(self, key: str) -> bytes:
        """Rank 0's words under a key, once they are there."""
        self._line.expect_signs()
        while True:
            faulthandler.dump_traceback_later(self._wait_s + HANG_S, exit=True, file=self._watchdog)
            if found := self._line.hear(key):
                return found[0]
            if (silent_s := self._line.silent_s(0)) > self._wait_s:
                raise UnavailableError(f"rank 0 gave no sign of life for {silent_s:.0f} s")

    def _obeyed(self, order: Order) -> tuple[OrderAnswer, Exception | None]:
        """The answer to an order, and the error with which this process ends after it."""
        try:
            began_s = time.monotonic()
            nats = self._obey(order)
            seconds = time.monotonic() - began_s
            return OrderAnswer(nats, seconds, held_bytes_max(self._device)), None
        except torch.OutOfMemoryError as error:
            short = str(error)[:200]
        except ExchangeError as error:
            return OrderAnswer(lost=str(error)[:200]), error
        except Exception as error:
            return OrderAnswer(error=f"{type(error).__name__}: {error}"[:300]), error
        # Out here the error is gone, whose traceback held on to the tensors of the failed pass.
        give_back_memory()
        return OrderAnswer(short=short), None

    def _obey(self, order: Order) -> float:
        match order:
            case Hold():
                self._trainee = self._built(order)
            case Load():
                weights = [each.data for each in self._held.parameters.values()]
                self._exchange(self._line.broadcast, weights)
            case Work():
                return self._work(order)
            case Sum():
                gradients = [gradient_of(each) for each in self._held.parameters.values()]
                self._exchange(self._line.reduce, gradients)
                self._held.give_back_gradients()
            case Limit():
                limit_memory(self._device, order.gpu_memory)
            case Rest():
                self._trainee = None
                give_back_memory()
            case Leave():
                pass
            case _:
                assert_never(order)
        return 0.0

    @property
    def _held(self) -> TrainingModel:
        if self._trainee is None:
            raise LocalProtocolError("expected an order to hold a network first, got none")
        return self._trainee

    def _built(self, order: Hold) -> TrainingModel:
        model = build_model(order.model, order.config)
        types = getattr(torch, order.weights), getattr(torch, order.gradients)
        trainee = TrainingModel(model, self._device, 1, *types)
        trainee.model.train()
        return trainee

    def _work(self, order: Work) -> float:
        """Cross-entropy of this rank's samples, summed over their targets."""
        trainee, rank = self._held, self._line.place.rank
        if order.recomputes != trainee.recomputes:
            trainee.recompute(order.recomputes)
        if order.anew:
            trainee.zero_gradients()
        return computed(trainee, tokens_of(order)[rank])

    def _exchange(self, begin: Callable[[Tensor], Any], tensors: list[Tensor]) -> None:
        try:
            for work in [begin(tensor) for tensor in tensors]:
                work.wait()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            raise ExchangeError(str(error).strip().partition("\n")[0]) from error


def tokens_of(order: Work) -> tuple[Tensor, ...]:
    """The samples of each rank: int64 [samples, length + 1]."""
    total = sum(order.shares)
    whole = torch.frombuffer(bytearray(order.tokens), dtype=torch.int32).long()
    return torch.split(whole.view(total, -1), list(order.shares))
