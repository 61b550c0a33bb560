"""One parameter group of local steps at work: steps of its own, and what they moved.

    step_locally   a step of torch's Muon or AdamW by this rank's gradients; ranks part
    extract        what the round moved into the residual, signs and scales out of it
    update         everybody's movements into the committed parameters, with the same bits
    settle         the parameters stand at the committed ones again: ranks are equal

A parameter's master copy is the committed parameter. A round begins where the parameters are, so
the copy follows whatever else changed them since the last one.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.demo.engine import DemoSettings, Extraction
from node.demo.local_steps.aggregate import Movement, apply, code_max
from node.demo.local_steps.optimizer import LocalOptimizer
from node.demo.local_steps.residual import Residual
from node.demo.optimizer.group import Group
from node.demo.optimizer.member import Member, bits
from node.demo.optimizer.places import Stretch
from node.demo.vote_sum import Contribution
from protocol.codec.payload import PayloadShape


class LocalMember(Member):
    """The trained parameters of one group of local steps."""

    engine: Residual

    def __init__(self, group: Group, trained: Sequence[int]) -> None:
        super().__init__(group, trained)
        device = self.engine.momentum.device
        self.engine = Residual(self.places.layout, group["top_k"], device)
        named: dict[str, Any] = {str(index): each for index, each in self._parameters.items()}
        self._inner = LocalOptimizer(None, named, muon=group["inner"] == "muon")
        self.reach = 0.0
        """Sum of the learning rates of the round's steps: about how far an entry may have moved."""
        self._calls = 0
        """Steps of the round so far, those that this rank passed over included."""
        self._steps = 0
        """Steps of the round that this rank made."""

    @property
    def present(self) -> list[bool]:
        """Whether this rank has moved anything, the same for all parameters."""
        return [bool(self._steps or self.engine.accumulations)] * len(self.trained)

    @property
    def shape(self) -> PayloadShape:
        chunks = self.places.layout.chunks
        return PayloadShape(chunks, DemoSettings.among(self.group).top_k, 1, scaled=True)

    # ---- the state

    def inner_state(self) -> dict[int, dict[str, Tensor]]:
        """The tensors of the local optimizers by parameter, not copied; none before a step."""
        found: dict[int, dict[str, Tensor]] = {}
        for key, tensor in self._inner.state().items():
            index, _, kind = key.partition("/")
            found.setdefault(int(index), {})[kind] = tensor
        return found

    def load_inner(self, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Take over what `inner_state` returned, of some parameters."""
        self._inner.load(
            {
                f"{index}/{kind}": tensor
                for index, state in states.items()
                for kind, tensor in state.items()
            }
        )

    def carry_over(self, earlier: Member) -> None:
        super().carry_over(earlier)
        assert isinstance(earlier, LocalMember), "a group keeps its kind"
        self.load_inner(earlier.inner_state())
        self.reach, self._calls, self._steps = earlier.reach, earlier._calls, earlier._steps

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
        if not self._calls:
            for index, master in self.masters.items():
                master.copy_(self.group["params"][index])
        self._calls += 1
        rate = float(self.group["lr"])
        self.reach += rate
        if scale is not None and self.gradients:
            with self._unscaled(scale):
                self._inner.step(rate)
            self._steps += 1

    def extract(self, scale: float) -> Extraction | None:
        """Move what the round moved into the residual, and take out what to send; None if this
        rank never moved anything.
        """
        if not any(self.present):
            return None
        self.engine.settings = DemoSettings.among(self.group)
        self.engine.accumulate(self._moved())
        return self.engine.extract(code_max=self._code_max)

    def update(self, contributions: Sequence[Contribution], moved: Sequence[bool]) -> None:
        """Change the committed parameters by everybody's movements."""
        movements = [Movement(1, self._code_max, each.coefficients) for each in contributions]
        decay = float(np.float32(1 - self.reach * float(self.group["weight_decay"])))
        lines = {stretch: self._committed_line(stretch) for stretch in self.places.stretches}
        targets = {name: self.masters[index] for index, name in self.places.matrices.items()}
        targets |= {stretch.name: line for stretch, line in lines.items()}
        apply(self.places.layout, targets, movements, decay)
        for stretch, line in lines.items():
            for index, piece in self._cut(stretch, line).items():
                self.masters[index].copy_(piece)

    def settle(self) -> None:
        """End the round: the parameters stand at the committed ones."""
        if self._calls:
            for index, master in self.masters.items():
                self.group["params"][index].copy_(master)
        self.reach, self._calls, self._steps = 0.0, 0, 0

    @property
    def _code_max(self) -> int:
        """Code of the largest scale that the round's steps allow an author."""
        return code_max(self.reach, 1, self.shape.top_k)

    def _copied(self) -> dict[int, Tensor]:
        return {index: each.detach().clone() for index, each in self._parameters.items()}

    def _moved(self) -> dict[str, Tensor]:
        """Float32: the committed parameters minus where the steps led, by the engine's names."""
        params: Sequence[Tensor] = self.group["params"]
        moved = {
            name: self.masters[index] - params[index].detach()
            for index, name in self.places.matrices.items()
        }
        for stretch in self.places.stretches:
            moved[stretch.name] = self._committed_line(stretch) - self._joined(stretch)
        return moved

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
