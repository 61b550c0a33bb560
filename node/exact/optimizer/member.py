"""One parameter group at work: its momentum and its master copies.

A step takes it through `look` (read and judge this rank's gradients), `payload` (gradients into the
momentum, the largest coefficients out of it) and `update` (everybody's coefficients into the
parameters). `look` and `payload` leave `grad` as it is.

A bfloat16 or float16 parameter cannot hold a step that is small beside it, so it has a master copy
in float32, which moves exactly, and is that copy rounded. The copy follows whatever else changes
the parameter.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from node.exact.aggregate import update
from node.exact.dct import dct_matrix
from node.exact.engine import (
    GRADIENT_MAX,
    STATE,
    DemoSettings,
    Engine,
    Extraction,
    GradientError,
    require_finite,
)
from node.exact.optimizer.group import Group
from node.exact.optimizer.places import Places, Stretch
from node.exact.vote_sum import Contribution
from protocol.codec.payload import PayloadShape
from protocol.errors import SettingsError
from protocol.limits import CHUNK_SIDE

MOMENTUM = "momentum"
"""Name in a parameter's state of its momentum: float32 [chunks, 64, 64], in coefficient space."""

LINE = "line"
"""Name of the momentum that small parameters share, float32 [chunks, 64, 64], in the state of the
first of them."""

PLACE = "place"
"""Name of a parameter's place: int64, its first entry along that line or -1, and its shape."""

ACCUMULATIONS = "accumulations"
"""Name of the count of gradients that have entered the group's momentum: int64 [1]."""

MASTER = "master"
"""Name of a parameter's master copy in its state."""

MOVED = "moved"
"""Name of the mark that a local step since the last exchange has moved a parameter: bool [1]."""

INNER = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")
"""Names of the state of torch's Muon and AdamW, which make local steps, in a parameter's state."""

LOW = (torch.bfloat16, torch.float16)
"""Dtypes whose parameters have a master copy."""


class Member:
    """The trained parameters of one group, with all that a step needs to know of them."""

    def __init__(self, group: Group, trained: Sequence[int]) -> None:
        """trained: indices in the group of the parameters that take part, in ascending order."""
        self.group = group
        self.trained = tuple(trained)
        self.places = Places.of(self._parameters)
        device = self._parameters[self.trained[0]].device
        self.engine = self._engine(device)
        self.masters = self._copied()
        self.states = self._states()
        """The state of each parameter, by index in the group: the tensors themselves."""
        self._kinds = {index: _kind(each) for index, each in self._parameters.items()}
        sizes = (each.numel() * each.element_size() for each in self._parameters.values())
        self.trained_bytes = sum(sizes)
        """Bytes of the parameters, without master copies."""
        self._line: Tensor | None = None
        self._magnitude = 0.0

    @property
    def gradients(self) -> dict[int, Tensor]:
        """The gradients that there are on this rank, by index in the group."""
        found = ((index, self.group["params"][index].grad) for index in self.trained)
        return {index: gradient for index, gradient in found if gradient is not None}

    @property
    def present(self) -> list[bool]:
        """For each trained parameter, whether it has a gradient on this rank."""
        return [self.group["params"][index].grad is not None for index in self.trained]

    @property
    def shape(self) -> PayloadShape:
        settings = DemoSettings.among(self.group)
        return PayloadShape(self.places.layout.chunks, settings.top_k, settings.value_bits)

    def _engine(self, device: torch.device) -> Engine:
        return Engine(self.places.layout, DemoSettings.among(self.group), device)

    # ---- the state

    def _states(self) -> dict[int, dict[str, Tensor]]:
        starts, tensors = self.places.starts, self.engine.state_dict()
        found = {
            index: {
                PLACE: torch.tensor([starts.get(index, -1), *shape], device="cpu"),
                ACCUMULATIONS: tensors["accumulations"],
            }
            for index, shape in self.places.shapes.items()
        }
        for matrix in self.places.layout.matrices:
            found[int(matrix.name)][MOMENTUM] = tensors["momentum"][matrix.first : matrix.stop]
        if starts:
            first = self.places.layout.matrix_chunks
            found[self.places.line[0]][LINE] = tensors["momentum"][first:]
        for index, master in self.masters.items():
            found[index][MASTER] = master
        return found

    def load(self, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Take over copies of what `states` was, of parameters of the same shapes. Others begin
        anew, and so does what a state lacks.
        """
        momentum, count = (self.engine.state_dict()[name] for name in STATE)
        for matrix in self.places.layout.matrices:
            if (kept := states.get(int(matrix.name), {}).get(MOMENTUM)) is not None:
                momentum[matrix.first : matrix.stop] = kept
        for state in states.values():
            if LINE in state:
                chunks = momentum[self.places.layout.matrix_chunks :]
                self._load_line(chunks, state[LINE].to(chunks.device), _starts(states))
            count.clamp_(min=int(state.get(ACCUMULATIONS, 0)))
        for index, master in self.masters.items():
            if (saved := states.get(index, {}).get(MASTER)) is not None:
                master.copy_(saved)

    def _load_line(self, chunks: Tensor, saved: Tensor, starts: Mapping[int, int]) -> None:
        """Fill the momentum that small parameters share; `starts` are their places on the saved
        one. It keeps its bits if they are the same.
        """
        if starts == self.places.starts:
            chunks.copy_(saved)
            return
        entries = line_of_chunks(saved)
        line = entries.new_zeros(self.places.length(self.places.line))
        for index, start in self.places.starts.items():
            if index in starts:
                length = self.places.length([index])
                line[start : start + length] = entries[starts[index] :][:length]
        chunks.copy_(_chunks_of_line(line, len(chunks)))

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

    def require_as_before(self, name: Callable[[int], str]) -> None:
        """`SettingsError` for a parameter that was converted, moved or resized since this group was
        placed.
        """
        for index, kind in self._kinds.items():
            if (got := _kind(self.group["params"][index])) != kind:
                was, now = next((a, b) for a, b in zip(kind, got, strict=True) if a != b)
                raise SettingsError(
                    f"expected {name(index)} to stay {was}, as this optimizer has met it, got "
                    f"{now}: convert a model before you make its optimizer, or make another one"
                )

    def look(self, name: Callable[[int], str], scale: float) -> None:
        """Read this step's gradients, which a loss scaler has made `scale` times as large.

        `GradientError` for one that is sparse, NaN or too large, `SettingsError` for a payload that
        would be; nothing has changed then. `name` gives a person's name for a parameter.
        """
        _ = self.shape
        gradients = self.gradients
        for index, gradient in gradients.items():
            if gradient.layout != torch.strided:
                raise GradientError(
                    f"expected dense gradients, got {gradient.layout} of {name(index)}"
                )
        self._line = self._line_of(gradients)
        most = scale * GRADIENT_MAX
        views = self.places.layout.views(self._for_engine(gradients))
        self._magnitude = float(self.engine.backend.magnitude(views))
        if not self._magnitude <= most:  # `not`, as a NaN is not above it either
            require_finite({name(index): each for index, each in gradients.items()}, most)
            raise GradientError(f"expected gradients of magnitude up to {most:g}, got more")

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
            active = active.to(self.engine.momentum.device, non_blocking=True)
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

    # ---- gradients

    def _line_of(self, gradients: Mapping[int, Tensor]) -> Tensor | None:
        """Float32 [n]: a copy of all small gradients end to end, zeros where there is none."""
        if gradients.keys().isdisjoint(self.places.line):
            return None
        pieces = [
            _flat(gradients[index])
            if index in gradients
            else self.engine.momentum.new_zeros(self.places.length([index]))
            for index in self.places.line
        ]
        return torch.cat(pieces).float()

    def _for_engine(self, gradients: Mapping[int, Tensor]) -> dict[str, Tensor | None]:
        """Gradients by the engine's names."""
        matrices = {name: gradients.get(index) for index, name in self.places.matrices.items()}
        line = self._line
        return matrices | {
            stretch.name: None if line is None else line[stretch.start : stretch.stop]
            for stretch in self.places.stretches
        }

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

    @property
    def _parameters(self) -> dict[int, Tensor]:
        return {index: self.group["params"][index] for index in self.trained}

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

    def _joined(self, stretch: Stretch) -> Tensor:
        """A copy [n] of the parameters of a stretch."""
        params: Sequence[Tensor] = self.group["params"]
        return torch.cat([_flat(params[index]) for index in stretch.indices])

    def _cut(self, stretch: Stretch, line: Tensor) -> dict[int, Tensor]:
        """Views of a stretch as its parameters."""
        pieces = torch.split(line, [*stretch.lengths])
        return {
            index: piece if len(shape := self.places.shapes[index]) == 1 else piece.view(shape)
            for index, piece in zip(stretch.indices, pieces, strict=True)
        }


def line_of_chunks(chunks: Tensor) -> Tensor:
    """Float64 [n]: what chunks [n, 64, 64] of small parameters hold, transformed back."""
    strip, matrix = chunks.double(), dct_matrix(chunks.device).double()  # transposed: D G^T D^T
    return (matrix.T @ strip @ matrix).transpose(1, 2).reshape(-1)


def _chunks_of_line(line: Tensor, count: int) -> Tensor:
    """Float64 [count, 64, 64]: the inverse of `line_of_chunks`, zeros behind the line's end."""
    strip = line.new_zeros(count, CHUNK_SIDE, CHUNK_SIDE)
    strip.view(-1)[: len(line)] = line
    matrix = dct_matrix(line.device).double()
    return matrix @ strip.transpose(1, 2) @ matrix.T


def _starts(states: Mapping[int, Mapping[str, Tensor]]) -> dict[int, int]:
    """Places of parameters on the line that they share, by their states."""
    found = {index: int(state[PLACE][0]) for index, state in states.items() if PLACE in state}
    return {index: start for index, start in found.items() if start >= 0}


def shape_of(state: Mapping[str, Tensor]) -> tuple[int, ...]:
    """The shape of the parameter that had this state."""
    return tuple(state[PLACE].tolist()[1:])


def _kind(parameter: Tensor) -> tuple[object, ...]:
    """What a parameter keeps while it is trained."""
    return parameter.dtype, parameter.device, parameter.shape


def bits(tensor: Tensor) -> Any:
    """A tensor's bits in the host's memory."""
    flat = tensor.detach().cpu().reshape(-1).contiguous()
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _flat(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 1 else tensor.reshape(-1)


def _follow(master: Tensor, parameter: Tensor) -> Tensor:
    """The master copy, in place, with the parameter's entries where something else set them."""
    stale = master.to(parameter.dtype) != parameter.detach()
    return master.copy_(torch.where(stale, parameter.detach().float(), master))
