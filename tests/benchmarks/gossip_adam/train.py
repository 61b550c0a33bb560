"""Trains the cells of the study of gossip Adam: N nodes of one process, each with the real mixer.

Every cell of a seed sees the same first weights and the same samples in the same order. Synchronous
Adam takes the mean gradient of all nodes' samples, in one pass. All passes of the nodes of a round
are made at once over stacked parameters, which are views of the mixers' own.
"""

import copy
import math
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from node.data.corpus import Corpus
from node.gossip_adam.adam import AdamSettings
from node.gossip_adam.wire import WireFormat, message_bytes
from node.model.build import build_model
from node.model.training import TrainingModel
from node.replica.genesis import fill
from protocol.codec.differences import difference_bytes, rounded
from protocol.ids import PeerId
from protocol.mixing.consensus import distance, should_only_mix
from protocol.mixing.topologies import Topology, TopologyName
from protocol.mixing.weights import edge_weights
from protocol.runfile import ModelSpec, ScheduleSpec
from protocol.schedule import learning_rate
from tests.benchmarks.parity.cells import Task
from tests.benchmarks.parity.task import open_corpus
from tests.support.mixer import Mixer

TASK = Task(layers=2, hidden=64, sequence_length=64, validation_samples=256)
"""115,584 parameters; 16 samples of 64 bytes in a step, all nodes together."""

NODES = 8
POINT_STEPS = 100
WARMUP_PART = 0.1
PEERS = [PeerId(f"{number:032x}") for number in range(NODES)]


@dataclass(frozen=True, slots=True)
class Cell:
    """One training."""

    method: Literal["adamw", "gossip"]
    steps: int
    learning_rate: float
    seed: int
    accumulate: int = 1
    betas: tuple[float, float] = (0.9, 0.98)
    topology: TopologyName = "one-peer-exponential"
    wire: WireFormat | Literal["int8-to-mean"] = "float16"
    """"int8-to-mean": differences to the newest mean, as in a run."""
    critical: float = 0.0
    """Critical multiple, judged after every step by the nodes' reports; 0: never."""
    mean_every: int = 0
    """Steps between two rounds of the mean; 0: none."""

    @property
    def name(self) -> str:
        """A name without the seed."""
        if self.method == "adamw":
            return f"adamw-lr{self.learning_rate:g}-n{self.steps}"
        rest = f"-critical{self.critical:g}" if self.critical else ""
        rest += f"-mean{self.mean_every}" if self.mean_every else ""
        if self.betas != (0.9, 0.98):
            rest += f"-betas{self.betas[0]:g}+{self.betas[1]:g}"
        return (
            f"gossip-lr{self.learning_rate:g}-n{self.steps}-s{self.accumulate}-{self.topology}-"
            f"{self.wire}{rest}"
        )


@dataclass(slots=True)
class Result:
    """A finished cell."""

    cell: Cell
    bits_per_byte: float = math.nan
    """At the mean of all nodes, after the last step."""

    node_bits_per_byte: float = math.nan
    """At the parameters of node 0."""

    points: list[tuple[int, float]] = field(default_factory=list)
    """Steps, bits per byte at the mean."""

    bytes_up: float = 0.0
    """Sent by the mean node in the whole training."""

    distances: list[tuple[int, float, float, float]] = field(default_factory=list)
    """Steps, true distance, its estimate from the reports, size of one update."""

    only_mixed: int = 0
    """Mixing-only rounds."""

    cpu_s: float = 0.0

    def document(self) -> dict[str, Any]:
        """Values as JSON has them."""
        return asdict(self)


class Network:
    """The network of all nodes, over parameters that lie in one matrix [rows, numbers]."""

    def __init__(self, seed: int, corpus: Corpus) -> None:
        model = build_model("llama", TASK.config)
        model.set_attn_implementation("eager")  # type: ignore[operator]  # vmap knows its parts
        fill(model, seed, ModelSpec().init_std)
        self._plain = copy.deepcopy(model)  # one whose embedding adds to `.grad` is none for vmap
        self.trainee = TrainingModel(model, micro_batch_max=256)
        self.start = torch.cat([p.detach().flatten() for p in self.trainee.parameters.values()])
        self._corpus, self._seed = corpus, seed
        self._validation = corpus.validation(TASK.validation_samples, TASK.sequence_length)
        self._gradients = vmap(grad(self._loss))

    def samples(self, step: int) -> Tensor:
        """All samples of a step, [nodes, samples of a node, length + 1]."""
        batch = TASK.batch_samples
        drawn = self._corpus.batch(step * batch, batch, TASK.sequence_length, self._seed)
        return torch.as_tensor(drawn).view(NODES, batch // NODES, -1)

    def gradients(self, rows: Tensor, samples: Tensor) -> Tensor:
        """The gradient of each row's own samples, [rows, numbers]."""
        found = self._gradients(self._named(rows), samples)
        return torch.cat([gradient.flatten(1) for gradient in found.values()], 1)

    def bits_per_byte(self, values: Tensor) -> float:
        """Cross-entropy on the validation split at these parameters, [numbers]."""
        for parameter, part in zip(
            self.trainee.parameters.values(), self._named(values[None]).values(), strict=True
        ):
            parameter.data.copy_(part[0])
        return self.trainee.evaluate(self._validation) / math.log(2)

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        shapes = {name: p.shape for name, p in self.trainee.parameters.items()}
        parts = rows.split([shape.numel() for shape in shapes.values()], 1)
        return {
            name: part.view(len(rows), *shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def _loss(self, parameters: dict[str, Tensor], samples: Tensor) -> Tensor:
        inputs = {"input_ids": samples[:, :-1], "use_cache": False}
        output = functional_call(self._plain, parameters, (), inputs)
        return cross_entropy(output.logits.flatten(0, 1), samples[:, 1:].flatten())


def rate(cell: Cell, step: int) -> float:
    """The learning rate of a step: warm-up, then a cosine down to a tenth."""
    schedule = ScheduleSpec(
        steps=cell.steps,
        learning_rate=cell.learning_rate,
        warmup_steps=round(WARMUP_PART * cell.steps),
        shape="cosine",
        final_fraction=0.1,
    )
    return learning_rate(schedule, step)


def train(cell: Cell, corpus: Corpus) -> Result:
    """Train a cell."""
    started = time.process_time()
    network = Network(cell.seed, corpus)
    result = Result(cell)
    rows = (_synchronous if cell.method == "adamw" else _gossip)(cell, network, result)
    result.bits_per_byte = network.bits_per_byte(rows.mean(0))
    result.node_bits_per_byte = network.bits_per_byte(rows[0])
    result.cpu_s = round(time.process_time() - started, 1)
    return result


def train_on(cell: Cell, data: Path) -> Result:
    """Train a cell on the built-in corpus in this folder."""
    warnings.filterwarnings("ignore", message=".*vmap.*")
    return train(cell, open_corpus(data))


def _synchronous(cell: Cell, network: Network, result: Result) -> Tensor:
    values = torch.nn.Parameter(network.start.clone())
    adam = torch.optim.AdamW([values], betas=cell.betas, weight_decay=0.0)
    for step in range(cell.steps):
        samples = network.samples(step).flatten(0, 1)[None]
        values.grad = network.gradients(values.detach()[None], samples)[0]
        adam.param_groups[0]["lr"] = rate(cell, step)
        adam.step()
        result.bytes_up += 2 * len(values) * 2 * (NODES - 1) / NODES  # bfloat16 ring all-reduce
        if (step + 1) % POINT_STEPS == 0:
            result.points.append((step + 1, network.bits_per_byte(values.detach())))
    return values.detach()[None]


def _gossip(cell: Cell, network: Network, result: Result) -> Tensor:
    rows = network.start.repeat(NODES, 1)
    settings = AdamSettings(betas=cell.betas, accumulate=cell.accumulate)
    wire: WireFormat = "float32" if cell.wire == "int8-to-mean" else cell.wire
    nodes = [Mixer(network.start, settings, wire) for _ in PEERS]
    for row, node in zip(rows, nodes, strict=True):
        node.values = row  # a view: the mixer changes it in place
    mixing = (MixingToMean if cell.wire == "int8-to-mean" else Mixing)(cell, nodes, result)
    for step in range(cell.steps):
        mixing.begin()
        gradients = network.gradients(rows, network.samples(step))
        mixing.finish()
        for node, gradient in zip(nodes, gradients, strict=True):
            node.step(gradient, rate(cell, step))
        is_point = (step + 1) % POINT_STEPS == 0
        if is_point:
            result.points.append((step + 1, network.bits_per_byte(rows.mean(0))))
        if cell.mean_every and (step + 1) % cell.mean_every == 0:
            mixing.take_mean(rows)
        if is_point or cell.critical:
            mixing.judge(step + 1, rows, is_point)
    return rows


class Mixing:
    """The exchange of all nodes: every edge holds."""

    def __init__(self, cell: Cell, nodes: list[Mixer], result: Result) -> None:
        self._cell, self._nodes, self._result = cell, nodes, result
        self._topology = Topology(cell.topology, seed=cell.seed)
        self._round = 0
        self._sent: list[dict[PeerId, Tensor]] = []
        self._rows: list[dict[PeerId, float]] = []

    def begin(self) -> None:
        """Send every node's parameters to its neighbours."""
        self._rows = [{} for _ in PEERS]
        for (first, second), weight in edge_weights(
            self._topology.edges(self._round, PEERS)
        ).items():
            self._rows[int(first, 16)][second] = weight
            self._rows[int(second, 16)][first] = weight
        self._send()
        self._result.bytes_up += sum(map(len, self._rows)) * self._message_bytes() / NODES
        self._round += 1

    def _send(self) -> None:
        self._sent = [node.begin(row) for node, row in zip(self._nodes, self._rows, strict=True)]

    def _message_bytes(self) -> int:
        assert self._cell.wire != "int8-to-mean"
        return message_bytes(self._cell.wire, len(self._nodes[0].values))

    def finish(self) -> None:
        """Mix."""
        arrived = [
            {peer: self._sent[int(peer, 16)][own] for peer in row}
            for own, row in zip(PEERS, self._rows, strict=True)
        ]
        for node, row, messages in zip(self._nodes, self._rows, arrived, strict=True):
            node.finish(row, messages)

    def take_mean(self, rows: Tensor) -> None:
        """Give all nodes the mean of all; each sends its parameters to all others in float32."""
        rows[:] = rows.mean(0)
        self._result.bytes_up += (NODES - 1) * 4 * rows.shape[1]

    def judge(self, step: int, rows: Tensor, is_point: bool) -> None:
        """Measure the distance; insert a mixing-only round past the critical multiple."""
        estimate = distance([node.report() for node in self._nodes])
        update = math.sqrt(sum(node.update_size**2 for node in self._nodes) / NODES)
        if is_point:
            true = float((rows - rows.mean(0)).square().sum(1).mean().sqrt())
            self._result.distances.append((step, true, estimate, update))
        if should_only_mix(estimate, update, self._cell.critical):
            self._result.only_mixed += 1
            self.begin()
            self.finish()


class MixingToMean(Mixing):
    """The same with what runs send: int8 differences to the newest mean."""

    def __init__(self, cell: Cell, nodes: list[Mixer], result: Result) -> None:
        super().__init__(cell, nodes, result)
        self._base = nodes[0].values.clone()
        self._moved: list[Tensor] = []

    def finish(self) -> None:
        for own, (node, row) in enumerate(zip(self._nodes, self._rows, strict=True)):
            for peer, weight in row.items():
                node.values += weight * (self._moved[int(peer, 16)] - self._moved[own])

    def take_mean(self, rows: Tensor) -> None:
        super().take_mean(rows)
        self._base = rows[0].clone()

    def _send(self) -> None:
        self._moved = [self._differences(node.values) for node in self._nodes]

    def _differences(self, values: Tensor) -> Tensor:
        found = rounded(0, (values - self._base).numpy())
        return torch.from_numpy(found.values(0, len(values))).float()

    def _message_bytes(self) -> int:
        return difference_bytes(len(self._base))
