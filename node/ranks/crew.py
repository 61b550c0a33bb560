"""Rank 0's side: gives orders to the other ranks, waits for answers, and names who is at fault.

    an order   said -> rank 0's own part -> all have answered, or a fault
    a fault    a process that ended; a rank that answers with an error, gives no sign of life, or
               does not answer in time

A fault is final: it ends the work with `DeviceError`, as a failed device does, and the node begins
anew with other ranks.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.engine import GradientError
from node.model.build import build_model, named_parameters_once
from node.model.passes import Tokens
from node.model.precision import weights_dtype
from node.model.training import TrainingModel
from node.ranks.dealing import Speeds, dealt, pass_samples
from node.ranks.exchange import TensorExchange
from node.ranks.line import RankLine, RankPatience, wait_for
from node.ranks.orders import (
    Hello,
    Hold,
    Keep,
    Leave,
    Limit,
    Load,
    Measure,
    Order,
    OrderAnswer,
    PartOrder,
    Regroup,
    Rest,
    Sum,
    Type,
    Work,
    decode_answer,
    encode,
)
from node.ranks.part import PartOutcome, RankPart
from node.ranks.passes import SharedPasses
from node.system.device import held_bytes_max, in_sum
from protocol.errors import DeviceError, LocalProtocolError, UnavailableError, first_line
from protocol.ids import RunId
from protocol.runfile import RunSpec, run_json

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Member:
    """A rank of the node, for people."""

    host: str
    device: str
    memory_bytes: int = 0


class Crew:
    """All ranks of a node. Its methods block, and are safe from several threads."""

    def __init__(
        self,
        line: RankLine,
        device: torch.device,
        hellos: Sequence[Hello],
        patience: RankPatience,
        ended: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        """`hellos` of all ranks, rank 0's first; `ended` tells the ranks whose processes are known
        to have ended, and how.
        """
        self._line, self._device, self._patience, self._ended = line, device, patience, ended
        self._members = [Member(hello.host, hello.device) for hello in hellos]
        self.speeds = Speeds(len(hellos))
        self._lock, self._number = threading.Lock(), 0
        self.fault = ""
        """The rank at fault and why, in words; empty while there is none."""
        self._closing, self._has_moved = False, True
        self._exchange, self._part = (
            TensorExchange(line, device, self._wait),
            cast(RankPart | None, None),
        )

    @property
    def count(self) -> int:
        """Ranks of the node."""
        return len(self._members)

    @property
    def here(self) -> int:
        """Ranks of this machine."""
        return self._line.place.local_count

    @property
    def hardware(self) -> str:
        """All devices in words."""
        return in_sum(member.device for member in self._members)

    def document(self) -> list[dict[str, Any]]:
        """Each rank's part of the status document."""
        pairs = zip(self._members, self.speeds.measured, strict=True)
        return [
            {
                "host": member.host,
                "device": member.device,
                "memory_bytes": member.memory_bytes,
                "samples_per_second": speed,
            }
            for member, speed in pairs
        ]

    # ---- orders

    def hold(
        self,
        spec: RunSpec,
        run_id: RunId,
        *,
        trainee: TrainingModel | None = None,
        micro_batch_max: int = 1,
        seed: int = 0,
    ) -> RankPart:
        """All ranks hold the network of a run, and share its passes from now on; with local steps
        each also what it owns. Returns rank 0's part, of `trainee` if that is made already.
        """
        part = RankPart(self._exchange, trainee)
        weights = trainee.dtype if trainee else _weights_dtype(spec, self._device)
        name = cast(Type, str(weights).removeprefix("torch."))
        order = Hold(run_json(spec), run_id, seed, name)
        self._give(order, lambda: part.hold(order, self._device, micro_batch_max))
        self._part, self._has_moved = part, True
        part.trainee.crew = self
        return part

    def do(self, order: Load | Sum | PartOrder, given: Any = None) -> PartOutcome:
        """What becomes of an order to all ranks' parts; `given` is what rank 0 has for the others.

        Raises `GradientError` where something is not finite.
        """
        part = self._own_part
        outcome, answers = self._give(order, lambda: part.obey(order, given))
        found: PartOutcome = outcome
        for unbounded in (found.unbounded, *(answer.unbounded for answer in answers)):
            if unbounded:
                raise GradientError(unbounded)
        found.digest = (found.digest + sum(answer.digest for answer in answers)) % 2**64
        return found

    @property
    def _own_part(self) -> RankPart:
        if self._part is None:
            raise LocalProtocolError("expected ranks that hold a network, they hold none")
        return self._part

    def moved(self) -> None:
        self._has_moved = True

    def passes(self, trainee: TrainingModel, batches: Iterable[Tokens]) -> SharedPasses:
        return SharedPasses(self, trainee, batches)

    def make_pass(self, trainee: TrainingModel, samples: Tensor, *, anew: bool) -> float:
        """Add the gradients of int64 [samples, length + 1] to those of all ranks, which are zero
        before where they begin `anew`. Returns the cross-entropy summed over all targets.

        Raises `torch.OutOfMemoryError` where a rank has no memory for its share.
        """
        part, recomputes = self._own_part, trainee.recomputes
        if self._has_moved and part.has_all:
            self.do(Load())
        self._has_moved = False
        shares, own, tokens = self._dealt(trainee, samples)

        def compute() -> tuple[float, float]:
            with self._exchange.threads_among(range(self.count)):
                return part.gradient(own, anew=anew, recomputes=recomputes)

        order = Work(shares, tokens, anew=anew, recomputes=recomputes)
        (nats, seconds), answers = self._give(order, compute)
        for rank, took_s in enumerate([seconds, *(answer.seconds for answer in answers)]):
            self.speeds.note(rank, shares[rank], took_s)
        return float(nats) + sum(answer.nats for answer in answers)

    def pass_samples(self, most: int) -> int:
        """Samples of a pass of all ranks, of which each can have `most`."""
        return pass_samples(self.speeds.all, most)

    def sum(self, samples: int) -> None:
        self.do(Sum(samples))

    def measure(self, trainee: TrainingModel, samples: Tensor) -> float:
        """Cross-entropy in the state that the ranks keep, summed over all targets of int64
        [samples, length + 1]. Raises as `make_pass`.
        """
        shares, own, tokens = self._dealt(trainee, samples)
        part = self._own_part

        def compute() -> float:
            with self._exchange.threads_among(range(self.count)):
                return part.nats(own)

        nats, answers = self._give(Measure(shares, tokens), compute)
        return float(nats) + sum(answer.nats for answer in answers)

    def _dealt(
        self, trainee: TrainingModel, samples: Tensor
    ) -> tuple[tuple[int, ...], Tensor, bytes]:
        """Each rank's number of samples, those of rank 0, and all as an order has them."""
        shares = dealt(len(samples), self.speeds.all, trainee.micro_batch_max)
        return shares, samples[: shares[0]], samples.to(torch.int32).numpy().tobytes()

    def limit(self, gpu_memory: int) -> None:
        """Take at most this part of each GPU's memory, in percent."""
        self._give(Limit(gpu_memory))

    def rest(self) -> None:
        """No rank holds a network any more; nothing where the node fails or ends anyway."""
        if not (self.fault or self._closing):
            self._give(Rest())
        self._part = None

    def close(self) -> None:
        """Let the other ranks end. What waits for them elsewhere raises `DeviceError`."""
        self._closing = True
        with self._lock, suppress(UnavailableError):
            self._number += 1
            self._line.say(f"order/{self._number}", encode(Leave()))
        self._line.close(whole=not self.fault)

    # ---- answers

    def _give(
        self, order: Order, part: Callable[[], Any] = lambda: None
    ) -> tuple[Any, list[OrderAnswer]]:
        """Rank 0's own part in an order, and the answers of the others, by rank."""
        with self._lock:
            if self.fault or self._closing:
                raise DeviceError(self.fault or "the ranks of this node are told to leave")
            try:
                return self._given(order, part)
            except UnavailableError as error:
                self._fail(str(error))

    def _given(
        self, order: Order, part: Callable[[], _Result]
    ) -> tuple[_Result, list[OrderAnswer]]:
        """The same; where memory runs out on one rank, all are ready for another order."""
        try:
            result, answers = self._obeyed(order, part)
            self._require_memory(enumerate(answers, 1))
        except torch.OutOfMemoryError:
            own, measured = self._part, isinstance(order, Keep | Measure)
            if own:
                self._obeyed(Regroup(measured), partial(own.regroup, measured=measured))
            else:
                self._obeyed(Regroup(measured), lambda: None)
            raise
        self._members[0].memory_bytes = held_bytes_max(self._device)
        for member, answer in zip(self._members[1:], answers, strict=True):
            member.memory_bytes = answer.memory_bytes or member.memory_bytes
        return result, answers

    def _require_memory(self, answers: Iterable[tuple[int, OrderAnswer]]) -> None:
        for rank, answer in answers:
            if answer.short:
                raise torch.OutOfMemoryError(f"{self._name(rank)}: {answer.short}")

    def _obeyed(
        self, order: Order, part: Callable[[], _Result]
    ) -> tuple[_Result, list[OrderAnswer]]:
        self._number += 1
        self._line.expect_signs()
        until_s = time.monotonic() + self._patience.order_s
        self._line.say(f"order/{self._number}", encode(order))
        try:
            result = part()
        except torch.OutOfMemoryError:
            self._line.say(f"end/{self._number}", b"")  # the others may wait for this rank
            self._answers(order, until_s, ended=True)
            self._line.forget(f"end/{self._number}")
            raise
        return result, self._answers(order, until_s)

    def _answers(self, order: Order, until_s: float, *, ended: bool = False) -> list[OrderAnswer]:
        """The answers to the newest order, which rank 0 may have `ended` before its time."""
        keys = [f"answer/{self._number}/{rank}" for rank in range(1, self.count)]
        while (found := self._line.hear(*keys)) is None:
            self._look(order, until_s)
        answers = [decode_answer(words) for words in found]
        if any(answer.error or (answer.lost and not ended) for answer in answers):
            self._judge(order, until_s)
        self._line.forget(f"order/{self._number}", *keys)
        return answers

    def _wait(self, begun: Iterable[Any]) -> None:
        """Wait until exchanges with all ranks have ended, as long as none is at fault.

        Raises `torch.OutOfMemoryError` where another rank has no memory to go on.
        """
        until_s = time.monotonic() + self._patience.order_s

        def look() -> None:
            self._look(None, until_s)
            self._require_memory(self._partial())

        try:
            wait_for(begun, look)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._judge(None, until_s, first_line(error)[:200])
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    # ---- faults

    def _judge(self, order: Order | None, until_s: float, words: str = "") -> NoReturn:
        """An exchange failed: wait until the rank at fault shows, and raise."""
        silent_s = time.monotonic() + self._patience.silence_s + 2
        while time.monotonic() < min(silent_s, until_s):
            self._look(order, until_s)
            time.sleep(0.2)
        for rank, answer in self._partial():
            if answer.lost:
                self._fail(f"{self._name(rank)} lost the others: {answer.lost}")
        self._fail(f"the ranks of this node lost each other: {words}")

    def _look(self, order: Order | None, until_s: float) -> None:
        """Raises `DeviceError` that names a rank at fault, if there is one."""
        if self._closing:
            raise DeviceError("the ranks of this node are told to leave")
        for rank, how in self._ended().items():
            self._fail(f"{self._name(rank)} {how}")
        answered = dict(self._partial())
        for rank, answer in answered.items():
            if answer.error:
                self._fail(f"{self._name(rank)} failed: {answer.error}")
        for rank in range(1, self.count):
            silent_s = self._line.silent_s(rank)
            if silent_s > self._patience.silence_s:
                self._fail(
                    f"{self._name(rank)} gave no sign of life for {silent_s:.0f} s: its process "
                    "is stopped, asleep or gone, or its machine cut off"
                )
        late = [rank for rank in range(1, self.count) if rank not in answered]
        if time.monotonic() > until_s and late:
            what = "an exchange" if order is None else f"the order {type(order).__name__.lower()!r}"
            self._fail(
                f"{self._name(late[0])} hangs: it did not come to the end of {what} in "
                f"{self._patience.order_s:.0f} s"
            )

    def _partial(self) -> list[tuple[int, OrderAnswer]]:
        """The answers to the newest order that are there, with their ranks."""
        found = []
        for rank in range(1, self.count):
            key = f"answer/{self._number}/{rank}"
            if self._line.has(key) and (words := self._line.hear(key)):
                found.append((rank, decode_answer(words[0])))
        return found

    def _name(self, rank: int) -> str:
        member = self._members[rank]
        return f"rank {rank} ({member.device}, on {member.host})"

    def _fail(self, fault: str) -> NoReturn:
        self.fault = fault
        raise DeviceError(fault)


def _weights_dtype(spec: RunSpec, device: torch.device) -> torch.dtype:
    """The type of the working weights of a run with local steps."""
    shapes = named_parameters_once(build_model(spec.model.type, spec.model.config, "meta")).items()
    layout = ChunkLayout.from_shapes({name: tuple(each.shape) for name, each in shapes})
    return weights_dtype(device, layout.chunks)
