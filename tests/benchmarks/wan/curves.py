"""Steps that each method needs to a fixed validation loss: `python -m tests.benchmarks.wan
--curves`.

One process trains the network of the runs on links, on real text, by the functions that a node
uses: eight authors of DeMo or of local steps with payloads of real bytes, AdamW on the whole batch,
Muon on the same (AdamW for embeddings and gains), and DiLoCo (Douillard et al., arXiv 2311.08105:
eight workers take H steps of AdamW each; then Nesterov's step on the mean of their changes). All
methods see the same samples in the same order. Learning rates are constant after a short warm-up,
so that a curve does not depend on its length.

Every rate of a method is trained for `SWEEP_STEPS`; the one with the least loss continues until the
validation loss has reached `TARGET_NATS`. Common parameters exist only after an outer step of
DiLoCo and after a round of local steps, so their curves have points only there.
"""

import copy
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from node.data.corpus import Corpus
from node.exact.local_steps.optimizer import LocalOptimizer
from node.system.files import replacing_file
from tests.benchmarks.parity.baselines import ADAM_EPSILON, AdamW
from tests.benchmarks.parity.cells import Cell, Task
from tests.benchmarks.parity.demo import DemoAuthors, Traffic
from tests.benchmarks.parity.local_steps import DenseMuon, LocalStepsAuthors
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.parity.train import Trainer
from tests.benchmarks.wan.archive import Archive
from tests.benchmarks.wan.methods import LOCAL_STEPS
from tests.benchmarks.wan.model import CONFIGS

AUTHORS = 8
TARGET_NATS = 2.2
"""The fixed validation loss, per byte; the genesis has 9.4."""

STEPS_MAX = 400
SWEEP_STEPS = 40
KEPT_STEPS = 10
"""Steps after which the points of a curve that goes on are written, for who must stop it."""

INNER_STEPS = 50
"""H of DiLoCo: inner steps per outer step."""

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Rate and momentum of DiLoCo's outer step, as its paper recommends."""


@dataclass(frozen=True, slots=True)
class WanTask(Task):
    """The network of the runs on links, at their global batch of eight samples."""

    layers: int = 8
    hidden: int = 384
    sequence_length: int = 64
    batch_samples: int = 8
    validation_samples: int = 64
    point_steps: int = 10

    @property
    def config(self) -> dict[str, Any]:
        return CONFIGS["20m"]


class DiLoCo:
    """Workers that meet every H steps."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture, cell = fixture, fixture.cell
        self._global = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
        self._outer = torch.optim.SGD(
            self._global.values(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )
        self._workers = [copy.deepcopy(self._global) for _ in range(cell.authors)]
        self._inner = [
            torch.optim.AdamW(
                worker.values(),
                lr=cell.learning_rate,
                betas=cell.adam_decays,
                eps=ADAM_EPSILON,
                weight_decay=0.0,
            )
            for worker in self._workers
        ]
        self._step = 0

    def step(self) -> Traffic:
        """One step of every worker, and the outer step after H of them."""
        fixture = self._fixture
        samples = fixture.samples(self._step).reshape(
            len(self._workers), -1, fixture.task.sequence_length + 1
        )
        for mine, worker, optimizer in zip(samples, self._workers, self._inner, strict=True):
            _set(fixture.parameters, worker)
            gradients = fixture.gradients(mine)
            torch.nn.utils.clip_grad_norm_(fixture.trainee.parameters.values(), fixture.cell.clip)
            optimizer.param_groups[0]["lr"] = fixture.learning_rate(self._step)
            _step_with(optimizer, worker, gradients)
        self._step += 1
        if self._step % INNER_STEPS == 0:
            self._meet()
        dense = 4 * fixture.layout.parameters / INNER_STEPS
        return Traffic(dense, dense)

    def stand_at_committed(self) -> None:
        """Set the network to the parameters of the last outer step."""
        _set(self._fixture.parameters, self._global)

    def _meet(self) -> None:
        """The outer gradient is the mean of the workers' changes; all continue from the outer
        step.
        """
        deltas: dict[str, Tensor | None] = {
            name: tensor - torch.stack([worker[name] for worker in self._workers]).mean(0)
            for name, tensor in self._global.items()
        }
        _step_with(self._outer, self._global, deltas)
        for worker in self._workers:
            _set(worker, self._global)


def _set(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _step_with(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, Tensor],
    gradients: dict[str, Tensor | None],
) -> None:
    for name, tensor in parameters.items():
        tensor.grad = gradients[name]
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True, slots=True)
class Curve:
    """A training and the rates to try."""

    cell: Cell
    trainer: Callable[[Fixture], Trainer]
    rates: tuple[float, ...]
    point_steps: int | None = None
    """Steps from one point to the next, where the task's own do not fit; sweeps are rounded up."""


_ADAMW = Cell("adamw", 0.001, STEPS_MAX, authors=AUTHORS, warmup_steps=20, shape="constant")
_SIGN = replace(_ADAMW, method="demo", gradients="even")
_ORTHOGONAL = replace(_SIGN, update="orthogonal")
_LOCAL_STEPS = replace(_ADAMW, method="local_steps", top_k=192, local_steps=LOCAL_STEPS)

CURVES = {
    "adamw": Curve(_ADAMW, AdamW, (0.00025, 0.0005, 0.001)),
    "muon": Curve(replace(_ADAMW, method="muon"), DenseMuon, (0.003, 0.0015, 0.006, 0.012)),
    "lockstep-0": Curve(_SIGN, DemoAuthors, (0.0005, 0.001, 0.002)),
    "lockstep-1": Curve(
        replace(_SIGN, overlap=1, guess="own"), DemoAuthors, (0.0005, 0.001, 0.002)
    ),
    "lockstep-0-orthogonal": Curve(_ORTHOGONAL, DemoAuthors, (0.004, 0.006)),
    "lockstep-0-orthogonal-k64": Curve(
        replace(_ORTHOGONAL, top_k=64), DemoAuthors, (0.004, 0.003, 0.002)
    ),
    "lockstep-0-orthogonal-k128": Curve(replace(_ORTHOGONAL, top_k=128), DemoAuthors, (0.004,)),
    "lockstep-1-orthogonal-k64": Curve(
        replace(_ORTHOGONAL, overlap=1, guess="own", top_k=64), DemoAuthors, (0.004, 0.003)
    ),
    "diloco": Curve(_ADAMW, DiLoCo, (0.00025, 0.0005), INNER_STEPS),
    "local-steps": Curve(_LOCAL_STEPS, LocalStepsAuthors, (0.006,), 2 * LOCAL_STEPS),
}
"""Curves by the name that `methods` uses; local steps have a point after every other round.

Expected before they were trained: of Muon 80 to 110 steps to the target, where AdamW needs 140, as
it needs two thirds of AdamW's steps in the headline. Of local steps 110 to 170: more than Muon,
each of whose steps sees all eight samples, and fewer than the 250 that the default needs with the
bytes of a step that these send (k = 32)."""


Points = list[tuple[int, float]]
"""(step, validation loss in nats per byte)."""


def steps_to(points: Points, nats: float) -> int | None:
    """The first step with a loss of at most `nats`; None if there is none."""
    return next((step for step, loss in points if loss <= nats), None)


class Training:
    """One curve at one rate; training can be resumed."""

    def __init__(self, task: Task, curve: Curve, rate: float, corpus: Corpus) -> None:
        self.rate = rate
        self._fixture = Fixture(task, replace(curve.cell, learning_rate=rate), corpus)
        self._trainer = curve.trainer(self._fixture)
        self._point_steps = curve.point_steps or task.point_steps
        self._step = 0
        self.points: Points = []
        self._take_point()

    def go_on(self, until_step: int, target_nats: float) -> None:
        """Train to the first point at or after `until_step`, or with a loss of at most
        `target_nats`.
        """
        while self.points[-1][0] < until_step and self.points[-1][1] > target_nats:
            self._trainer.step()
            self._step += 1
            if self._step % self._point_steps == 0:
                self._trainer.stand_at_committed()
                self._take_point()

    def _take_point(self) -> None:
        self.points.append(
            (self._step, round(self._fixture.validation_bits_per_byte() * math.log(2), 4))
        )


def train_curve(
    name: str,
    task: Task,
    corpus: Corpus,
    path: Path,
    *,
    target_nats: float,
    say: Callable[[str], None],
) -> None:
    """Sweep all rates, then train the best one to the target; each result is written when it
    exists.

    Rates that an earlier call has swept are not swept again. Its best rate, if it is still the
    best, starts anew.
    """
    curve, started_s = CURVES[name], time.monotonic()
    known: dict[str, Any] = {"method": name, "task": asdict(task), "swept": [], "seconds": 0.0}
    if path.exists():
        known = json.loads(path.read_bytes())
    before_s = known["seconds"]

    def keep_known() -> None:
        known["seconds"] = round(before_s + time.monotonic() - started_s, 1)
        with replacing_file(path) as temporary:
            temporary.write_text(json.dumps(known, indent=1) + "\n")

    def keep(training: Training, **found: Any) -> None:
        known.update(found)
        keep_known()
        say(f"{name} at {training.rate:g}: {training.points[-1]} after {known['seconds']:.0f} s")

    trained: Training | None = None  # the best of this call
    for rate in curve.rates[len(known["swept"]) :]:
        training = Training(task, curve, rate, corpus)
        training.go_on(SWEEP_STEPS, target_nats)
        keep(training, swept=[*known["swept"], {"rate": rate, "points": training.points[:]}])
        if best_rate(known["swept"]) == rate:
            trained = training
    rate = best_rate(known["swept"])
    if trained is None or trained.rate != rate:
        trained = Training(task, curve, rate, corpus)
    while (ended := trained.points[-1])[0] < STEPS_MAX and ended[1] > target_nats:
        trained.go_on(min(ended[0] + KEPT_STEPS, STEPS_MAX), target_nats)
        known["begun"] = trained.points[:]
        keep_known()
    known.pop("begun", None)
    keep(trained, rate=rate, points=trained.points)


def best_rate(swept: Sequence[Mapping[str, Any]]) -> float:
    """The rate with the least loss at the end of its sweep; among several that reached the target,
    the one that did first.
    """
    best = min(swept, key=lambda one: tuple(reversed(one["points"][-1])))
    return float(best["rate"])


def run_curves(
    archive: Archive,
    corpus: Corpus,
    task: Task,
    *,
    only: Sequence[str] = ("*",),
    say: Callable[[str], None] = print,
) -> None:
    """Measure both dense optimizers, if that was not done, and train every method whose name
    matches a pattern and that has no finished curve; records are left out.
    """
    torch.set_num_threads(1)
    if ARITHMETIC not in archive.documents():
        with replacing_file(archive.directory / f"{ARITHMETIC}.json") as temporary:
            temporary.write_text(json.dumps(optimizer_s(task, corpus), indent=1) + "\n")
    done = load_curves(archive)
    for name, curve in CURVES.items():
        waits = name not in done and not curve.cell.is_record
        if waits and any(fnmatchcase(name, pattern) for pattern in only):
            path = curve_path(archive.directory, name)
            train_curve(name, task, corpus, path, target_nats=TARGET_NATS, say=say)


ARITHMETIC, ARITHMETIC_STEPS = "dense-arithmetic", 7
"""The document that says what a step of AdamW and of Muon takes, and the steps measured of each."""


def optimizer_s(task: Task, corpus: Corpus) -> dict[str, float]:
    """Seconds of one core in a step of either dense optimizer alone, without passes: the least of
    several, taken in turn, since other work shares the caches.
    """
    found: dict[str, list[float]] = {}
    fixtures = {name: Fixture(task, CURVES[name].cell, corpus) for name in ("adamw", "muon")}
    steps = {
        "adamw": torch.optim.AdamW(fixtures["adamw"].trainee.parameters.values()).step,
        "muon": partial(
            LocalOptimizer(
                fixtures["muon"].trainee.model, fixtures["muon"].trainee.parameters
            ).step,
            1e-3,
        ),
    }
    for fixture in fixtures.values():
        fixture.gradients(fixture.samples(0))
    for _, (name, step) in product(range(ARITHMETIC_STEPS), steps.items()):
        began_s = time.thread_time()
        step()
        found.setdefault(name, []).append(time.thread_time() - began_s)
    return {name: round(min(seconds), 4) for name, seconds in found.items()}


def muon_more_s(archive: Archive) -> float | None:
    """Seconds that a step of Muon takes more than one of AdamW; None if nobody measured it."""
    found = archive.documents().get(ARITHMETIC)
    return found and found["muon"] - found["adamw"]


def load_curves(archive: Archive) -> dict[str, Points]:
    """Points of every finished curve, at its method's best rate."""
    documents = archive.documents()
    found = {}
    for name in CURVES:
        points = documents.get(curve_path(archive.directory, name).stem, {}).get("points", [])
        if points:
            found[name] = [(step, loss) for step, loss in points]
    return found


def curve_path(directory: Path, name: str) -> Path:
    """Path of a method's curve."""
    return directory / f"curve-{name}.json"
