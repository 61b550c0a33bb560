"""One parameter group of DeMo at work: its momentum and its master copies.

A bfloat16 or float16 parameter cannot hold a step that is small beside it, so it has a master copy
in float32, which moves exactly, and is that copy rounded. The copy follows whatever else changes
the parameter.
"""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from node.exact.contributions import Contribution
from node.exact.demo.aggregate import update
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.engine import Extraction
from node.exact.optimizer.member import Member, bits
from node.exact.optimizer.places import Stretch
from protocol.codec.payload import PayloadShape

LOW = (torch.bfloat16, torch.float16)
"""Dtypes whose parameters have a master copy."""


class DemoMember(Member):
    """The trained parameters of one group of DeMo."""

    engine: Momentum

    @property
    def shape(self) -> PayloadShape:
        settings = DemoSettings.among(self.group)
        return PayloadShape(self.places.layout.chunks, settings.top_k, settings.value_bits)

    def _engine(self, device: torch.device) -> Momentum:
        return Momentum(self.places.layout, DemoSettings.among(self.group), device)

    # ---- the state

    def digest(self) -> bytes:
        """SHA-256 of the bits of all trained parameters and their master copies."""
        digest = hashlib.sha256()
        for index in self.places.matrices:
            digest.update(bits(self.group["params"][index]))
        for stretch in self.places.stretches:
            digest.update(bits(self._joined(stretch)))
        for index in self.masters:
            digest.update(bits(self.masters[index]))
        return digest.digest()

    # ---- a step

    def extract(self, scale: float) -> Extraction | None:
        """Move this rank's gradients, divided by `scale`, into the momentum, and take out what to
        send; None if it has no gradient, or nothing but zeros before the first one.
        """
        gradients = self.gradients
        if not gradients or (not self._magnitude and not self.engine.accumulations):
            return None
        self.engine.settings = DemoSettings.among(self.group)
        active = self.places.active(gradients.keys())
        if active is not None:
            active = active.to(self.engine.entries.device, non_blocking=True)
        self.engine.accumulate(self._divided(gradients, scale), active)
        return self.engine.extract(active)

    def update(self, contributions: Sequence[Contribution], moved: Sequence[bool]) -> None:
        """Change the trained parameters marked in `moved` by everybody's coefficients."""
        rate = float(self.group["lr"])
        moving = {index for index, move in zip(self.trained, moved, strict=True) if move}
        if not rate or not moving:
            return
        matrices = {
            name: self._exact(index) if index in moving else None
            for index, name in self.places.matrices.items()
        }
        lines = {
            stretch: self._exact_line(stretch)
            for stretch in self.places.stretches
            if not moving.isdisjoint(stretch.indices)
        }
        targets = matrices | {each.name: lines.get(each) for each in self.places.stretches}
        layout = self.places.layout
        views = layout.views(targets)
        rates = (rate, 1 - rate * float(self.group["weight_decay"]))
        update(layout, views, contributions, rates, backend=self.engine.backend)
        layout.write_back(views, {name: each for name, each in targets.items() if each is not None})
        for index in self.places.matrices:
            if index in moving and index in self.masters:
                self.group["params"][index].copy_(self.masters[index])
        for stretch, line in lines.items():
            self._write_line(stretch, line, moving)

    def _divided(self, gradients: Mapping[int, Tensor], scale: float) -> dict[str, Tensor | None]:
        """The gradients divided by `scale`, by the engine's names."""
        if scale == 1:
            return self._for_engine(gradients)
        if self._line is not None:
            self._line.div_(scale)
        return self._for_engine(
            {
                index: gradients[index].float() / scale
                for index in self.places.matrices
                if index in gradients
            }
        )

    # ---- parameters

    def _copied(self) -> dict[int, Tensor]:
        """Float32 copies of parameters of low precision; those of one stretch lie end to end."""
        low = [index for index, each in self._parameters.items() if each.dtype in LOW]
        copies = {
            index: self.group["params"][index].detach().float()
            for index in low
            if index in self.places.matrices
        }
        for stretch in self.places.stretches:
            if stretch.dtype in LOW:
                copies.update(self._cut(stretch, self._joined(stretch).float()))
        return dict(sorted(copies.items()))

    def _exact(self, index: int) -> Tensor:
        """The tensor that an update changes: a parameter, or its master copy, up to date."""
        parameter: Tensor = self.group["params"][index]
        if index not in self.masters:
            return parameter
        return _follow(self.masters[index], parameter)

    def _exact_line(self, stretch: Stretch) -> Tensor:
        """A copy [n] of what an update changes in a stretch."""
        joined = self._joined(stretch)
        if stretch.dtype not in LOW:
            return joined
        masters = torch.cat([self.masters[index].reshape(-1) for index in stretch.indices])
        return _follow(masters, joined)

    def _write_line(self, stretch: Stretch, line: Tensor, moving: set[int]) -> None:
        pieces = self._cut(stretch, line)
        indices = [index for index in stretch.indices if index in moving]
        for targets in (self.group["params"], self.masters):
            if targets is not self.masters or stretch.dtype in LOW:
                new = [pieces[index] for index in indices]
                torch._foreach_copy_([targets[index] for index in indices], new)


def _follow(master: Tensor, parameter: Tensor) -> Tensor:
    """The master copy, in place, with the parameter's entries where something else set them."""
    stale = master.to(parameter.dtype) != parameter.detach()
    return master.copy_(torch.where(stale, parameter.detach().float(), master))
