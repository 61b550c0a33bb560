"""One parameter group of local steps at work: steps of its own, and what they moved.

    step_locally   a step of torch's Muon or AdamW by this rank's gradients; ranks part
    extract        what the round moved into the residual, values and scales out of it
    update         everybody's movements into the committed parameters, with the same bits
    settle         the parameters stand at the committed ones again: ranks are equal

A parameter's master copy is the committed parameter. A round begins where the parameters are, so
the copy follows whatever else changed them since the last one. A parameter that had no gradient in
a round takes no part in it: this rank sends nothing of it, and keeps its residual. One that had
none on any rank is not changed at all.

All that a round has come to is in the group and in the state of its parameters, so that a state
that is saved in the middle of it goes on with the same bits.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.exact.contributions import Contribution
from node.exact.engine import Extraction
from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.optimizer import LocalOptimizer
from node.exact.local_steps.residual import Residual
from node.exact.optimizer.group import Group
from node.exact.optimizer.member import INNER, MOVED, Member, bits
from node.exact.optimizer.places import Stretch
from protocol.codec.payload import PayloadShape
from protocol.sums.movements import Movement, code_max


class LocalMember(Member):
    """The trained parameters of one group of local steps."""

    engine: Residual

    def __init__(self, group: Group, trained: Sequence[int]) -> None:
        self._moved = torch.zeros(len(trained), dtype=torch.bool, device="cpu")
        """For each trained parameter, whether a step of the round has moved it."""
        super().__init__(group, trained)
        named: dict[str, Any] = {str(index): each for index, each in self._parameters.items()}
        self._inner = LocalOptimizer(None, named, muon=group["inner"] == "muon")

    def _engine(self, device: torch.device) -> Residual:
        bits = self.group["value_bits"]
        return Residual(self.places.layout, self.group["top_k"], device, value_bits=bits)

    @property
    def present(self) -> list[bool]:
        """For each trained parameter, whether it had a gradient on this rank in this round."""
        return [bool(moved) for moved in self._moved.tolist()]

    @property
    def reach(self) -> float:
        """Sum of the learning rates of the round's steps: about how far an entry may have moved."""
        return float(self.group["reach"] or 0.0)

    @property
    def shape(self) -> PayloadShape:
        chunks = self.places.layout.chunks
        return PayloadShape(chunks, self.group["top_k"], self.group["value_bits"], scaled=True)

    # ---- the state

    def _states(self) -> dict[int, dict[str, Tensor]]:
        marks = dict(zip(self.trained, torch.split(self._moved, 1), strict=True))
        return {index: {**each, MOVED: marks[index]} for index, each in super()._states().items()}

    def inner_state(self) -> dict[int, dict[str, Tensor]]:
        """The tensors of the local optimizers by parameter, not copied; none before a step."""
        found: dict[int, dict[str, Tensor]] = {}
        for key, tensor in self._inner.state().items():
            index, _, kind = key.partition("/")
            found.setdefault(int(index), {})[kind] = tensor
        return found

    def load(self, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        super().load(states)
        device = self.engine.entries.device
        self._inner.load(
            {
                f"{index}/{kind}": state[kind].to(device) if state[kind].ndim else state[kind]
                for index, state in states.items()
                for kind in INNER
                if kind in state
            }
        )
        for index, own in self.states.items():
            if (saved := states.get(index, {}).get(MOVED)) is not None:
                own[MOVED].copy_(saved)

    def digest(self) -> bytes:
        """SHA-256 of the bits of all committed parameters."""
        digest = hashlib.sha256()
        for index in self.trained:
            digest.update(bits(self.masters[index]))
        return digest.digest()

    # ---- a round

    def step_locally(self, scale: float | None) -> None:
        """Make one step by this rank's gradients, which are `scale` times too large; None: pass
        over it, as a loss scaler found an overflow.
        """
        if self.group["reach"] is None:
            for index, master in self.masters.items():
                master.copy_(self.group["params"][index])
        rate = float(self.group["lr"])
        self.group["reach"] = self.reach + rate
        if scale is not None and self.gradients:
            self._moved |= torch.tensor(super().present, device="cpu")
            with self._unscaled(scale):
                self._inner.step(rate, float(self.group["momentum"]))

    def extract(self, scale: float) -> Extraction | None:
        """Move what the round moved into the residual, and take out what to send; None if this
        rank moved nothing.
        """
        if not self._moved.any():
            return None
        self.engine.top_k, self.engine.value_bits = self.shape.top_k, self.shape.value_bits
        moved = self._marked(self.present)
        active = self.places.active(moved)
        if active is not None:
            active = active.to(self.engine.entries.device)
        self.engine.accumulate(self._movement(moved), active)
        return self.engine.extract(active, code_max=self._code_max)

    def update(self, contributions: Sequence[Contribution], moved: Sequence[bool]) -> None:
        """Change the committed parameters marked in `moved` by everybody's movements."""
        moving = self._marked(moved)
        if not moving:
            return
        self._moved |= torch.tensor(moved, device="cpu")
        movements = [Movement(1, self._code_max, each.coefficients) for each in contributions]
        decay = float(np.float32(1 - self.reach * float(self.group["weight_decay"])))
        lines = {
            stretch: self._committed_line(stretch)
            for stretch in self.places.stretches
            if not moving.isdisjoint(stretch.indices)
        }
        matrices = {
            name: self.masters[index] if index in moving else None
            for index, name in self.places.matrices.items()
        }
        targets = matrices | {each.name: lines.get(each) for each in self.places.stretches}
        apply(self.places.layout, targets, movements, decay)
        for stretch, line in lines.items():
            for index, piece in self._cut(stretch, line).items():
                if index in moving:
                    self.masters[index].copy_(piece)

    def settle(self) -> None:
        """End the round: the parameters that a step has moved stand at the committed ones."""
        for index in self._marked(self.present):
            self.group["params"][index].copy_(self.masters[index])
        self._moved.zero_()
        self.group["reach"] = None

    @property
    def _code_max(self) -> int:
        """Code of the largest scale that the round's steps allow an author."""
        return code_max(self.reach, 1, self.shape.top_k)

    def _copied(self) -> dict[int, Tensor]:
        return {index: each.detach().clone() for index, each in self._parameters.items()}

    def _marked(self, marks: Sequence[bool]) -> set[int]:
        return {index for index, mark in zip(self.trained, marks, strict=True) if mark}

    def _movement(self, moved: Set[int]) -> dict[str, Tensor | None]:
        """Float32: the committed parameters minus where the steps led, by the engine's names; zeros
        or None for those that no step has moved.
        """
        params: Sequence[Tensor] = self.group["params"]
        found = {
            name: self.masters[index] - params[index].detach() if index in moved else None
            for index, name in self.places.matrices.items()
        }
        for stretch in self.places.stretches:
            line = self._committed_line(stretch) - self._joined(stretch)
            for index, piece in self._cut(stretch, line).items():
                if index not in moved:
                    piece.zero_()
            found[stretch.name] = line
        return found

    def _committed_line(self, stretch: Stretch) -> Tensor:
        """A copy [n] of the committed parameters of a stretch."""
        return torch.cat([self.masters[index].reshape(-1) for index in stretch.indices])

    @contextmanager
    def _unscaled(self, scale: float) -> Iterator[None]:
        """Gradients divided by `scale` while this lasts."""
        gradients = self.gradients if scale != 1 else {}
        params: Sequence[Tensor] = self.group["params"]
        try:
            for index, gradient in gradients.items():
                params[index].grad = gradient / scale
            yield
        finally:
            for index, gradient in gradients.items():
                params[index].grad = gradient
