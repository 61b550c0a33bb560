"""The groups of an optimizer as its steps find them, and what ranks compare of them."""

import hashlib
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from node.exact.optimizer.agreement import DIGEST_BYTES
from node.exact.optimizer.demo_member import DemoMember
from node.exact.optimizer.group import (
    Group,
    check_parameters,
    check_precision,
    check_settings,
    is_trained,
    label,
    settings_lines,
    structure_lines,
)
from node.exact.optimizer.local_member import LocalMember
from node.exact.optimizer.member import LINE, MASTER, Member, bits

CHECKED_BYTES = 64 * 1024
"""Bytes of parameters for each step between two comparisons, if the user does not choose: a tenth
of a millisecond for their digest."""

CHECK_PERIOD_MAX = 100
"""Steps between two comparisons at most, if the user does not choose."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A parameter group as the last step found it."""

    trained: tuple[int, ...]
    """Indices of the parameters that take part in steps."""

    idle: tuple[int, ...]
    """Indices of the others."""

    digest: bytes
    """Digest of all its parameters' shapes and dtypes."""

    member: Member | None
    """None if no parameter takes part."""


class Placement:
    """The groups at work. A parameter takes part from the first step that finds it not frozen, or
    with a gradient, or with a saved state.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """optimizer: its groups and state are read anew at every step."""
        self._optimizer = optimizer
        self._placed: list[_Placed] = []

    @property
    def _groups(self) -> Sequence[Group]:
        return self._optimizer.param_groups

    @property
    def _state(self) -> MutableMapping[Tensor, dict[str, Any]]:
        return self._optimizer.state

    @property
    def members(self) -> list[Member]:
        """The groups with parameters that take part."""
        return [placed.member for placed in self._placed if placed.member]

    def look(self, scale: float | None) -> None:
        """Bring all groups up to date, and read and judge settings and gradients, which are
        `scale` times too large; None: not the gradients.

        `SettingsError` and `GradientError`, before anything has moved.
        """
        several = len(self._groups) > 1
        for number, group in enumerate(self._groups):
            check_settings(group, f" in group {number}" if several else "")
        self._place()
        for number, placed in enumerate(self._placed):
            if placed.member:
                name = partial(label, self._groups, number)
                placed.member.require_as_before(name)
                if scale is not None:
                    placed.member.look(name, scale)

    # ---- local steps

    @property
    def local_members(self) -> list[LocalMember]:
        """The groups that make local steps."""
        return [member for member in self.members if isinstance(member, LocalMember)]

    def step_locally(self, scale: float | None) -> None:
        """Make a local step of all groups; see `LocalMember.step_locally`."""
        for placed, group in zip(self._placed, self._groups, strict=True):
            if isinstance(placed.member, LocalMember):
                placed.member.step_locally(scale)
                for index, tensors in placed.member.inner_state().items():
                    self._state[group["params"][index]].update(tensors)

    # ---- what ranks compare

    def plan(self, lines: dict[str, str]) -> bytes:
        """Digest of all that must be equal on all ranks but the parameters' entries: settings,
        structure, and further lines.
        """
        digest = hashlib.sha256(repr(settings_lines(self._groups) | lines).encode())
        for placed in self._placed:
            digest.update(placed.digest)
        return digest.digest()[:DIGEST_BYTES]

    def plan_lines(self) -> dict[str, str]:
        """Structure and settings for a person."""
        lines: dict[str, str] = {}
        for number, (group, placed) in enumerate(zip(self._groups, self._placed, strict=True)):
            lines.update(structure_lines(number, group, placed.trained))
        return lines | settings_lines(self._groups)

    def digest(self, *, frozen: bool) -> bytes:
        """Digest of the bits of all parameters that take part; of the `frozen` ones, too."""
        digest = hashlib.sha256()
        for member in self.members:
            digest.update(member.digest())
        for group, placed in zip(self._groups, self._placed, strict=True) if frozen else ():
            for index in placed.idle:
                digest.update(bits(group["params"][index]))
        return digest.digest()[:DIGEST_BYTES]

    def parameter_lines(self) -> dict[str, str]:
        """A digest of each parameter and its master copy, for a person."""
        lines = {}
        for number, index, parameter in self._parameters():
            master = self._state.get(parameter, {}).get(MASTER)
            parts = self._groups[number].get("inner") and master is not None  # the others moved
            digest = hashlib.sha256(b"" if parts else bits(parameter))
            if master is not None:
                digest.update(bits(master))
            lines[f"parameter {index} of group {number}"] = digest.hexdigest()[:8]
        return lines

    def labels(self) -> dict[str, str]:
        """Longer names of lines: those with the names of parameters, where there are any."""
        return {
            (short := f"parameter {index} of group {number}"): (
                f"{short} ({self._groups[number]['param_names'][index]})"
            )
            for number, index, _ in self._parameters()
            if self._groups[number].get("param_names")
        }

    @property
    def check_period(self) -> int:
        """Steps from one comparison of the parameters to the next that cost next to nothing."""
        trained_bytes = sum(member.trained_bytes for member in self.members)
        return min(max(-(-trained_bytes // CHECKED_BYTES), 1), CHECK_PERIOD_MAX)

    # ---- groups brought up to date

    def _place(self) -> None:
        """Make a group again where another parameter takes part: at the first step, when the
        parameters are on the device where they stay, and when one is unfrozen.
        """
        for number, group in enumerate(self._groups):
            before = self._placed[number] if number < len(self._placed) else None
            idle = before.idle if before else range(len(group["params"]))
            found = [index for index in idle if self._takes_part(group["params"][index])]
            if before is None or found or self._is_reset(before, group):
                trained = tuple(sorted([*(before.trained if before else ()), *found]))
                lines = dict(structure_lines(number, group, trained))
                digest = hashlib.sha256(repr(lines).encode()).digest()
                member = self._member(number, trained) if trained else None
                others = tuple(sorted({*range(len(group["params"]))} - {*trained}))
                self._placed[number : number + 1] = [_Placed(trained, others, digest, member)]

    def _is_reset(self, placed: _Placed, group: Group) -> bool:
        """Whether the user has taken this group's tensors out of the state, or put others in."""
        if placed.member is None:
            return False
        return any(
            self._state.get(group["params"][index], {}).get(name) is not tensor
            for index, own in placed.member.states.items()
            for name, tensor in own.items()
        )

    def _takes_part(self, parameter: Tensor) -> bool:
        return is_trained(parameter) or (parameter in self._state and parameter.numel() > 0)

    def _member(self, number: int, trained: tuple[int, ...]) -> Member:
        """A group at work, whose tensors are, and stay, those in `state`."""
        group = self._groups[number]
        params: Sequence[Tensor] = group["params"]
        names = [label(self._groups, number, index) for index in trained]
        check_parameters([params[index] for index in trained], names)
        if "inner" in group:
            check_precision([params[index] for index in trained], names)
        member = (LocalMember if "inner" in group else DemoMember)(group, trained)
        member.load({index: self._state.get(params[index], {}) for index in trained})
        for index, tensors in member.states.items():
            state = self._state[params[index]]
            state.pop(LINE, None)  # another parameter may be the first on the line now
            state.update(tensors)
        return member

    def _parameters(self) -> Iterator[tuple[int, int, Tensor]]:
        for number, group in enumerate(self._groups):
            for index, parameter in enumerate(group["params"]):
                yield number, index, parameter
