"""One parameter group at work: what it did not say yet, and its master copies.

A step takes it through `look` (read and judge this rank's gradients), `extract` (take out what is
sent) and `update` (what everybody sent into the parameters). `look` and `extract` leave `grad` as
it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from node.exact.contributions import Contribution
from node.exact.dct import dct_matrix
from node.exact.engine import (
    GRADIENT_MAX,
    Engine,
    Extraction,
    GradientError,
    require_finite,
)
from node.exact.optimizer.group import Group
from node.exact.optimizer.places import Places, Stretch
from protocol.codec.payload import PayloadShape
from protocol.errors import SettingsError
from protocol.limits import CHUNK_SIDE

MOMENTUM = "momentum"
"""Name in a parameter's state of what it did not say yet, momentum or residual: float32
[chunks, 64, 64], in coefficient space."""

LINE = "line"
"""Name of that which small parameters share, float32 [chunks, 64, 64], in the state of the first of
them."""

PLACE = "place"
"""Name of a parameter's place: int64, its first entry along that line or -1, and its shape."""

ACCUMULATIONS = "accumulations"
"""Name of the count of what has entered it: int64 [1]."""

MASTER = "master"
"""Name of a parameter's master copy in its state."""

MOVED = "moved"
"""Name of the mark that a local step since the last exchange has moved a parameter: bool [1]."""

INNER = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")
"""Names of the state of torch's Muon and AdamW, which make local steps, in a parameter's state."""


class Member(ABC):
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
    @abstractmethod
    def shape(self) -> PayloadShape:
        """The shape of its payloads; `SettingsError` for settings that allow none."""

    @abstractmethod
    def _engine(self, device: torch.device) -> Engine:
        """Nothing unsaid yet."""

    @abstractmethod
    def _copied(self) -> dict[int, Tensor]:
        """Float32 copies of the parameters that need one; those of one stretch lie end to end."""

    # ---- the state

    def _states(self) -> dict[int, dict[str, Tensor]]:
        starts, entries = self.places.starts, self.engine.entries
        found = {
            index: {
                PLACE: torch.tensor([starts.get(index, -1), *shape], device="cpu"),
                ACCUMULATIONS: self.engine.accumulations,
            }
            for index, shape in self.places.shapes.items()
        }
        for matrix in self.places.layout.matrices:
            found[int(matrix.name)][MOMENTUM] = entries[matrix.first : matrix.stop]
        if starts:
            first = self.places.layout.matrix_chunks
            found[self.places.line[0]][LINE] = entries[first:]
        for index, master in self.masters.items():
            found[index][MASTER] = master
        return found

    def load(self, states: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Take over copies of what `states` was, of parameters of the same shapes. Others begin
        anew, and so does what a state lacks.
        """
        entries = self.engine.entries
        for matrix in self.places.layout.matrices:
            if (kept := states.get(int(matrix.name), {}).get(MOMENTUM)) is not None:
                entries[matrix.first : matrix.stop] = kept
        for state in states.values():
            if LINE in state:
                chunks = entries[self.places.layout.matrix_chunks :]
                self._load_line(chunks, state[LINE].to(chunks.device), _starts(states))
            self.engine.accumulations.clamp_(min=int(state.get(ACCUMULATIONS, 0)))
        for index, master in self.masters.items():
            if (saved := states.get(index, {}).get(MASTER)) is not None:
                master.copy_(saved)

    def _load_line(self, chunks: Tensor, saved: Tensor, starts: Mapping[int, int]) -> None:
        """Fill what small parameters share; `starts` are their places on the saved
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

    @abstractmethod
    def digest(self) -> bytes:
        """SHA-256 of the bits of all that ranks must have equal."""

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

    @abstractmethod
    def extract(self, scale: float) -> Extraction | None:
        """Take out what to send, of gradients `scale` times too large; None if this rank has
        nothing.
        """

    @abstractmethod
    def update(self, contributions: Sequence[Contribution], moved: Sequence[bool]) -> None:
        """Change the parameters marked in `moved` by what everybody sent."""

    # ---- gradients

    def _line_of(self, gradients: Mapping[int, Tensor]) -> Tensor | None:
        """Float32 [n]: a copy of all small gradients end to end, zeros where there is none."""
        if gradients.keys().isdisjoint(self.places.line):
            return None
        pieces = [
            _flat(gradients[index])
            if index in gradients
            else self.engine.entries.new_zeros(self.places.length([index]))
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

    # ---- parameters

    @property
    def _parameters(self) -> dict[int, Tensor]:
        return {index: self.group["params"][index] for index in self.trained}

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
