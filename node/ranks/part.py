"""A rank's part in the node, and in each order: the same on rank 0 as on a follower.

    every run           gradients of the samples that rank 0 deals to it
    with local steps    its part of the network (`node.ranks.sharded`), and a replica of the
                        parameters that it owns (`node.replica.share`)

In other runs each rank has the whole network, and rank 0 owns all parameters.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from border.memory import give_back_freed_memory
from node.exact.backend import is_accelerator
from node.exact.contributions import Contribution
from node.exact.engine import Extraction, GradientError
from node.model.build import build_model
from node.model.precision import gradient_of
from node.model.training import TrainingModel
from node.ranks.exchange import TensorExchange
from node.ranks.orders import (
    Accumulate,
    Apply,
    ApplySums,
    Begin,
    Digest,
    Extract,
    Fetch,
    Hold,
    Keep,
    Load,
    MakeStep,
    PartOrder,
    Put,
    Reset,
    StandAt,
    Sum,
)
from node.ranks.sharded import RankReplica, ShardedNetwork
from node.system.malloc import keep_weights_apart
from protocol.codec.commit_sums import AuthorSet
from protocol.codec.payload import Coefficients
from protocol.codec.sums import Levels
from protocol.errors import LocalProtocolError
from protocol.ids import RunId
from protocol.runfile import parse_run_json


@dataclass(slots=True)
class PartOutcome:
    """What became of an order on one rank."""

    digest: int = 0
    unbounded: str = ""
    """What was to be used is not finite, in words."""
    tensor: Tensor | None = None
    """The parameter that was fetched."""
    extraction: Extraction | None = None
    """On rank 0: that of all ranks."""


class RankPart:
    """What one rank holds. `trainee`: the network, if another part of this process has made it."""

    def __init__(self, exchange: TensorExchange, trainee: TrainingModel | None = None) -> None:
        self._exchange, self._trainee = exchange, trainee
        self._replica: RankReplica | None = None
        self._kept: ShardedNetwork | None = None
        """A state whose loss is measured."""

    @property
    def trainee(self) -> TrainingModel:
        if self._trainee is None:
            raise LocalProtocolError("expected an order to hold a network first, got none")
        return self._trainee

    @property
    def has_all(self) -> bool:
        """Whether this rank has the whole network, and rank 0 moves it."""
        return self._replica is None

    @property
    def replica(self) -> RankReplica:
        """What it owns."""
        if self._replica is None:
            raise LocalProtocolError("expected an order to ranks that own nothing, got another")
        return self._replica

    def hold(self, order: Hold, device: torch.device, micro_batch_max: int = 1) -> None:
        spec, weights = parse_run_json(order.run, "rank 0"), getattr(torch, order.weights)
        if spec.algorithm.facts.steps_within_round:
            keep_weights_apart()
            self._replica = RankReplica(
                self._exchange,
                spec,
                RunId(order.run_id),
                device,
                micro_batch_max,
                seed=order.seed,
                weights=weights,
            )
            self._trainee = self._replica.trainee
        elif self._trainee is None:
            model = build_model(spec.model.type, spec.model.config)
            self._trainee = TrainingModel(model, device, 1, weights)
        self.trainee.model.train()

    def gradient(self, samples: Tensor, *, anew: bool, recomputes: bool) -> tuple[float, float]:
        """Add the gradients of this rank's samples, int64 [samples, length + 1], to those that it
        has, or begin `anew`. Returns the cross-entropy summed over their targets, once the device
        has ended the pass, and the seconds by which its speed is told.
        """
        began_s = time.monotonic()
        if self._replica:
            network = self._replica.network
            nats, block_s = network.gradient(samples, anew=anew, recomputes=recomputes)
            self._give_back()
            return nats, block_s or time.monotonic() - began_s
        trainee = self.trainee
        if recomputes != trainee.recomputes:
            trainee.recompute(recomputes)
        if anew:
            trainee.zero_gradients()
        nats = float(trainee.gradient(samples)) if len(samples) else 0.0
        self._exchange.settle()
        return nats, time.monotonic() - began_s

    def nats(self, samples: Tensor) -> float:
        """Cross-entropy in the kept state, summed over all targets of this rank's samples."""
        if self._kept is None:
            raise LocalProtocolError("expected an order to keep a state first, got none")
        return self._kept.nats(samples)

    def regroup(self, *, measured: bool) -> None:
        """Go on after a pass that was broken off, which `measured` a loss or trained."""
        self._exchange.regroup()
        trains = self._replica.network if self._replica else None
        if network := self._kept if measured else trains:
            network.recover()

    def obey(self, order: Load | Sum | PartOrder, given: Any = None) -> PartOutcome:
        """`given`, on rank 0: the parameter to put, or the contributions or sums to apply."""
        try:
            match order:
                case Load():
                    self._load()
                case Sum():
                    self._sum(order.samples)
                case Reset():
                    self.replica.reset()
                case Begin():
                    self._kept = self._kept if order.keeps else None
                    self.replica.begin_at(goes_on=order.goes_on)
                case MakeStep():
                    self.replica.step(order.learning_rate)
                case StandAt():
                    self.replica.stand_at()
                case Keep():
                    self._kept = None  # before there is another one
                    self._kept = self.replica.kept_network()
                case Accumulate():
                    self.replica.accumulate()
                case Digest():
                    return PartOutcome(digest=self.replica.computed_digest())
                case Extract():
                    return PartOutcome(extraction=self._extract(order.code_max))
                case Fetch():
                    return PartOutcome(tensor=self._fetch(order.name))
                case Put():
                    self._put(order.name, given)
                case Apply():
                    self._apply(order, given)
                case ApplySums():
                    self._apply_sums(order, given)
                case _:
                    assert_never(order)
        except GradientError as error:
            return PartOutcome(unbounded=str(error))
        self._give_back()
        return PartOutcome()

    # ---- the network

    def _give_back(self) -> None:
        """On the host what was gathered and freed lies between what stays, up to a third of a
        rank's memory, and the next order would come beside it.
        """
        if self._replica and not is_accelerator(self.trainee.device):
            give_back_freed_memory()

    def _load(self) -> None:
        self._exchange.spread((each.data, 0) for each in self.trainee.parameters.values())

    def _sum(self, samples: int) -> None:
        """The mean gradient over the samples of all ranks, on the owner of each parameter."""
        if self._replica:
            self._replica.network.take_mean(samples)
            return
        parameters = self.trainee.parameters
        self._exchange.add_up((gradient_of(each), 0) for each in parameters.values())
        for parameter in parameters.values():
            if self._exchange.rank == 0:
                gradient_of(parameter).div_(samples)
            else:
                parameter.grad = None

    # ---- the replica

    def _extract(self, code_max: int) -> Extraction:
        """Values and scales, on rank 0 those of all chunks."""
        replica = self.replica
        own = replica.take(code_max)
        assert own.scales is not None, "movements have scales"
        sent = own.indices.cpu(), own.values.to("cpu", torch.int8), own.scales
        chunks = replica.layout.chunks if self._exchange.rank == 0 else 0
        indices, values = (
            torch.zeros(chunks, sent[0].shape[1], dtype=torch.int16, device="cpu") for _ in range(2)
        )
        scales = torch.zeros((chunks, *sent[2].shape[1:]), dtype=torch.uint8, device="cpu")
        for source in range(self._exchange.ranks):
            there = replica.share.chunks_of(source)
            parts: Sequence[Tensor] = sent
            if source != self._exchange.rank:
                parts = [each.new_empty((int(there.sum()), *each.shape[1:])) for each in sent]
            if source:
                parts = [self._exchange.tell(each, source) for each in parts]
            if chunks:
                for whole, part in zip((indices, values, scales), parts, strict=True):
                    whole[there] = part.to(whole.dtype)
        return Extraction(indices, values, own.previous, own.backend, scales)

    def _fetch(self, name: str) -> Tensor:
        """A committed parameter, which is its owner's own there."""
        replica = self.replica
        owner = replica.share.owners[name]
        if owner == self._exchange.rank:
            tensor = replica.committed[name]
        else:
            tensor = torch.empty(replica.layout.shapes[name], device="cpu")
        return self._exchange.tell(tensor, owner)

    def _put(self, name: str, given: Tensor | None) -> None:
        if given is None:
            given = torch.empty(self.replica.layout.shapes[name], device="cpu")
        self._exchange.tell(given, 0)
        if name in self.replica.committed:
            self.replica.committed[name].copy_(given)

    def _apply(self, order: Apply, given: Sequence[Contribution] | None) -> None:
        replica, own = self.replica, list[Contribution]()
        for number, (weight, count) in enumerate(order.authors):
            if given is not None:
                sent = given[number].coefficients
                assert sent.scales is not None, "movements have scales"
                self._tell(sent.counts, sent.indices, sent.values.astype(np.int8), sent.scales)
            else:
                sent = self._told(count)
            own.append(Contribution(weight, replica.share.cut(sent)))
        replica.move(own, (order.learning_rate, order.decay))

    def _told(self, count: int) -> Coefficients:
        """The coefficients of an author, of this number, as rank 0 tells them."""
        shape = self.replica.shape
        chunks, columns = shape.chunks, shape.scale_count
        sizes = (np.uint16, chunks), (np.uint16, count), (np.int8, count)
        counts, indices, values, scales = self._heard(*sizes, (np.uint8, columns * chunks))
        scales = scales if columns == 1 else scales.reshape(chunks, columns)
        return Coefficients(counts, indices, values.astype(np.int16), scales)

    def _apply_sums(self, order: ApplySums, levels: Levels | None) -> None:
        replica, count = self.replica, order.levels
        if levels is not None:
            parts = levels.counts, levels.indices, levels.values, levels.exponents, levels.steps
            self._tell(*parts)
        else:
            chunks = replica.layout.chunks
            sizes = (np.uint16, chunks), (np.uint16, count), (np.int8, count), (np.uint8, chunks)
            counts, indices, values, exponents, steps = self._heard(*sizes, (np.uint8, chunks))
            levels = Levels(exponents, steps, counts, indices, values)
        own = replica.share.cut_levels(levels)
        replica.move_by_sums(own, AuthorSet(*order.authors), order.decay)

    def _tell(self, *arrays: npt.NDArray[Any]) -> None:
        """Rank 0 tells arrays to the others, as bytes in one piece."""
        parts = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays]
        self._exchange.tell(torch.from_numpy(np.concatenate(parts)), 0)

    def _heard(self, *sizes: tuple[npt.DTypeLike, int]) -> list[npt.NDArray[Any]]:
        """The arrays that rank 0 tells, of these types and lengths."""
        ends = np.cumsum([np.dtype(kind).itemsize * length for kind, length in sizes])
        told = self._exchange.tell(torch.empty(int(ends[-1]), dtype=torch.uint8, device="cpu"), 0)
        parts = np.split(told.numpy(), ends[:-1])
        return [part.view(kind) for part, (kind, _) in zip(parts, sizes, strict=True)]
