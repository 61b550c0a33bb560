"""The cells of the parity study: what is trained, by which method, and which cells a sweep has.

A task is what all cells of a sweep share: the network, the text and how much of it makes one step. A cell is one
training on it. A cell's name says its method, rate and length, and every other field that differs from its
default, so that names are unique, short and stable: they are the names of the result files.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, Literal

from node.demo.aggregate import Rule
from node.demo.engine import DemoSettings
from node.demo.scaling import Scale
from protocol.errors import SettingsError
from protocol.runfile import ModelSpec, RoundsSpec, ScheduleSpec

Method = Literal["adamw", "signum", "demo"]
Guess = Literal["none", "own", "payload", "last"]
Transform = Literal["exact", "float", "off"]


@dataclass(frozen=True, slots=True)
class Task:
    """What all cells of a sweep train: the demo's byte-level llama on the built-in corpus."""

    layers: int = 5
    """Layers of the network; everything else is the run file's default model."""

    hidden: int = 128
    """Width of the network; the feed-forward is 43/16 of it."""

    sequence_length: int = 128
    """Tokens of a sample."""

    batch_samples: int = 16
    """Samples of one step, all authors together."""

    validation_samples: int = 256
    """Windows of the validation split on which every point of a curve is measured."""

    point_steps: int = 100
    """Steps from one point of a curve to the next."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise SettingsError(f"expected a {field.name} of at least 1, got {getattr(self, field.name)}")

    @property
    def config(self) -> dict[str, Any]:
        """The network's configuration."""
        sizes = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 43 // 16,
            "max_position_embeddings": max(256, self.sequence_length),
        }
        return {**ModelSpec().config, **sizes}

    def tokens(self, steps: int) -> int:
        """Tokens trained in so many steps."""
        return steps * self.batch_samples * self.sequence_length


@dataclass(frozen=True, slots=True)
class Cell:
    """One training. `SettingsError` for what cannot be trained; fields of other methods keep their defaults."""

    method: Method
    learning_rate: float
    steps: int

    weight_decay: float = 0.0
    """Decoupled. With AdamW only on matrices, as is usual; the others decay every parameter, as a run does."""

    top_k: int = 32
    value_bits: int = 1
    alpha: float = 1.0

    update: Rule = "sign"
    """What a step is of the sum of votes: the sign, or of matrices the nearest orthogonal update."""

    gradients: Scale = "plain"
    """How each author's gradients enter its momentum: as they come, each tensor scaled to a root mean square of one, or
    rows and columns made even by their recent sizes."""

    momentum_decay: float = 0.999
    """beta of DeMo and of Signum."""

    recency: float = 0.0
    """How much less of a young momentum is left (`DemoSettings.recency`)."""

    adam_decays: tuple[float, float] = (0.9, 0.95)
    """beta1 and beta2 of AdamW."""

    clip: float = 1.0
    """AdamW's gradients are scaled down to this norm."""

    overlap: int = 0
    """Rounds of delay between a payload and its application: 0 or 1."""

    guess: Guess = "none"
    """With overlap: where gradients are taken, ahead of the committed parameters by a guess at the pending update:
    no guess, a node's own (`Engine.guess`), the exact update that the own payload alone would make, or the last
    commit's update once more."""

    late: float = 1.0
    """With overlap: the part of an author's samples of a round that it trains before the commit of the round in front
    comes, at the guess; the others it trains at what the commit made."""

    overlap_from: int = 0
    """With overlap: the first round that is begun before the one in front of it is applied."""

    transform: Transform = "exact"
    """DCT with the exact integer inverse; with a float inverse; or no DCT, coefficients being parameters."""

    authors: int = 4
    """R, the contributors of every round."""

    seed: int = 0
    """Of the initial weights and of the data order."""

    warmup_steps: int = 50
    shape: Literal["cosine", "linear", "constant"] = "cosine"
    final_fraction: float = 0.1

    def __post_init__(self) -> None:
        _ = self.demo, self.schedule  # judge their own fields
        if self.method not in ("adamw", "signum", "demo") or self.transform not in ("exact", "float", "off"):
            raise SettingsError(f"expected a known method and transform, got {self.method!r}, {self.transform!r}")
        if self.overlap not in (0, 1) or self.guess not in ("none", "own", "payload", "last"):
            raise SettingsError(f"expected an overlap of 0 or 1 and a known guess, got {self.overlap}, {self.guess!r}")
        if self.guess != "none" and not self.overlap:
            raise SettingsError(f"expected overlap 1 with the guess {self.guess!r}, got {self.overlap}")
        if not 0 < self.late <= 1 or (self.late < 1 and not self.overlap):
            raise SettingsError(f"expected a late part above 0 and at most 1, 1 without overlap, got {self.late}")
        if self.overlap_from < 0 or (self.overlap_from and not self.overlap):
            raise SettingsError(f"expected an overlap_from of at least 0, 0 without overlap, got {self.overlap_from}")
        if self.update != "sign" and (self.method, self.transform) != ("demo", "exact"):
            raise SettingsError(f"expected the sign with {self.method}, transform {self.transform}, got {self.update}")
        if self.overlap and self.method != "demo":
            raise SettingsError(f"expected overlap 0 with {self.method}, got {self.overlap}")
        if self.authors < 1:
            raise SettingsError(f"expected at least 1 author, got {self.authors}")

    @property
    def name(self) -> str:
        """Unique among all cells, and a file name."""
        parts = [self.method, f"lr{self.learning_rate:g}", f"n{self.steps}"]
        for field in fields(self)[3:]:
            value = getattr(self, field.name)
            if value != field.default:
                text = "+".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
                parts.append(f"{field.name}={text}")
        return "-".join(parts)

    @property
    def demo(self) -> DemoSettings:
        """The engine's settings."""
        return DemoSettings.among(asdict(self))

    @property
    def rounds(self) -> RoundsSpec:
        """Which rounds overlap, as coordinator and nodes see it."""
        return RoundsSpec(overlap=self.overlap, overlap_from=self.overlap_from)  # type: ignore[arg-type]

    @property
    def schedule(self) -> ScheduleSpec:
        """Rate and decay by step, as a coordinator computes them."""
        return ScheduleSpec(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            shape=self.shape,
            final_fraction=self.final_fraction,
            weight_decay=self.weight_decay,
        )


STEADY = Cell("demo", 0.003, 600, update="orthogonal", gradients="even")
"""The defaults but for a beta that is the same all the way, for 600 steps."""

DEFAULTS = replace(STEADY, recency=1.5)
"""The algorithm of a run file that says nothing else, for 600 steps."""


def first_cells() -> list[Cell]:
    """The first sweep: rates and single changes at 600 steps, the question at 2000; one seed."""
    short, long = 600, 2000
    demo = Cell("demo", 0.001, short)
    return [
        *(Cell("adamw", rate, short) for rate in (0.006, 0.003, 0.0015)),
        *(replace(demo, learning_rate=rate) for rate in (0.004, 0.002, 0.001)),
        replace(demo, momentum_decay=0.99),
        replace(demo, top_k=128),
        replace(demo, overlap=1, guess="own"),
        replace(demo, steps=long),
        Cell("adamw", 0.0015, long),
        replace(demo, learning_rate=0.0005),
        replace(demo, alpha=0.2),
        replace(demo, top_k=8),
        replace(demo, overlap=1),
        Cell("signum", 0.001, short, momentum_decay=0.9),
    ]


def full_cells() -> list[Cell]:
    """All that the study asks, at 2000 steps: every setting with one seed, what decides with three.

    Around the defaults of a run file; what these exclude, around the sign. Rates lie around those that were best in the
    first sweeps; where the best is at the edge, add the next one.
    """
    steps = 2000
    adamw, sign = Cell("adamw", 0.0015, steps), Cell("demo", 0.001, steps)
    demo = replace(DEFAULTS, steps=steps, authors=8)
    slow, fast = (0.0015, 0.003), (0.002, 0.003, 0.005)
    rates_of_k = {2: slow, 8: slow, 32: fast, 128: fast}
    cells = [
        *_deciding((adamw, demo), seeds=(0, 1, 2)),
        *(
            replace(adamw, weight_decay=decay, learning_rate=rate)
            for decay, rate in product((0.0, 0.1), (0.00075, 0.0015, 0.003))
        ),
        replace(adamw, adam_decays=(0.9, 0.99)),
        *(Cell("signum", rate, steps, momentum_decay=0.9) for rate in (0.00025, 0.0005, 0.001)),
        *(replace(demo, top_k=k, learning_rate=rate) for k, rates in rates_of_k.items() for rate in rates),
        *(replace(demo, value_bits=bits) for bits in (2, 4, 8)),
        *(replace(demo, alpha=alpha) for alpha in (0.2, 0.5)),
        *(replace(demo, momentum_decay=decay) for decay in (0.95, 0.99, 0.995)),
        *(replace(demo, overlap=1, guess=guess) for guess in ("none", "own", "payload", "last")),
        sign,
        replace(sign, transform="float"),
        *(replace(sign, transform="off", learning_rate=rate) for rate in (0.001, 0.004)),
        *(replace(demo, authors=authors) for authors in (1, 4, 16)),
        replace(demo, top_k=16),
        replace(demo, authors=16, top_k=8),
    ]
    return list(dict.fromkeys(cells))


def _deciding(bases: tuple[Cell, Cell], seeds: Iterable[int]) -> Iterator[Cell]:
    """The cells that decide, given AdamW and DeMo at their best rates, under every seed."""
    adamw, demo = bases
    settings = (
        adamw,
        demo,
        replace(demo, top_k=8),
        replace(demo, top_k=64),
        replace(demo, overlap=1, guess="own", overlap_from=300),
    )
    for seed, cell in product(seeds, settings):
        yield replace(cell, seed=seed)


def beyond_cells() -> list[Cell]:
    """Tries to do better than the first sweep at the same bytes: what decides at 600 steps, then at 2000."""
    plain = Cell("demo", 0.001, 600)
    orthogonal = replace(plain, learning_rate=0.003, update="orthogonal", gradients="unit")
    long = replace(plain, steps=2000, authors=8)
    return [
        replace(plain, gradients="unit"),
        orthogonal,
        replace(orthogonal, gradients="plain"),
        replace(orthogonal, overlap=1, guess="own"),
        long,
        replace(long, learning_rate=0.0005),
        replace(long, final_fraction=0.0),
        *(replace(orthogonal, steps=2000, authors=8, final_fraction=fraction) for fraction in (0.1, 0.0)),
        replace(long, gradients="unit"),
    ]


def even_cells() -> list[Cell]:
    """The orthogonalised update of gradients made even, and what each of the two does alone."""
    both = STEADY
    long = replace(both, steps=2000, authors=8)
    return [
        long,
        replace(long, learning_rate=0.002),
        replace(long, momentum_decay=0.95),
        both,
        replace(both, learning_rate=0.005),
        replace(both, learning_rate=0.001, update="sign"),
        replace(both, overlap=1, guess="own"),
        replace(both, top_k=8),
        replace(long, seed=1),
        Cell("adamw", 0.0015, 2000, seed=1),
        replace(long, top_k=8),
        replace(long, top_k=8, learning_rate=0.005),
        *(replace(long, top_k=64, learning_rate=rate) for rate in (0.005, 0.004)),
        *(replace(long, top_k=64, learning_rate=0.004, seed=seed) for seed in (1, 2)),
        replace(long, seed=2),
        Cell("adamw", 0.0015, 2000, seed=2),
        replace(long, overlap=1, guess="own"),
        replace(long, overlap=1, guess="own", learning_rate=0.002),
        Cell("adamw", 0.003, 2000),
    ]


def recency_cells() -> list[Cell]:
    """A beta that grows: beside all that decides, and how fast it should grow."""
    demo = DEFAULTS
    long = replace(demo, steps=2000, authors=8)
    return [
        long,
        *(replace(long, overlap=1, guess="own", overlap_from=300, seed=seed) for seed in (0, 1, 2)),
        replace(long, overlap=1, guess="own", overlap_from=200),
        *(
            replace(long, overlap=1, guess="own", overlap_from=300, top_k=k, learning_rate=rate)
            for k, rate in ((8, 0.002), (64, 0.004))
        ),
        replace(long, overlap=1, guess="own"),
        replace(long, top_k=8),
        replace(long, top_k=64, learning_rate=0.004),
        *(replace(long, seed=seed) for seed in (1, 2)),
        *(replace(long, overlap=1, guess="own", seed=seed) for seed in (1, 2)),
        *(replace(long, overlap=1, guess="own", late=0.5, seed=seed) for seed in (0, 1, 2)),
        *(replace(long, top_k=8, seed=seed) for seed in (1, 2)),
        *(replace(long, top_k=8, learning_rate=0.002, seed=seed) for seed in (0, 1, 2)),
        demo,
        replace(demo, top_k=8),
        replace(demo, top_k=128),
        *(replace(demo, overlap=1, guess="own", late=late) for late in (1.0, 0.75, 0.5, 0.25)),
        *(replace(demo, recency=recency) for recency in (0.75, 3.0, 8.0)),
        *(replace(demo, authors=authors, top_k=top_k) for authors, top_k in ((8, 16), (16, 8))),
        *(replace(demo, value_bits=bits) for bits in (2, 8)),
        replace(demo, momentum_decay=0.995),
        replace(demo, top_k=2),
        replace(demo, overlap=1, guess="last"),
    ]


def quarter_cells() -> list[Cell]:
    """Half the warm-up, of both sides: who is ahead in the first quarter, whatever AdamW's rate?"""
    demo = replace(DEFAULTS, steps=2000, authors=8, warmup_steps=25)
    return [
        *(replace(demo, top_k=64, learning_rate=0.004, seed=seed) for seed in (0, 1, 2)),
        *(Cell("adamw", rate, 2000, warmup_steps=25) for rate in (0.003, 0.0015)),
        demo,
    ]


def longer_cells() -> list[Cell]:
    """Twice the steps: does k = 8 catch up?"""
    steps = 4000
    adamw, small = Cell("adamw", 0.001, steps), replace(DEFAULTS, learning_rate=0.002, steps=steps, authors=8, top_k=8)
    return [
        *(replace(cell, seed=seed) for seed, cell in product((0, 1, 2), (adamw, small))),
        *(replace(adamw, learning_rate=0.0015, seed=seed) for seed in (0, 1)),
        replace(small, learning_rate=0.003),
        replace(small, learning_rate=0.003, top_k=32),
    ]


def breadth_cells() -> list[Cell]:
    """One change at a time of the defaults, and what they are compared with, at 600 steps: what is each worth?"""
    demo = STEADY
    adamw, sign = Cell("adamw", 0.0015, 600), Cell("demo", 0.001, 600)
    return [
        *(replace(demo, learning_rate=rate) for rate in (0.002, 0.005)),
        replace(demo, top_k=8, learning_rate=0.0015),
        replace(demo, top_k=128),
        *(replace(demo, authors=authors) for authors in (1, 16)),
        replace(adamw, weight_decay=0.1),
        replace(demo, value_bits=4),
        *(replace(demo, alpha=alpha) for alpha in (0.2, 0.5)),
        *(replace(demo, momentum_decay=decay) for decay in (0.9, 0.95, 0.99)),
        replace(demo, top_k=8, momentum_decay=0.95),
        replace(demo, overlap=1, guess="own", momentum_decay=0.95),
        *(replace(demo, authors=authors, top_k=top_k) for authors, top_k in ((8, 16), (16, 8))),
        *(replace(demo, overlap=1, guess=guess) for guess in ("none", "payload", "last")),
        replace(demo, overlap=1, guess="own", learning_rate=0.002),
        replace(sign, transform="float"),
        replace(sign, transform="off"),
        replace(demo, top_k=2, learning_rate=0.0015),
        *(Cell("signum", rate, 600, momentum_decay=0.9) for rate in (0.0005, 0.001)),
        replace(adamw, adam_decays=(0.9, 0.99)),
        replace(demo, value_bits=2),
        replace(demo, top_k=64),
    ]


def batch_cells() -> list[Cell]:
    """Whether four times the text in a step closes the gap: rates of either side and of the orthogonalised update."""
    adamw, demo = Cell("adamw", 0.003, 600), Cell("demo", 0.002, 600, authors=8)
    orthogonal = replace(demo, learning_rate=0.006, update="orthogonal", gradients="unit")
    return [
        adamw,
        demo,
        replace(adamw, learning_rate=0.006),
        replace(demo, learning_rate=0.004),
        orthogonal,
        replace(demo, learning_rate=0.001),
        replace(orthogonal, learning_rate=0.003),
        replace(adamw, learning_rate=0.0015),
        *_fewer_rounds(500, top_k=32, rates=(0.005, 0.003)),
        Cell("adamw", 0.003, 500, warmup_steps=20),
    ]


def batch_32_cells() -> list[Cell]:
    """Half the rounds, each of twice the text."""
    return [*_fewer_rounds(1000, top_k=16, rates=(0.004, 0.003)), Cell("adamw", 0.003, 1000)]


def _fewer_rounds(steps: int, top_k: int, rates: Iterable[float]) -> Iterator[Cell]:
    """The headline's text in fewer and larger rounds, at the bytes of k = 8 in 2000 of them."""
    for rate in rates:
        yield replace(STEADY, learning_rate=rate, steps=steps, top_k=top_k, authors=8, warmup_steps=steps // 25)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Cells that are trained alike, and so may be compared."""

    cells: Callable[[], list[Cell]]
    task: Task = Task()
    results: str = "docs/results/parity"
    """Where its results are committed: one directory for each task."""


SETS = {
    "first": Sweep(first_cells),
    "beyond": Sweep(beyond_cells),
    "even": Sweep(even_cells),
    "recency": Sweep(recency_cells),
    "quarter": Sweep(quarter_cells),
    "longer": Sweep(longer_cells),
    "breadth": Sweep(breadth_cells),
    "full": Sweep(full_cells),
    "batch32": Sweep(batch_32_cells, Task(batch_samples=32), "docs/results/parity/batch32"),
    "batch": Sweep(batch_cells, Task(batch_samples=64), "docs/results/parity/batch64"),
}
"""Sweeps by name."""
