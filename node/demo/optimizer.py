"""DeMo as a torch optimizer: `DeMo(model.parameters(), lr=3e-3)` in place of AdamW, without DDP.

Each rank computes gradients of its own data and does not average them. A step moves them into this
rank's momentum, extracts the k largest coefficients of every chunk, exchanges only those, and
applies those of all ranks with the whole-number arithmetic of `aggregate`: ranks that start equal
stay equal to the last bit, on any hardware.

    scale, accumulate, extract, encode
      ->  exchange: two collectives, process_group.py
      ->  decode, verify, update

The user makes ranks start equal, as with DDP; the first step compares digests and raises
`DivergedError` if they do not. A parameter without a gradient on this rank sends nothing and keeps
its momentum (small parameters share chunks, where it counts as zeros while a neighbour has a
gradient). A parameter without a gradient on any rank is not changed at all. Gradients that are NaN
or infinite on one rank raise `GradientError` on all.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from node.demo.aggregate import update
from node.demo.chunks import ChunkLayout
from node.demo.engine import GRADIENT_MAX, STATE, DemoSettings, Engine, Extraction, GradientError
from node.demo.gradient_scaling import SCALES, SQUARED_MAX, GradientScaling, Scale
from node.demo.process_group import Ranks
from node.demo.vote_sum import RULES, Contribution, Rule
from protocol.codec.payload import Header, PayloadShape, decode, sealed
from protocol.errors import DivergedError, RemoteProtocolError
from protocol.ids import PeerId, RunId, sha256

Group = dict[str, Any]
"""A parameter group of torch: its parameters and its hyper-parameters."""

_SIZES = "gradient_sizes"
_STATE = {*STATE, _SIZES}
"""Tensors in the state of a group's first parameter: those of the engine and of the scaling."""


class DeMo(Optimizer):
    """Decoupled momentum optimization, equal on all ranks to the bit.

    Hyper-parameters may differ between groups and change between steps; they must be the same on
    all ranks.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 3e-3,
        *,
        momentum_decay: float = 0.999,
        recency: float = 1.5,
        top_k: int = 32,
        value_bits: int = 1,
        weight_decay: float = 0.0,
        alpha: float = 1.0,
        update: Rule = "orthogonal",
        gradients: Scale = "even",
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """`ValueError` for settings outside their bounds.

        lr: root mean square of the change that one step makes to each parameter; weight_decay:
        decoupled, as in AdamW; update: see `vote_sum.Rule`; gradients: see
        `gradient_scaling.Scale`, read at the first step, and a step scales `grad` in place; the
        others as in `DemoSettings`. The algorithm as published is update="sign",
        gradients="plain", recency=0, and wants a lower lr. process_group: None means the default
        group if there is one, else this process alone.
        """
        defaults = {
            "lr": lr,
            "momentum_decay": momentum_decay,
            "recency": recency,
            "top_k": top_k,
            "value_bits": value_bits,
            "weight_decay": weight_decay,
            "alpha": alpha,
            "update": update,
            "gradients": gradients,
        }
        self._ranks = Ranks(process_group)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters of float dtypes on one device, with hyper-parameters of their own if
        given.
        """
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise
        self._start_over()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step together with all ranks; returns the loss of `closure`, run first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        members = self._started()
        fault = _fault(members)
        extractions = [] if fault else [member.extract() for member in members]
        payloads = [b""] * len(members) if fault else self._encoded(extractions)
        everybody, present = self._ranks.exchange(
            payloads, [some for member in members for some in member.present]
        )
        broken = [rank for rank, theirs in enumerate(everybody) if not all(theirs)]
        if broken:
            for member, extraction in zip(members, extractions, strict=False):
                member.engine.reclaim(extraction)
            raise fault or GradientError(
                f"expected finite gradients on all ranks, got others on ranks {broken}"
            )
        moved = iter(present)
        for member, contributions in zip(members, self._decoded(everybody), strict=True):
            member.update(contributions, [next(moved) for _ in member.present])
        self._round += 1
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and their state, which torch's own way would round to the parameters'
        dtype.

        `ValueError`, before anything changed, for the state of an optimizer of another release or
        kind.
        """
        for state in state_dict["state"].values():
            if state and state.keys() != _STATE:
                raise ValueError(
                    f"expected a state of {sorted(_STATE)}, got {sorted(state)}: another release "
                    "saved it"
                )
        super().load_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for name, tensor in state_dict["state"].get(saved["params"][0], {}).items():
                self.state[group["params"][0]][name] = tensor.clone()
        self._start_over()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copied or unpickled; a process group cannot be, so it becomes the default one."""
        super().__setstate__(state)
        self._ranks = Ranks(None)
        self._start_over()

    def _start_over(self) -> None:
        """Have the next step begin from `param_groups` and `state`, and compare the ranks again."""
        self._members: list[_Member] = []
        self._run_id = RunId("")
        self._round = 0

    def _started(self) -> list["_Member"]:
        """The groups at work. They are made at the first step, when the parameters are on the
        device where they stay.
        """
        if not self._members:
            self._run_id = self._agreed_start()
            self._members = [self._member(group) for group in self.param_groups]
        return self._members

    def _agreed_start(self) -> RunId:
        """A name for what all ranks start from; `DivergedError` if they do not start alike."""
        digest = _start_digest(self.param_groups)
        digests = self._ranks.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        odd = [rank for rank, other in enumerate(digests) if not torch.equal(other, digests[0])]
        if odd:
            raise DivergedError(
                "expected all ranks to start with equal parameters and settings, got others than "
                f"rank 0's on ranks {odd}: seed all ranks alike, or load the same state on all"
            )
        return RunId(digest.hex()[:32])

    def _member(self, group: Group) -> "_Member":
        """A group at work, whose tensors are, and stay, those in `state` of the group's first
        parameter.
        """
        _check(group)
        member = _Member.of(group)
        state = self.state[group["params"][0]]
        if state:
            member.engine.load_state_dict({name: state[name] for name in STATE})
            member.scaling.load(state[_SIZES])
        state.update(member.engine.state_dict())
        state[_SIZES] = member.scaling.state
        return member

    def _encoded(self, extractions: Sequence[Extraction]) -> list[bytes]:
        """This rank's payload of each group."""
        return [
            sealed(self._header(self._ranks.mine), extraction.body(member.shape), member.shape)
            for member, extraction in zip(self._members, extractions, strict=True)
        ]

    def _decoded(self, everybody: Sequence[Sequence[bytes]]) -> list[list[Contribution]]:
        """The coefficients of all ranks by group; `RemoteProtocolError` for a payload that is not a
        rank's of this step.
        """
        contributions: list[list[Contribution]] = [[] for _ in self._members]
        for rank, payloads in enumerate(everybody):
            for member, sent, payload in zip(self._members, contributions, payloads, strict=True):
                header, coefficients = decode(payload, member.shape)
                if header != self._header(rank):
                    raise RemoteProtocolError(
                        f"expected {self._header(rank)} from rank {rank}, got {header}"
                    )
                sent.append(Contribution(1, coefficients))
        return contributions

    def _header(self, rank: int) -> Header:
        """The header of a rank's payload: the agreed start, the steps since then, the rank."""
        return Header(self._run_id, self._round, PeerId(f"{rank:032x}"))


@dataclass(frozen=True, slots=True)
class _Member:
    """One parameter group at work."""

    group: Group
    engine: Engine
    scaling: GradientScaling

    @classmethod
    def of(cls, group: Group) -> "_Member":
        layout = ChunkLayout.from_shapes(
            {name: tuple(p.shape) for name, p in _named(group).items()}
        )
        device = group["params"][0].device
        scaling = GradientScaling(group["gradients"], layout.shapes, device)
        return cls(group, Engine(layout, DemoSettings.among(group), device), scaling)

    @property
    def gradients(self) -> dict[str, Tensor | None]:
        return {name: parameter.grad for name, parameter in _named(self.group).items()}

    @property
    def present(self) -> list[bool]:
        """For each parameter, whether it has a gradient on this rank."""
        return [gradient is not None for gradient in self.gradients.values()]

    @property
    def shape(self) -> PayloadShape:
        settings = self.engine.settings
        return PayloadShape(self.engine.layout.chunks, settings.top_k, settings.value_bits)

    def extract(self) -> Extraction:
        """Move this rank's gradients into the momentum and take out what to send."""
        self.engine.settings = DemoSettings.among(self.group)
        gradients = self.gradients
        self.scaling.scale_(gradients)
        present = [name for name, gradient in gradients.items() if gradient is not None]
        active = self.engine.layout.chunks_of(present).to(
            self.engine.momentum.device, non_blocking=True
        )
        self.engine.accumulate(gradients, active)
        return self.engine.extract(active)

    def update(self, contributions: Sequence[Contribution], moved: Sequence[bool]) -> None:
        """Change the parameters marked in `moved` by everybody's coefficients."""
        parameters = _named(self.group)
        layout = self.engine.layout
        views = layout.views(
            {
                name: parameter if move else None
                for (name, parameter), move in zip(parameters.items(), moved, strict=True)
            }
        )
        if views:
            learning_rate = float(self.group["lr"])
            decay = 1 - learning_rate * self.group["weight_decay"]
            update(
                layout,
                views,
                contributions,
                (learning_rate, decay),
                rule=self.group["update"],
                backend=self.engine.backend,
            )
            layout.write_back(views, parameters)


def _named(group: Group) -> dict[str, Tensor]:
    """The group's parameters by names that sort in its own order, on every rank alike."""
    return {f"{index:08d}": parameter for index, parameter in enumerate(group["params"])}


def _check(group: Group) -> None:
    """`ValueError` for a group that DeMo cannot train."""
    DemoSettings.among(group)
    for name in ("lr", "weight_decay"):
        if not 0 <= group[name] < float("inf"):
            raise ValueError(f"expected a finite {name} of at least 0, got {group[name]}")
    for name, known in (("update", RULES), ("gradients", SCALES)):
        if group[name] not in known:
            raise ValueError(f"expected {name} of {' or '.join(known)}, got {group[name]!r}")
    devices = sorted({str(parameter.device) for parameter in group["params"]})
    if len(devices) != 1:
        raise ValueError(f"expected the parameters of a group on one device, got {devices}")
    for parameter in group["params"]:
        if not parameter.is_floating_point():
            raise ValueError(f"expected parameters of float dtypes, got {parameter.dtype}")


def _fault(members: Sequence[_Member]) -> GradientError | None:
    """The error in this rank's gradients, if any, judged before one is accumulated."""
    try:
        for member in members:
            for name, gradient in member.gradients.items():
                if gradient is not None and gradient.layout != torch.strided:
                    raise GradientError(
                        f"expected dense gradients, got {gradient.layout} of parameter {int(name)}"
                    )
            most = GRADIENT_MAX if member.group["gradients"] == "plain" else SQUARED_MAX
            member.engine.require_finite(member.gradients, most)
    except GradientError as error:
        return error
    return None


def _start_digest(groups: Sequence[Mapping[str, Any]]) -> bytes:
    """SHA-256 of all that must be equal on all ranks before the first step."""
    digest = hashlib.sha256()
    for group in groups:
        settings = sorted((name, value) for name, value in group.items() if name != "params")
        digest.update(repr(settings).encode())
        for parameter in group["params"]:
            digest.update(f"{tuple(parameter.shape)} {parameter.dtype}".encode())
            bits = parameter.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
            digest.update(sha256(bits.numpy().data))
    return digest.digest()
