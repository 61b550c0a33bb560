"""DeMo as a torch optimizer: `DeMo(model.parameters())` in place of AdamW, without DDP.

Each rank computes gradients of its own data and does not average them. It makes local steps by
them, or moves them into its momentum; every H-th step, or each one, extracts the k largest
coefficients of every chunk, exchanges only those, and applies those of all ranks in whole-number
arithmetic: ranks that start equal stay equal to the last bit, on any hardware.

    settings, gradients   judged on this rank              group, member
      ->  heads           a collective of 64 bytes         agreement: all step, or none
      ->  payloads        accumulated, extracted, encoded; a second collective
      ->  parameters      decoded, verified, updated

The user makes ranks start equal, as with DDP. Whatever keeps a rank from a step, or makes it unlike
the others, raises on every rank, with one sentence that names the rank and the cause, before
anything has moved. A parameter without a gradient on this rank sends nothing and keeps its momentum
(small parameters share chunks, where it counts as zeros while a neighbour has a gradient). A
parameter without a gradient on any rank is not changed at all.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, ParamsT

from node.exact.contributions import Contribution
from node.exact.engine import Extraction
from node.exact.optimizer import parcel
from node.exact.optimizer.agreement import (
    UNCHECKED,
    Blame,
    Fault,
    Head,
    Verdict,
    difference,
    encode_lines,
    fault_of,
    judge,
)
from node.exact.optimizer.faults import error_of_fault, fault_of_error, text_of
from node.exact.optimizer.group import (
    BEGINNING,
    Group,
    check_ordered,
    check_parameters,
    check_precision,
    check_settings,
    default_settings,
    label,
)
from node.exact.optimizer.likeness import Likeness
from node.exact.optimizer.member import Member
from node.exact.optimizer.placement import Placement
from node.exact.optimizer.saved import arranged
from node.exact.process_group import Ranks
from protocol.codec.payload import Header, decode, sealed
from protocol.errors import (
    DivergedError,
    RemoteProtocolError,
    SettingsError,
    UnavailableError,
)
from protocol.ids import PeerId, RunId

LOCAL_STEPS_MAX = 10_000
"""Steps from one exchange to the next at most."""


class DeMo(Optimizer):
    """Decoupled momentum optimization, equal on all ranks to the bit.

    Hyper-parameters may differ between groups and change between steps; they must be the same on
    all ranks.
    """

    _failed: Exception | None
    """The error that keeps this rank from the next exchange, until it is raised; a state that is
    saved before has its sentence (`_fault`)."""

    _step_supports_amp_scaling = True  # `torch.amp.GradScaler` then sets grad_scale and found_inf

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        *,
        local_steps: int = 5,
        top_k: int | None = None,
        weight_decay: float = 0.0,
        momentum_decay: float | None = None,
        value_bits: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        check_every: int | None = None,
    ) -> None:
        """`ValueError` for settings outside their bounds, and for parameters that are sharded or
        of dtypes that cannot be trained.

        local_steps: H, the steps from one exchange to the next; matrices move by Muon in between,
        all else and groups with inner="adamw", for embeddings, by AdamW. Or 0: each step is
        exchanged, as in DeMo; momentum_decay counts then alone. lr: that of Muon and AdamW; with 0
        the change of each entry (docs/guide/optimizer.md). top_k: coefficients sent of the 4096 in
        a chunk, about 40 H. weight_decay: decoupled, as in AdamW. value_bits: those of a sent
        value, with local steps 1 or 2: a sign, or one with one of two scales. The others as in
        `DemoSettings`. None: the default (`group.DEFAULTS`, `group.DEMO_DEFAULTS`). process_group:
        None means the default group if there is one, else this process alone. check_every: steps
        from one comparison of all ranks' parameters to the next; None: every step for a small
        model, every 100 for a large one.
        """
        if check_every is not None and check_every < 1:
            raise SettingsError(f"expected a check_every of at least 1, got {check_every}")
        if not 0 <= local_steps <= LOCAL_STEPS_MAX or int(local_steps) != local_steps:
            raise SettingsError(
                f"expected local_steps of 0 to {LOCAL_STEPS_MAX}, got {local_steps}"
            )
        given = {"momentum_decay": momentum_decay, "value_bits": value_bits}
        defaults = default_settings(local_steps, lr, top_k, weight_decay, given)
        self._ranks = Ranks(process_group)
        self._check_every = check_every
        self._local_steps = local_steps
        self._start_over()
        check_ordered(params)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters, with hyper-parameters of their own if given. Those that are not frozen
        have float dtypes and are on one device. On several ranks all add the same at the same step,
        which may be between two exchanges.
        """
        check_ordered(param_group["params"])
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        group = self.param_groups[number]
        group.update(BEGINNING)
        if not self._local_steps:
            group.pop("inner", None)  # there is nothing inside a round
        try:
            check_settings(group)
            names = [label(self.param_groups, number, i) for i in range(len(group["params"]))]
            check_parameters(group["params"], names)
            if self._local_steps:
                check_precision(group["params"], names)
        except ValueError:
            self.param_groups.pop()
            raise
        self._steps = 0

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step together with all ranks; returns the loss of `closure`, run first.

        All ranks stand where the last exchange left them when it raises `GradientError` (a gradient
        is sparse, NaN or too large), `ValueError` (settings out of bounds, a parameter of another
        dtype than before), `DivergedError` (ranks differ) or `UnavailableError` (a rank has stopped
        or failed). Several ranks raise at the exchange, a process alone at once.
        """
        calls = self._calls + 1
        for group in self.param_groups:
            group["calls"] = calls
        exchanges = calls >= self._local_steps
        if exchanges:
            self._ranks.begin()
        loss = None
        if closure is not None:
            try:
                with torch.enable_grad():
                    loss = closure()
            except Exception as error:
                self._fail(error)
                if exchanges or self._ranks.count == 1:
                    self._exchange(False)
                raise
        overflow = bool(getattr(self, "found_inf", None) or 0)
        self._look(overflow)
        if exchanges or (self._fault and self._ranks.count == 1):
            self._exchange(overflow and not self._local_steps)
        return loss

    def _exchange(self, overflow: bool) -> None:
        """Agree with all ranks, and make a step with them if all can."""
        try:
            heads = self._agree(overflow)
            if judge(heads) is Verdict.STEP and any(head.work for head in heads):
                self._move(RunId(heads[0].plan.hex()), min(head.room_bytes for head in heads))
                self._steps += 1
        finally:
            self._failed = None
            for group in self.param_groups:
                group["calls"], group["fault"] = 0, ""
            for member in self._placement.local_members:
                member.settle()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and their state, which torch's own way would round to the parameters'
        dtype. Parameters with names, on both sides, are matched by them.

        `ValueError`, before anything changed, for the state of an optimizer of another release or
        kind, or of other parameters.
        """
        found = arranged(state_dict, self.param_groups)
        super().load_state_dict(found)
        for group, saved in zip(self.param_groups, found["param_groups"], strict=True):
            for parameter, key in zip(group["params"], saved["params"], strict=True):
                for name, tensor in found["state"].get(key, {}).items():
                    self.state[parameter][name] = tensor.clone()
        self._start_over()

    def __getstate__(self) -> dict[str, Any]:
        own = {"_check_every": self._check_every, "_local_steps": self._local_steps}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copied or unpickled; a process group cannot be, so it becomes the default one."""
        super().__setstate__(state)
        if "_ranks" not in self.__dict__:  # torch's load_state_dict comes here, too
            self._ranks = Ranks(None)
        self._start_over()

    def _start_over(self) -> None:
        """Have the next step begin from `param_groups` and `state`, and compare the ranks."""
        self._placement = Placement(self)
        self._steps = 0
        self._failed = None
        self._room_bytes = 0
        self._likeness = Likeness()

    # ---- since the last exchange

    @property
    def _calls(self) -> int:
        """Calls of `step` since the last exchange; a group that was added meanwhile has fewer."""
        return max(int(group["calls"]) for group in self.param_groups)

    @property
    def _fault(self) -> Fault | None:
        """What keeps this rank from the next exchange."""
        told = next((group["fault"] for group in self.param_groups if group["fault"]), "")
        return Fault.decode(told.encode()) if told else None

    def _fail(self, error: Exception) -> None:
        """Keep an error for the exchange, if it is the first since the last one."""
        if not self._fault:
            self._failed = error
            for group in self.param_groups:
                group["fault"] = fault_of_error(error).encode().decode()

    # ---- before the exchange

    def _look(self, overflow: bool) -> None:
        """Judge what this step has, and make a local step."""
        scale = None if overflow else self._loss_scale
        try:
            self._placement.look(scale)
            if self._local_steps and not self._fault:
                self._placement.step_locally(scale)
        except Exception as error:  # whatever it is, the other ranks must not wait
            self._fail(error)

    @property
    def _loss_scale(self) -> float:
        """How many times too large a loss scaler has made the gradients."""
        scale = getattr(self, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    # ---- the agreement

    def _agree(self, overflow: bool) -> list[Head]:
        """The heads of all ranks; raises the same error on all, unless all may step or skip."""
        head = Head(UNCHECKED, UNCHECKED, self._room_bytes, True, overflow, False)
        if not self._fault:
            work = any(any(member.present) for member in self._placement.members)
            plan = self._placement.plan(self._own_lines())
            head = Head(plan, self._parameters(), self._room_bytes, False, overflow, work)
        heads = [Head.decode(blob) for blob in self._ranks.gather(head.encode())]
        match judge(heads):
            case Verdict.FAULT:
                raise self._error()
            case Verdict.PLAN:
                found = self._difference(self._placement.plan_lines() | self._own_lines())
                raise DivergedError(f"expected equal settings and groups on all ranks, but {found}")
            case Verdict.PARAMETERS:
                found = self._difference(self._placement.parameter_lines())
                cure = "seed all ranks alike, or load the same state on all"
                if self._steps:
                    cure = "something other than this optimizer has changed it on one rank"
                raise DivergedError(f"expected equal parameters on all ranks, but {found}: {cure}")
        return heads

    def _error(self) -> Exception:
        """The error of this rank when one, perhaps this one, cannot make the step."""
        report = self._fault.encode() if self._fault else b""
        told = fault_of(self._ranks.gather_any(report), self._ranks.names)
        return (told.blame is Blame.OTHER and self._failed) or error_of_fault(told)

    def _difference(self, lines: dict[str, str]) -> str:
        """The first difference between these lines of all ranks."""
        reports = self._ranks.gather_any(encode_lines(lines))
        return difference(reports, self._ranks.names, self._placement.labels())

    def _own_lines(self) -> dict[str, str]:
        """The values that must be equal on all ranks, beside the groups."""
        since = "the number of steps since the optimizer was made, loaded or given a group"
        lines = {"check_every": str(self._check_every), since: str(self._steps)}
        if self._local_steps:
            reaches = [member.reach for member in self._placement.local_members]
            lines["local_steps"] = str(self._local_steps)
            lines["the sum of lr since the last exchange, by group,"] = str(reaches)
        return lines

    def _parameters(self) -> bytes:
        """Digest of the parameters, in a step that compares them; frozen ones in the first."""
        period = self._check_every or self._placement.check_period
        if self._ranks.count == 1 or self._steps % period:
            return UNCHECKED
        return self._placement.digest(frozen=not self._steps)

    # ---- the exchange

    def _move(self, plan: RunId, room_bytes: int) -> None:
        """Exchange what this step sends, and change the parameters by everybody's."""
        members = self._placement.members
        header = self._header(plan, self._ranks.mine)
        present = [here for member in members for here in member.present]
        sent: list[tuple[Member, Extraction]] = []
        failed: Exception | None = None
        try:
            payloads = [self._payload(member, header, sent) for member in members]
            own = parcel.encode(present, payloads)
        except Exception as error:  # whatever it is, the other ranks must not wait
            failed, own = error, parcel.encode_failure(text_of(error))
        parcels = self._ranks.gather_any(own, room_bytes)
        longest = max(map(len, parcels))
        self._room_bytes = -(-(longest + longest // 32) // 64) * 64  # sizes vary by some percent
        for rank, each in zip(self._ranks.names, parcels, strict=True):
            if reason := parcel.failure(each):
                for member, extraction in sent:
                    member.engine.put_back(extraction)
                text = f"expected a step of all ranks, but rank {rank}: {reason}"
                raise failed or UnavailableError(text)
        moved, contributions = self._opened(parcels, plan)
        self._likeness.look(contributions, self._ranks.count)
        for member, theirs in zip(members, contributions, strict=True):
            here, moved = moved[: len(member.trained)], moved[len(member.trained) :]
            member.update(theirs, here)

    def _payload(
        self, member: Member, header: Header, sent: list[tuple[Member, Extraction]]
    ) -> bytes:
        """This rank's payload of a group, empty if it sends nothing; adds to `sent`."""
        extraction = member.extract(self._loss_scale)
        if extraction is None:
            return b""
        sent.append((member, extraction))
        return sealed(header, extraction.body(member.shape), member.shape)

    def _opened(
        self, parcels: Sequence[bytes], plan: RunId
    ) -> tuple[list[bool], list[list[Contribution]]]:
        """For each trained parameter of all groups whether any rank has a gradient, and all ranks'
        coefficients by group; `RemoteProtocolError` for a payload that is not of this step.
        """
        members = self._placement.members
        total = sum(len(member.trained) for member in members)
        moved = [False] * total
        contributions: list[list[Contribution]] = [[] for _ in members]
        for rank, each in enumerate(parcels):
            present, payloads = parcel.decode(each, total, len(members))
            moved = [a or b for a, b in zip(moved, present, strict=True)]
            for member, found, payload in zip(members, contributions, payloads, strict=True):
                if payload:
                    header, coefficients = decode(payload, member.shape)
                    if header != (wanted := self._header(plan, rank)):
                        raise RemoteProtocolError(
                            f"expected {wanted} from rank {rank}, got {header}"
                        )
                    found.append(Contribution(1, coefficients))
        return moved, contributions

    def _header(self, plan: RunId, rank: int) -> Header:
        """The header of a rank's payload: the agreed plan, the steps made, the rank."""
        return Header(plan, self._steps, PeerId(f"{rank:032x}"))
