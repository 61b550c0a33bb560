"""Gossip Adam as a torch optimizer: in place of AdamW and DistributedDataParallel, no all-reduce.

Each rank computes gradients of its own data and keeps parameters and moments of its own. A step
waits for the parameters of this round's neighbours, whose exchange began in the step before and
travelled behind the forward and backward pass; mixes; takes the Adam step with the gradient at the
un-mixed point; and begins the next exchange ("From promise to practice", arXiv 2410.11998).

    step t:  x <- sum_j W_ij x_j;   x <- (1 - lr wd) x - lr Adam(gradient);   send x

Ranks differ by design. `mean_parameters` is the model: evaluate and save it there. Every rank calls
the methods marked as collective at the same place of its program.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.optimizer import Optimizer, ParamsT

from node.exact.process_group import Ranks
from node.gossip_adam.adam import AdamSettings, Moments, direction_
from node.gossip_adam.edges import Edges
from node.gossip_adam.exchange import RankMessages, first_rank_s, mean_of
from node.gossip_adam.projection import project
from node.gossip_adam.wire import WIRE_FORMATS, WireFormat
from protocol.errors import DivergedError
from protocol.ids import PeerId, sha256
from protocol.mixing.consensus import PROJECTION_SIZE, distance, should_only_mix
from protocol.mixing.topologies import Topology, TopologyName
from protocol.mixing.weights import Mixing, shares, validated

Group = dict[str, Any]
"""A parameter group of torch: its parameters and its hyper-parameters."""


class GossipAdam(Optimizer):
    """Adam on each rank, parameters mixed with neighbours; any number of ranks.

    lr, betas, eps, weight_decay and accumulate may differ between groups and change between steps.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        accumulate: int = 1,
        topology: TopologyName = "one-peer-exponential",
        group_size: int = 2,
        wire: WireFormat = "float16",
        critical: float = 0.0,
        check_every: int = 64,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """`ValueError` for settings outside their bounds.

        accumulate: s of AccumAdam; about the number of ranks where local batches are small.
        group_size: successive ranks with fast links, for "hierarchical" and
        "alternating-exponential-ring". critical: every `check_every` steps, a round that only mixes
        if the ranks are further apart than this multiple of an update; 0: never. process_group:
        None means the default group if there is one, else this process alone.
        """
        Topology(topology)  # judges the name
        if wire not in WIRE_FORMATS:
            raise ValueError(f"expected a wire of {', '.join(WIRE_FORMATS)}, got {wire!r}")
        if group_size < 1 or check_every < 1 or not 0 <= critical < math.inf:
            raise ValueError(
                "expected group_size and check_every of at least 1 and a finite critical of at "
                f"least 0, got {group_size}, {check_every} and {critical}"
            )
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "accumulate": accumulate,
            "round": 0,
        }
        self._exchange = _Settings(topology, group_size, wire, critical, check_every)
        self._process_group = process_group
        self.skipped_steps = 0
        """Steps of this rank that only mixed, as its gradients were not finite."""
        self._mesh: _Mesh | None = None
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add float32 parameters, all of the optimizer on one device."""
        super().add_param_group(param_group)
        try:
            _check(self.param_groups)
        except ValueError:
            self.param_groups.pop()
            raise
        self._mesh = None

    @property
    def mixing(self) -> Mixing:
        """The judged topology among the ranks: print it to see how fast they come together."""
        return self._started().mixing

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Finish the mix begun last, step with the gradients, begin the next; returns the loss of
        `closure`, run first. Collective.

        A rank whose gradients are not finite leaves out its Adam step, but mixes as the others do.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        mesh = self._started()
        self._mix(mesh)
        update = self._adam_step()
        round = self._advance()
        if self._is_far_apart(update, round):
            mesh.begin(self._vector(), round)
            self._mix(mesh)
            round = self._advance()
        mesh.begin(self._vector(), round)
        return loss

    @torch.no_grad()
    def finish(self) -> None:
        """Finish the mix under way, at the end of training. Collective."""
        if self._mesh is not None:
            self._mix(self._mesh)

    @torch.no_grad()
    def distance(self) -> float:
        """Estimated root mean square of the ranks' distances to their mean. Collective."""
        reports = self._started().ranks.all_gather(project(self._vector()))
        return distance([report.tolist() for report in reports])

    @contextmanager
    def mean_parameters(self) -> Iterator[float]:
        """Within it the parameters are the mean over all ranks; afterwards this rank's own again.
        Yields this rank's distance to the mean. Collective.
        """
        with torch.no_grad():
            own = self._vector()
            mean = mean_of(own, self._started().ranks, self._process_group)
            vector_to_parameters(mean, self._parameters)
        try:
            yield float((own - mean).norm())
        finally:
            with torch.no_grad():
                vector_to_parameters(own, self._parameters)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and moments. The exchange begins anew at the next step, so all ranks
        load, and none with a mix under way.
        """
        super().load_state_dict(state_dict)
        for state in self.state.values():
            Moments.among(state)  # KeyError here and not in the middle of a step
            state |= {name: each.clone() for name, each in state.items() if torch.is_tensor(each)}
        self._mesh = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies; a process group cannot be copied, so theirs is the default one."""
        return {**super().__getstate__(), "_exchange": self._exchange}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called for copies, and by torch when it loads a state."""
        super().__setstate__(state)
        self.__dict__.setdefault("_process_group", None)
        self.__dict__.setdefault("skipped_steps", 0)
        self._mesh = None

    @property
    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _vector(self) -> Tensor:
        """A copy of all parameters, float32 [numbers]."""
        return parameters_to_vector(self._parameters).detach().clone()

    def _started(self) -> "_Mesh":
        if self._mesh is None:
            _check(self.param_groups)
            self._mesh = _Mesh(self._exchange, self._process_group, self._vector())
        return self._mesh

    def _mix(self, mesh: "_Mesh") -> None:
        mixed = mesh.finished(self._vector())
        if mixed is not None:
            vector_to_parameters(mixed, self._parameters)

    def _advance(self) -> int:
        """Count a round; returns the number of those before the next mix."""
        for group in self.param_groups:
            group["round"] += 1
        return int(self.param_groups[0]["round"])

    def _adam_step(self) -> float:
        """Returns the Euclidean size of the update, or 0 where no rule needs it."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self.skipped_steps += 1
            return 0.0
        squared = 0.0
        for group in self.param_groups:
            settings, rate = _settings(group), float(group["lr"])
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                moments = Moments.among(state) if state else Moments.like(parameter)
                moved = direction_(moments, parameter.grad, settings).mul_(rate)
                moved.add_(parameter, alpha=rate * group["weight_decay"])
                parameter.sub_(moved)
                state.update(moments.as_state())
                if self._exchange.critical:
                    squared += float(moved.square().sum())
        return math.sqrt(squared)

    def _is_far_apart(self, update: float, round: int) -> bool:
        """Whether a mixing-only round is due; equal on all ranks."""
        settings = self._exchange
        ranks = self._started().ranks
        if not settings.critical or round % settings.check_every or ranks.count == 1:
            return False
        own = torch.cat([project(self._vector()), torch.tensor([update], dtype=torch.float64)])
        reports = torch.stack(ranks.all_gather(own))
        apart = distance(reports[:, :PROJECTION_SIZE].tolist())
        return should_only_mix(apart, math.sqrt(reports[:, -1].square().mean()), settings.critical)


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings of the exchange, equal on all ranks; see `GossipAdam`."""

    topology: TopologyName
    group_size: int
    wire: WireFormat
    critical: float
    check_every: int

    def among(self, count: int) -> Topology:
        """The topology of this number of ranks."""
        peers = [_peer(rank) for rank in range(count)]
        size = self.group_size
        groups = tuple(tuple(peers[first : first + size]) for first in range(0, count, size))
        return Topology(self.topology, groups=groups)

    def digest(self, numbers: int) -> bytes:
        """A digest of all that must be equal on all ranks."""
        return sha256(repr((astuple(self), numbers)).encode())


class _Mesh:
    """This rank among the others: its edges and what travels over them."""

    def __init__(
        self, settings: _Settings, process_group: dist.ProcessGroup | None, values: Tensor
    ) -> None:
        """`DivergedError` if ranks have unlike settings or numbers of parameters. Collective."""
        self.ranks = Ranks(process_group)
        _require_equal(self.ranks, settings.digest(len(values)))
        peers = [_peer(rank) for rank in range(self.ranks.count)]
        self.mixing = validated(settings.among(self.ranks.count), peers)
        self._peers, self._own = peers, peers[self.ranks.mine]
        self._edges = Edges(settings.wire, first_rank_s(values, self.ranks, process_group))
        self._messages = RankMessages(process_group)
        self._weights: dict[PeerId, float] = {}

    def begin(self, values: Tensor, round: int) -> None:
        """Begin the mix of a round with these parameters."""
        edges = self.mixing.topology.edges(round, self._peers)
        self._weights = shares(self._own, edges, edges)
        sent = self._edges.begin(values, self._weights)
        self._messages.begin({_rank(peer): message for peer, message in sent.items()})

    def finished(self, values: Tensor) -> Tensor | None:
        """The mixed parameters, or None without a mix under way. values: as at `begin`, changed."""
        if self._edges.open is None:
            return None
        received = {
            _peer(rank): message.to(values.device)
            for rank, message in self._messages.finish().items()
        }
        self._edges.finish_(values, self._weights, received)
        return values


def _peer(rank: int) -> PeerId:
    return PeerId(f"{rank:032x}")


def _rank(peer: PeerId) -> int:
    return int(peer, 16)


def _settings(group: Group) -> AdamSettings:
    return AdamSettings(tuple(group["betas"]), group["eps"], group["accumulate"])


def _check(groups: list[Group]) -> None:
    """`ValueError` for groups that this optimizer cannot train."""
    for group in groups:
        _settings(group)
        for name in ("lr", "weight_decay"):
            if not 0 <= group[name] < math.inf:
                raise ValueError(f"expected a finite {name} of at least 0, got {group[name]}")
        for parameter in group["params"]:
            if parameter.dtype != torch.float32:
                raise ValueError(f"expected float32 parameters, got {parameter.dtype}")
    devices = sorted({str(p.device) for group in groups for p in group["params"]})
    if len(devices) != 1:
        raise ValueError(f"expected all parameters on one device, got {devices}")


def _require_equal(ranks: Ranks, digest: bytes) -> None:
    digests = ranks.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
    odd = [rank for rank, other in enumerate(digests) if not torch.equal(other, digests[0])]
    if odd:
        raise DivergedError(
            "expected equal settings and numbers of parameters on all ranks, got others than rank "
            f"0's on ranks {odd}"
        )
