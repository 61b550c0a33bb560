"""One step of DeMo, by the engine and the straightforward way, with the seconds of each part."""

import time
from collections.abc import Callable, Mapping
from itertools import cycle, islice

import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.engine import Extraction
from protocol.codec.payload import Header, PayloadShape, decode, sealed
from protocol.ids import PeerId, RunId
from tests.benchmarks.engine.straightforward import Straightforward

LEARNING_RATE = 2.0**-10
DECAY = 0.999
AUTHORS_MAX = 8
"""Other authors with a payload of their own; further ones send the same again, which costs as much
to take."""
PARTS = ("extract", "encode", "decode", "apply")

Times = dict[str, float]


class Ours:
    """A step of the engine: one author extracts and encodes, then R payloads are decoded and
    applied.
    """

    def __init__(self, parameters: Mapping[str, Tensor], payloads: int, top_k: int) -> None:
        self._device = next(iter(parameters.values())).device
        self._parameters = {name: tensor.clone() for name, tensor in parameters.items()}
        self._layout = ChunkLayout.from_shapes(
            {name: tuple(tensor.shape) for name, tensor in parameters.items()}
        )
        self._shape = PayloadShape(self._layout.chunks, top_k, 1)
        self._engine = Momentum(self._layout, DemoSettings(DECAY, top_k, 1), self._device)
        self.momentum_bytes = self._engine.entries.nbytes
        distinct = [self._author(seed) for seed in range(min(payloads - 1, AUTHORS_MAX))]
        self._others = list(islice(cycle(distinct), payloads - 1))
        self.coefficients = self.payload_bytes = 0
        self._decoded: list[Contribution] = []

    def _author(self, seed: int) -> bytes:
        """Another author's payload: real top-k supports of its own noise."""
        engine = Momentum(self._layout, self._engine.settings, self._device)
        generator = torch.Generator(self._device).manual_seed(seed + 1)
        engine.entries.normal_(generator=generator)
        return self._encoded(engine.extract(), seed + 1)

    def _encoded(self, sent: Extraction, author: int) -> bytes:
        header = Header(RunId("0" * 32), 0, PeerId(f"{author:032x}"))
        return sealed(header, sent.body(self._shape), self._shape)

    def step(self, gradients: Mapping[str, Tensor]) -> Times:
        """Seconds of each part."""
        clock = Clock(self._device)
        self._engine.accumulate(gradients)
        sent = self._engine.extract()
        clock.lap("extract")
        own = self._encoded(sent, 0)
        clock.lap("encode")
        self._decoded = [
            Contribution(1, decode(payload, self._shape)[1]) for payload in [own, *self._others]
        ]
        clock.lap("decode")
        apply(self._layout, self._parameters, self._decoded, LEARNING_RATE, 1.0)
        clock.lap("apply")
        self.coefficients, self.payload_bytes = len(self._decoded[0].coefficients.indices), len(own)
        return clock.laps

    def touch_momentum(self) -> None:
        """Make the momentum resident: fresh zeros are not until they are written."""
        self._engine.entries.fill_(0.0)


class Theirs:
    """The same step, the straightforward way."""

    def __init__(self, parameters: Mapping[str, Tensor], payloads: int, top_k: int) -> None:
        self._device = next(iter(parameters.values())).device
        self._demo = Straightforward(
            {name: tensor.clone() for name, tensor in parameters.items()}, DECAY, top_k
        )
        self._payloads = payloads

    def step(self, gradients: Mapping[str, Tensor]) -> Times:
        """Seconds of each part. The other authors' payloads are copies; their content makes no
        difference to the time.
        """
        clock = Clock(self._device)
        sent = self._demo.extract(gradients)
        clock.lap("extract")
        payload = self._demo.encode(sent)
        clock.lap("encode")
        decoded = [self._demo.decode(payload) for _ in range(self._payloads)]
        clock.lap("decode")
        self._demo.apply(decoded, LEARNING_RATE)
        clock.lap("apply")
        return clock.laps


class Clock:
    """Seconds between one lap and the next, each ending when the device is done."""

    def __init__(self, device: torch.device) -> None:
        self.laps: Times = {}
        self._device = device
        self._last = self._now()

    def lap(self, name: str) -> None:
        """End a lap."""
        now = self._now()
        self.laps[name], self._last = now - self._last, now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of a piece of work, to its end on the device."""
    clock = Clock(device)
    work()
    clock.lap("work")
    return clock.laps["work"]
