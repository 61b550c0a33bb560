"""The network of a run with local steps, of which each rank holds a part: torch's `fully_shard`.

    between passes   a rank holds its rows of each parameter's weights and gradients, an Nth
    forward          the weights of a block are gathered, used, and let go of
    backward         gathered again; gradients are summed, and each rank keeps those of its rows
    embedding, head  are never gathered (`node.ranks.vocabulary`)
    the root         what else is in no block is whole as long as a pass lasts

    a step           in turns, of what is together no larger than the largest parameter: rows of
                     weights and gradients --> the owner, which moves it --> rows of weights

The optimizer of local steps takes whole matrices, so it works where a parameter is owned. The owner
has the weights in a network of its own, which is hollow but for those that are moved
(`RankReplica`).

torch waits for an exchange until it fails. Here all of them go through the rank's own exchange,
which also looks at the other ranks: who is at fault is known in the middle of a pass.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from node.exact.engine import GRADIENT_MAX, require_finite
from node.exact.local_steps.optimizer import sorted_out
from node.model.blocks import repeated
from node.model.build import named_parameters_once
from node.model.precision import gradient_dtype
from node.model.training import TrainingModel
from node.ranks.clock import BlockClock
from node.ranks.exchange import TensorExchange
from node.ranks.vocabulary import SplitTraining, split_tables
from node.replica.kept_state import require_room
from node.replica.local_steps import LocalStepsReplica
from node.replica.share import RankShare
from protocol.errors import SettingsError, UnavailableError


class ShardedNetwork:
    """One rank's part of the network. What exchanges is done by all ranks in the same order."""

    def __init__(
        self, model: nn.Module, device: torch.device, dtype: torch.dtype, exchange: TensorExchange
    ) -> None:
        """Takes a model in the host's memory to pieces. `dtype` is that of its weights, of which
        none has a value before they are loaded.

        Raises `SettingsError` where this torch, or the model, has none of it.
        """
        for each in model.parameters():
            is_loaded = each.requires_grad  # what nobody touches takes no memory
            each.data = torch.empty(each.shape, dtype=dtype) if is_loaded else each.data.to(dtype)
        self._device, self._exchange = device, exchange
        self.shapes = {name: each.shape for name, each in named_parameters_once(model).items()}
        """Those of whole parameters, in the order in which all ranks take them."""
        with self._at_device():
            self._root = _sharded(model, device, exchange)
            self.trainee = SplitTraining(model, device, 1, dtype, dtype)
        self._clock = BlockClock(repeated(model), device)
        self.trainee.model.train()

    def gradient(self, samples: Tensor, *, anew: bool, recomputes: bool) -> tuple[float, float]:
        """Add the gradients of this rank's samples, int64 [samples, length + 1], and the others' to
        those that each rank has, or begin `anew`. Returns the cross-entropy summed over all targets
        of this rank, and the seconds in its blocks. One without samples takes part all the same.
        """
        trainee = self.trainee
        self._clock.start()
        if recomputes != trainee.recomputes:
            trainee.recompute(recomputes)
        if anew:
            trainee.give_back_gradients()
        with self._at_device():
            if len(samples):
                nats = trainee.gradient(samples)
            else:
                nats = trainee.gradient(torch.zeros((1, 2), dtype=torch.int64), weight=0.0) * 0
            self._exchange.settle()
            return float(nats), self._clock.seconds()

    @torch.no_grad()
    def nats(self, samples: Tensor) -> float:
        """The cross-entropy summed over all targets of this rank's samples, without dropout and
        gradients. One without samples takes part all the same.
        """
        trainee, is_idle = self.trainee, not len(samples)
        trainee.model.eval()
        own = torch.zeros((1, 2), dtype=torch.int64) if is_idle else samples
        with self._at_device():
            nats = trainee.nats(own.to(self._device))
            self._root.reshard()  # else only a way back does
            self._exchange.settle()
            return 0.0 if is_idle else float(nats)

    def load(self, owned: Mapping[str, Tensor], owners: Mapping[str, int]) -> None:
        """Take over the weights, each from its owner, which has it whole in `owned`."""
        for name in self.shapes:
            self.deal(name, owned.get(name), owners[name])

    def deal(self, name: str, whole: Tensor | None, owner: int) -> None:
        """Take over the rows of a parameter's weights, which its owner alone has `whole`."""
        given = None if whole is None else whole.detach().to(self._device)
        rows = self._exchange.deal(given, self._rows(name), owner)
        held = held_of(self.trainee.parameters[name].data)
        held.copy_(rows[: len(held)])

    def weights(self, name: str, owner: int) -> Tensor | None:
        """A parameter's weights, whole, on its owner."""
        return self._collected(name, self.trainee.parameters[name].data, owner)

    def gradient_of(self, name: str, owner: int) -> Tensor | None:
        """A parameter's gradient, whole, on its owner; the rows held here are given back."""
        parameter = self.trainee.parameters[name]
        gradient, parameter.grad = parameter.grad, None
        return self._collected(name, gradient, owner)

    def take_mean(self, samples: int) -> None:
        """Divide the gradients by the samples of all ranks. `GradientError` unless all that are
        held here are finite, and bounded.
        """
        held = dict[str, Tensor | None]()
        for name, parameter in self.trainee.parameters.items():
            if parameter.grad is not None:
                held[name] = held_of(parameter.grad).div_(samples)
        require_finite(held, GRADIENT_MAX)

    def recover(self) -> None:
        """After a pass that was broken off: what it had gathered is let go of, gradients too."""
        with self._at_device(), suppress(AttributeError):  # which torch raises before a first pass
            self._root.reset_iter_state()
        self.trainee.give_back_gradients()

    def _collected(self, name: str, tensor: Tensor | None, owner: int) -> Tensor | None:
        """The rows that all ranks hold, one below the other, on the owner; zeros for None."""
        rows = self._rows(name).zero_()
        if tensor is not None:
            held = held_of(tensor)
            rows[: len(held)] = held
        whole = self._exchange.collect(rows, owner)
        return None if whole is None else whole[: self.shapes[name][0]]

    def _rows(self, name: str) -> Tensor:
        """Room for the rows of a rank, of which the last ones may have fewer."""
        held, shape = self.trainee.parameters[name], self.shapes[name]
        each = -(-shape[0] // self._exchange.ranks)
        return torch.empty((each, *shape[1:]), dtype=held.dtype, device=self._device)

    def _at_device(self) -> AbstractContextManager[Any]:
        """Torch's sharding goes by the card that is current in a thread."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


class RankReplica(LocalStepsReplica):
    """The replica of what one rank owns. Its network is hollow: a parameter that the rank owns has
    its working weights while they are read or moved, the others never.
    """

    network: ShardedNetwork
    """The network that makes passes."""

    _matrices: set[str]
    """The parameters of all ranks that are orthogonalised, which is what costs in a step."""

    def __init__(self, exchange: TensorExchange, *parts: Any, **options: Any) -> None:
        """`parts` and `options` as those of `LocalStepsReplica`."""
        self._exchange = exchange
        super().__init__(*parts, rank=exchange.rank, ranks=exchange.ranks, **options)

    def kept_network(self) -> ShardedNetwork:
        """Another network of all ranks, in float32 and at the committed parameters. Raises
        `torch.OutOfMemoryError` where a rank has no memory for its rows.
        """
        exchange, device = self._exchange, self.trainee.device
        here = 4 * self.layout.parameters * exchange.sharing // exchange.ranks
        try:
            require_room(here, device)
        except UnavailableError as error:
            raise torch.OutOfMemoryError(str(error)) from error
        model, _ = self._fresh_model()
        network = ShardedNetwork(model, device, torch.float32, exchange)
        network.load(self.committed, self.share.owners)
        return network

    def step(self, learning_rate: float) -> None:
        """One step of every parameter by its gradient: of the vectors, which are small, at once, of
        the others in turns, in which each rank has as many of its own whole as the largest is.
        """
        self._optimizer.begin_step(learning_rate)
        shapes, owners = self.network.shapes, self.share.owners
        vectors = [name for name, shape in shapes.items() if len(shape) == 1]
        self._take_whole(vectors)
        self._optimizer.move_vectors()
        self._deal(vectors)
        for names in _turns({name: shapes[name] for name in shapes.keys() - vectors}, self.share):
            self._take_whole(names)
            busy = {owners[name] for name in names if name in self._matrices}
            with self._exchange.threads_among(busy):
                for name in names:
                    if name in self.share.names:
                        self._optimizer.move(self.trainee.parameters[name])
            self._deal(names)

    def accumulate(self) -> None:
        self._take_whole(self.network.shapes, with_gradients=False)
        try:
            super().accumulate()
        finally:
            self._let_go(self.share.names)

    def _working(self, *, reads: bool = True, writes: bool = True) -> Iterator[tuple[str, Tensor]]:
        for name in self.network.shapes:
            if reads:
                self._take_whole([name], with_gradients=False)
            own = [name] if name in self.share.names else []
            for each in own:
                parameter = self.trainee.parameters[each]
                if not reads:
                    parameter.data = parameter.new_empty(parameter.shape)
                yield each, parameter.data
            if writes:
                self._deal([name])
            else:
                self._let_go(own)

    def _take_whole(self, names: Iterable[str], *, with_gradients: bool = True) -> None:
        """Have the working weights whole, and the gradients, of these parameters that are owned
        here.
        """
        for name in names:
            owner = self.share.owners[name]
            gradient = self.network.gradient_of(name, owner) if with_gradients else None
            whole = self.network.weights(name, owner)
            if whole is not None:
                parameter = self.trainee.parameters[name]
                parameter.data = whole
                if gradient is not None:
                    parameter.grad = gradient.to(gradient_dtype(parameter))

    def _deal(self, names: Iterable[str]) -> None:
        """Deal the working weights out again."""
        for name in names:
            is_own = name in self.share.names
            whole = self.trainee.parameters[name].data if is_own else None
            self.network.deal(name, whole, self.share.owners[name])
            self._let_go([name] if is_own else [])

    def _let_go(self, names: Iterable[str]) -> None:
        for name in names:
            parameter = self.trainee.parameters[name]
            parameter.data = _without_memory(parameter.shape, parameter)

    def _trainee(self, model: nn.Module, device: torch.device, samples: int) -> TrainingModel:
        whole = named_parameters_once(model)
        matrices = {id(each) for each in sorted_out(model, whole)[0]}
        self._matrices = {name for name, each in whole.items() if id(each) in matrices}
        own, names = _hollow(model), RankShare(self.layout, *self._place).names
        trainee = super()._trainee(own, device, samples)
        for name in names:
            parameter = trainee.parameters[name]
            parameter.data = _without_memory(self.layout.shapes[name], parameter)
        self.network = ShardedNetwork(model, device, trainee.dtype, self._exchange)
        return trainee


def _turns(shapes: Mapping[str, torch.Size], share: RankShare) -> Iterator[list[str]]:
    """Parameters of each owner, the largest first: at a time as many as are together no larger than
    the largest of all.
    """
    most = max((shape.numel() for shape in shapes.values()), default=0)
    groups = dict[int, list[list[str]]]()
    for name in sorted(shapes, key=lambda each: (-shapes[each].numel(), each)):
        own = groups.setdefault(share.owners[name], [[]])
        if sum(shapes[each].numel() for each in [*own[-1], name]) > most:
            own.append([])
        own[-1].append(name)
    for turn in zip_longest(*(groups[owner] for owner in sorted(groups)), fillvalue=()):
        yield [name for names in turn for name in names]


def _without_memory(shape: Iterable[int], like: Tensor) -> Tensor:
    """A tensor of a shape that has one value."""
    return like.new_empty(()).expand(*shape)


def _hollow(model: nn.Module) -> nn.Module:
    """The same model, whose trainable parameters take no memory."""
    parameters = named_parameters_once(model).values()
    values = [parameter.data for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.new_empty(0)
    made = copy.deepcopy(model)
    for parameter, data in zip(parameters, values, strict=True):
        parameter.data = data
    return made


def _sharded(model: nn.Module, device: torch.device, exchange: TensorExchange) -> Any:
    """The model, sharded in place."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise SettingsError(
            "device: several ranks of a run with local steps need torch 2.13 or later, got "
            f"{torch.__version__}; update it, or give the node one device"
        )
    # Of logits: where the head works by pieces, they are a view, which nobody changes.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    assert dist.group.WORLD is not None, "ranks have met"
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    apart = split_tables(model, exchange)
    try:
        parts: list[Any] = [
            fully_shard(each, mesh=mesh, ignored_params=apart) for each in [*_apart(model), model]
        ]
    except ValueError as error:  # a parameter that has no rows
        raise SettingsError(f"model: torch cannot shard it over ranks: {error}") from error
    gathering, summing = _Gathering(exchange), _Summing(exchange)
    for part in parts:
        part.set_custom_all_gather(gathering)
        part.set_custom_reduce_scatter(summing)
    model.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    model.set_gradient_divide_factor(1.0)  # type: ignore[operator]
    model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    return model


def _apart(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model that share no parameter with the rest of it."""
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    of_blocks = [(block, [id(each) for each in block.parameters()]) for block in repeated(model)]
    return [block for block, own in of_blocks if own and all(uses[each] == 1 for each in own)]


def held_of(tensor: Any) -> Tensor:
    """What this rank holds of a sharded tensor: its rows."""
    rows: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return rows


class _Exchanges:
    """An exchange of torch's sharding, by that of the rank; torch names the arguments."""

    def __init__(self, exchange: TensorExchange) -> None:
        self._exchange = exchange

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gathering(_Exchanges):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        self._exchange.gather(output_tensor, input_tensor)


class _Summing(_Exchanges):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, **_: Any
    ) -> None:
        self._exchange.sum_parts(output_tensor, input_tensor)
