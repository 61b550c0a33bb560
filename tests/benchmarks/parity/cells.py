"""The cells of the parity study: what is trained, and by which method. `sweeps` lists them.

A task is what all cells of a sweep share: the network, the text and the samples of a step. A cell
is one training on it. A cell's name holds its method, rate and length, and every other field that
differs from its default, so names are unique and stable: results are found by them. Its title, for
tables and figures, names what differs from the former default, around which the study went.

Most cells of DeMo are records: the engine trains it as published alone, and `Cell.is_record` tells
which fields stand in the way.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from node.exact.demo.momentum import DemoSettings
from protocol.errors import SettingsError
from protocol.runfile import AlgorithmSpec, ModelSpec, ScheduleSpec

RETIRED: dict[str, tuple[object, ...]] = {
    "update": ("sign",),
    "gradients": ("plain",),
    "recency": (0.0,),
    "overlap": (0,),
    "alpha": (1.0,),
    "vote_rounds": (1,),
}
"""Fields of whose values the engine has only these left: docs/results/knobs.md."""

Method = Literal["adamw", "muon", "signum", "demo", "local_steps"]
Update = Literal["sign", "orthogonal"]
Guess = Literal["none", "own", "payload", "last"]
Transform = Literal["exact", "float", "off"]


@dataclass(frozen=True, slots=True)
class Task:
    """The network, text and measure of all cells of a sweep: the demo's byte-level llama on the
    built-in corpus.
    """

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

    vocabulary: int = 257
    """Tokens that the network knows: those of bytes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise SettingsError(
                    f"expected a {field.name} of at least 1, got {getattr(self, field.name)}"
                )

    @property
    def config(self) -> dict[str, Any]:
        """The network's configuration."""
        sizes = {
            "vocab_size": self.vocabulary,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 43 // 16,
            "max_position_embeddings": max(256, self.sequence_length),
        }
        return {**ModelSpec().config, **sizes}

    def tokens(self, steps: int) -> int:
        """Tokens trained in this many steps."""
        return steps * self.batch_samples * self.sequence_length


@dataclass(frozen=True, slots=True)
class Cell:
    """One training. `SettingsError` for a cell that cannot be trained; fields of other methods keep
    their defaults.
    """

    method: Method
    learning_rate: float
    steps: int

    weight_decay: float = 0.0
    """Decoupled. AdamW decays only matrices, as is usual; the others decay every parameter, as a
    run does."""

    top_k: int = 32

    early_rounds: int = 0
    """Number of first rounds in which `early_top_k` is used instead of `top_k`."""

    early_top_k: int = 64

    vote_rounds: int = 1
    """Rounds whose votes a step added up, from `vote_rounds_from` on: see `RETIRED`."""

    vote_rounds_from: int = 300
    value_bits: int = 1

    alpha: float = 1.0
    """Share of the sent coefficients that left the author's momentum; see `RETIRED`."""

    update: Update = "sign"
    """Update computed from the sum of votes: its sign or, for matrices, the nearest orthogonal
    matrix; see `RETIRED`."""

    gradients: Literal["plain", "unit", "even"] = "plain"
    """How each author's gradients enter its momentum: as they come, rows and columns made even by
    their recent sizes, or each tensor scaled to a root mean square of one: see `RETIRED`."""

    momentum_decay: float = 0.999
    """beta of DeMo and of Signum."""

    recency: float = 0.0
    """A young momentum decayed faster: its n-th round left n / (n + recency); see `RETIRED`."""

    adam_decays: tuple[float, float] = (0.9, 0.95)
    """beta1 and beta2 of AdamW."""

    clip: float = 1.0
    """AdamW's gradients are scaled down to this norm."""

    overlap: int = 0
    """Rounds of delay between a payload and its application: 0 or 1; see `RETIRED`."""

    guess: Guess = "none"
    """With overlap: the guess at the pending update by which gradients were taken ahead of the
    committed parameters. No guess, a node's own (of its payload and momentum), the exact update
    that the own payload alone would make, or the last commit's update once more."""

    late: float = 1.0
    """With overlap: the part of an author's samples that it trained before the previous round's
    commit arrived, at the guess. It trained the others at the parameters that the commit made."""

    overlap_from: int = 0
    """With overlap: the first round that began before the previous one was applied."""

    transform: Transform = "exact"
    """DCT with the exact integer inverse, with a float inverse, or no DCT: coefficients are
    parameters."""

    authors: int = 4
    """R, the contributors of every round."""

    seed: int = 0
    """Seed of the initial weights and of the data order."""

    local_steps: int = 1
    """H, the batches of a round of local steps."""

    fade: float = 1.0
    """Share of an author's residual that a round of local steps leaves."""

    gain: float = 1.0
    """Factor on the mean movement of local steps."""

    lost: float = 0.0
    """Share of the rounds of local steps before which an author loses its residual, at random."""

    warmup_steps: int = 50
    shape: Literal["cosine", "constant"] = "cosine"
    final_fraction: float = 0.1

    @property
    def is_record(self) -> bool:
        """Whether only earlier releases could train the cell; its results stay."""
        return any(getattr(self, name) not in kept for name, kept in RETIRED.items())

    def require_trainable(self) -> None:
        """`SettingsError` for a record."""
        for name, kept in RETIRED.items():
            if (found := getattr(self, name)) not in kept:
                raise SettingsError(
                    f"expected {name} of {kept}, got {found!r}: the engine no longer trains it; "
                    "its results are under docs/results/data"
                )

    def __post_init__(self) -> None:
        _ = self.demo, self.schedule, self.algorithm  # judge their own fields
        if self.method not in get_args(Method) or self.transform not in (
            "exact",
            "float",
            "off",
        ):
            raise SettingsError(
                f"expected a known method and transform, got {self.method!r}, {self.transform!r}"
            )
        if self.overlap not in (0, 1) or self.guess not in ("none", "own", "payload", "last"):
            raise SettingsError(
                "expected an overlap of 0 or 1 and a known guess, "
                f"got {self.overlap}, {self.guess!r}"
            )
        if self.guess != "none" and not self.overlap:
            raise SettingsError(
                f"expected overlap 1 with the guess {self.guess!r}, got {self.overlap}"
            )
        if not 0 < self.late <= 1 or (self.late < 1 and not self.overlap):
            raise SettingsError(
                f"expected a late part in (0, 1], and of 1 without overlap, got {self.late}"
            )
        if self.overlap_from < 0 or (self.overlap_from and not self.overlap):
            raise SettingsError(
                "expected an overlap_from of at least 0, and of 0 without overlap, "
                f"got {self.overlap_from}"
            )
        if self.update != "sign" and (self.method, self.transform) != ("demo", "exact"):
            raise SettingsError(
                f"expected the update sign with {self.method}, transform {self.transform}, "
                f"got {self.update}"
            )
        if self.overlap and self.method != "demo":
            raise SettingsError(f"expected overlap 0 with {self.method}, got {self.overlap}")
        if self.local_steps < 1 or (self.local_steps > 1 and self.method != "local_steps"):
            raise SettingsError(
                f"expected local_steps of at least 1, and of 1 with {self.method}, "
                f"got {self.local_steps}"
            )
        if self.method != "local_steps" and (self.fade, self.gain) != (1.0, 1.0):
            raise SettingsError(
                f"expected fade and gain of 1 with {self.method}, got {self.fade}, {self.gain}"
            )
        if not 0 <= self.lost <= 1 or (self.lost and self.method != "local_steps"):
            raise SettingsError(
                f"expected lost of 0 to 1, and of 0 with {self.method}, got {self.lost}"
            )
        if self.authors < 1:
            raise SettingsError(f"expected at least 1 author, got {self.authors}")

    @property
    def name(self) -> str:
        """Unique among all cells, and a file name."""
        plain = Cell(self.method, self.learning_rate, self.steps)
        return "-".join(
            [self.method, f"lr{self.learning_rate:g}", f"n{self.steps}", *self._unlike(plain, "=")]
        )

    @property
    def title(self) -> str:
        """A name for people: what differs from the former default. Unique among cells of one
        length.
        """
        usual = (
            FORMER if self.method == "demo" else Cell(self.method, self.learning_rate, self.steps)
        )
        return ", ".join([f"{self.method} {self.learning_rate:g}", *self._unlike(usual, " ")])

    def _unlike(self, other: "Cell", between: str) -> Iterator[str]:
        """Fields that differ from another cell's, each with its value, except method, rate and
        length.
        """
        for field in fields(self)[3:]:
            value = getattr(self, field.name)
            if value != getattr(other, field.name):
                text = (
                    "+".join(f"{part:g}" for part in value)
                    if isinstance(value, tuple)
                    else str(value)
                )
                yield f"{field.name}{between}{text}"

    @property
    def demo(self) -> DemoSettings:
        """The engine's settings."""
        return DemoSettings.among(asdict(self))

    def top_k_at(self, round_: int) -> int:
        """K of a round; a run has one for all."""
        return self.early_top_k if round_ < self.early_rounds else self.top_k

    @property
    def algorithm(self) -> AlgorithmSpec:
        """The part of a run file that judges k, fade and gain."""
        return AlgorithmSpec(
            name="local_steps" if self.method == "local_steps" else "demo",
            top_k=self.top_k,
            fade=self.fade,
            gain=self.gain,
        )

    @property
    def schedule(self) -> ScheduleSpec:
        """Learning rate and weight decay by step, as a coordinator computes them."""
        return ScheduleSpec(
            steps=self.steps,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            shape=self.shape,
            final_fraction=self.final_fraction,
            weight_decay=self.weight_decay,
        )


PUBLISHED = Cell("demo", 0.001, 600)
"""DeMo as published: update by sign, gradients as they come, one beta."""

FORMER = replace(PUBLISHED, learning_rate=0.003, update="orthogonal", gradients="even", recency=1.5)
"""DeMo, orthogonalised: the algorithm of a run file that named none, until local steps took its
place. A record."""
