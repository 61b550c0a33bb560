"""The network that every method trains, 20 million parameters, with a stand-in for its computation.

Two cores cannot compute eight such models at once. So in the runs on links a forward and a backward
pass is a sleep of fixed length, after which every parameter has a gradient of its real size: a
window on a pool of random numbers, another one at each step. Everything downstream of the gradients
is real: the optimizer's arithmetic, the bytes, the links. Random gradients keep every chunk of a
payload full; real ones can only be smaller.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
from torch import Tensor, nn

from tests.benchmarks.engine.shapes import Shapes
from tests.support.tiny import CONFIG

CONFIGS: dict[str, dict[str, Any]] = {
    "20m": {
        "vocab_size": 16384,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    },
    "tiny": CONFIG,
}
"""Configurations as in a run file: the network of the results, and one for tests."""

POOL_SLACK = 1 << 20
"""Numbers in the pool beyond the parameters, which is the number of possible windows."""

STRIDE = 104_729
"""Distance of one step's window from the next one's: a prime, so that places return late."""


def shapes(config: Mapping[str, Any]) -> Shapes:
    """Shapes of a llama's parameters with tied embeddings, from input to output, without building
    it.
    """
    width, inner, layers = (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_hidden_layers"],
    )
    found: Shapes = {"embedding": (config["vocab_size"], width)}
    for layer in range(layers):
        found |= {f"{layer}.{name}": (width, width) for name in ("q", "k", "v", "o")}
        found |= {f"{layer}.{name}": (inner, width) for name in ("gate", "up")}
        found |= {
            f"{layer}.down": (width, inner),
            f"{layer}.norm1": (width,),
            f"{layer}.norm2": (width,),
        }
    return found | {"norm": (width,)}


class GradientPool:
    """Gradients of all parameters for any step, at the price of one copy."""

    def __init__(self, numbers: int, seed: int) -> None:
        self._pool = torch.randn(
            numbers + POOL_SLACK, generator=torch.Generator().manual_seed(seed)
        )

    def copy(self, gradients: Sequence[Tensor], step: int, first: int = 0) -> None:
        """Fill some gradients of a step; `first` numbers precede them in the order of the
        parameters.
        """
        start = first + step * STRIDE % POOL_SLACK
        for gradient in gradients:
            gradient.copy_(self._pool[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()


class StandIn(nn.Module):
    """Parameters of these shapes whose loss takes `compute_s` to compute: a third forward, the rest
    backward.

    Backward goes through the parameters from the last to the first, each taking its share of the
    time by its size, as in a real network, so a method can send gradients during backward.
    """

    def __init__(self, sizes: Shapes, compute_s: float, seed: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(shape)) for shape in sizes.values()
        )
        self.numbers = sum(weight.numel() for weight in self.weights)
        self.pool = GradientPool(self.numbers, seed)
        self.compute_s = compute_s
        self.step = 0

    def forward(self) -> Tensor:
        """The loss: a scalar that depends on every parameter."""
        time.sleep(self.compute_s / 3)
        self.step += 1
        loss, first = torch.zeros((), requires_grad=True), 0
        for weight in self.weights:
            loss = _Layer.apply(loss, weight, self, first)  # type: ignore[no-untyped-call]
            first += weight.numel()
        return loss


class _Layer(torch.autograd.Function):
    """One parameter's share of a pass."""

    @staticmethod
    def forward(context: Any, loss: Tensor, weight: Tensor, model: StandIn, first: int) -> Tensor:
        """Passes the loss through."""
        context.weight, context.model, context.first = weight, model, first
        return loss.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        """Takes its time, then hands over the pool's numbers."""
        weight, model = context.weight, context.model
        time.sleep(model.compute_s * 2 / 3 * weight.numel() / model.numbers)
        own = torch.empty_like(weight)
        model.pool.copy([own], model.step, context.first)
        return gradient, own, None, None


@dataclass(slots=True)
class StepNote:
    """Times of one step of one process, on the clock that all processes of the machine share."""

    began_s: float
    compute_s: float = 0.0
    """Seconds slept in place of computing."""

    arithmetic_s: float = 0.0
    """Seconds in the optimizer's arithmetic, waits for a core included."""

    arithmetic_cpu_s: float = 0.0
    """Seconds of a core in that arithmetic."""

    sync: bool = False
    """True for DiLoCo's outer step."""


@dataclass(slots=True)
class Notes:
    """The steps of a process, on disk as they begin; the last line is the end of the last step."""

    file: IO[bytes]
    now: StepNote = field(default_factory=lambda: StepNote(-1.0))

    @classmethod
    def to(cls, path: Path) -> "Notes":
        """Notes in a new file."""
        return cls(path.open("wb", buffering=0))

    def next_step(self, *, sync: bool = False) -> StepNote:
        """End the current step and begin the next one."""
        if self.now.began_s >= 0:
            self.file.write(msgspec.json.encode(self.now) + b"\n")
        self.now = StepNote(time.monotonic(), sync=sync)
        return self.now

    def close(self) -> None:
        """End the last step."""
        self.next_step()
        self.abandon()

    def abandon(self) -> None:
        """Drop the current step: the last one ended where it began."""
        self.file.write(msgspec.json.encode(self.now) + b"\n")
        self.file.close()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Count the time within as the optimizer's arithmetic."""
        began_s, cpu_s = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self.now.arithmetic_s += time.monotonic() - began_s
            self.now.arithmetic_cpu_s += time.thread_time() - cpu_s


def read_notes(path: Path) -> list[StepNote]:
    """The steps of a process, then one that marks the end of the last step."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=StepNote) for line in lines]
