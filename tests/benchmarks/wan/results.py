"""One method on one profile: predicted from bytes and rates, and measured.

Predictions are payload bytes over the slower direction of the line, without headers, losses or
waits:

    ddp         2 (n-1)/n * 4 bytes * P, forward before, backward meanwhile
    hivemind    the same at 2 bytes for the gradients and again for the parameters,
                which travel behind the next step
    diloco      ddp's bytes once in H steps, nothing meanwhile
    lockstep    n-1 payloads; behind the computation with overlap 1
    local steps the same once in H steps, with a scale of one byte for each chunk

A step lasts from the beginning of its computation to that of the next one; a local step is a part
of its round, exchange included, which lasts until the next round begins. Computing is the sleep
in place of the forward and backward pass, and the time in the optimizer's own arithmetic, on a
machine where eight nodes share two cores. `computing_alone` counts only the core time of that
arithmetic, as if waits for a core were idle. In slow motion all times but core times are divided by
the factor.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import comb, log2
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lockstep.wan.lab.home_link import HomeLink
from lockstep.wan.profiles import read_profiles
from node.exact.chunks import ChunkLayout
from node.system.files import replacing_file
from protocol.errors import DataError
from protocol.limits import CHUNK_ENTRIES
from tests.benchmarks.wan.archive import Archive
from tests.benchmarks.wan.curves import INNER_STEPS
from tests.benchmarks.wan.links import Seen, Trial
from tests.benchmarks.wan.methods import METHODS
from tests.benchmarks.wan.model import CONFIGS, StepNote, shapes

WARMUP = {"ddp": 1, "hivemind": 1, "diloco": 1, "lockstep": 2, "local steps": 1}
"""Number of first steps or rounds, by pace, that are not counted: connections are new and windows
small."""

Span = tuple[StepNote, float]
"""A step and the instant of its end."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of one step."""

    bytes: float
    """Bytes up from a node, the mean over nodes; as many come down."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of one method on one profile; figures of a step are means over nodes and steps if
    not said otherwise.
    """

    profile: str
    method: str
    nodes: int
    parameters: int
    compute_s: float
    step_s: tuple[float, ...]
    """Seconds of every counted step, the mean over nodes."""
    up_bytes: float
    down_bytes: float
    up_bytes_most: float
    """Bytes up per step of the busiest node."""
    computing: float
    """Share of the time spent computing."""
    computing_alone: float
    arithmetic_s: float
    arithmetic_cpu_s: float
    """Core time, not divided in slow motion."""
    facts: dict[str, Any]
    slowed: int = 1
    """Factor of slow motion by which all other times were divided."""

    @property
    def seconds(self) -> float:
        """The median step."""
        return median(self.step_s)


def parameters_of(size: str) -> int:
    """Number of parameters of the network of this size."""
    return sum(_product(shape) for shape in shapes(CONFIGS[size]).values())


def _product(shape: Sequence[int]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product


def predicted(trial: Trial, link: HomeLink | None = None) -> Prediction:
    """Predict a step's bytes and seconds."""
    link = link or read_profiles().profile(trial.profile).link()
    assert link.up
    assert link.down
    rate = min(link.up.rate_bit_s, link.down.rate_bit_s) / 8
    dense = 2 * (trial.nodes - 1) / trial.nodes * parameters_of(trial.size)
    forward = trial.compute_s / 3
    kind = trial.how.kind
    if kind == "ddp":
        return Prediction(4 * dense, forward + max(trial.compute_s - forward, 4 * dense / rate))
    if kind == "diloco":
        return Prediction(4 * dense / INNER_STEPS, trial.compute_s + 4 * dense / INNER_STEPS / rate)
    if kind == "hivemind":
        return Prediction(4 * dense, max(trial.compute_s + 2 * dense / rate, 4 * dense / rate))
    layout = ChunkLayout.from_shapes(shapes(CONFIGS[trial.size]))
    scale_bits = 8 if trial.how.local_steps else 0
    round_bits = layout.chunks * (chunk_bits(trial.how.top_k) + scale_bits)
    sent = (trial.nodes - 1) * round_bits / 8 / trial.how.round_steps
    hidden = trial.how.overlap
    return Prediction(
        sent, max(trial.compute_s, sent / rate) if hidden else trial.compute_s + sent / rate
    )


def chunk_bits(top_k: int) -> float:
    """Least bits of a chunk's k coefficients: which of the 4096 they are, and a sign each."""
    return log2(comb(CHUNK_ENTRIES, top_k)) + top_k


def measured(trial: Trial, seen: Seen) -> Measurement:
    """The measurement made from a trial's notes and its lines' counters; `DataError` for too few
    steps.
    """
    seen = in_rounds(at_the_speed_of_life(seen, trial.slowed), trial.how.round_steps)
    warmup = WARMUP[trial.how.pace]
    spans = [_spans(notes) for notes in seen.notes]
    steps = [[span for span in own if not span[0].sync][warmup:] for own in spans]
    syncs = [[span for span in own if span[0].sync] for own in spans]
    if not all(steps) or (trial.method == "diloco" and not all(syncs)):
        counts = [len(own) for own in spans]
        raise DataError(
            f"{trial.name}: expected more than {warmup} steps or rounds of every node, got {counts}"
        )
    share = 1 / INNER_STEPS  # of an outer step in every inner one
    sync_s = fmean(_length(span) for own in syncs for span in own) if any(syncs) else 0.0
    part = 1 / trial.how.round_steps  # of a round in every local step
    step_s = [
        part * fmean(map(_length, at_once)) + share * sync_s
        for at_once in zip(*steps, strict=False)
    ]
    up, down = zip(
        *(_bytes(seen, node, steps[node], syncs[node]) for node in range(trial.nodes)), strict=True
    )
    notes = [note for own in steps for note, _ in own]
    whole_s = fmean(_length(span) for own in steps for span in own) + share * sync_s
    compute_s = fmean(note.compute_s for note in notes)
    outer = [note for own in syncs for note, _ in own]
    arithmetic_s, alone_s = (
        fmean(getattr(note, name) for note in notes)
        + share * fmean([getattr(note, name) for note in outer] or [0.0])
        for name in ("arithmetic_s", "arithmetic_cpu_s")
    )
    return Measurement(
        profile=trial.profile,
        method=trial.method,
        nodes=trial.nodes,
        parameters=parameters_of(trial.size),
        compute_s=trial.compute_s,
        step_s=tuple(round(value, 3) for value in step_s),
        up_bytes=round(part * fmean(up)),
        down_bytes=round(part * fmean(down)),
        up_bytes_most=round(part * max(up)),
        computing=round((compute_s + arithmetic_s) / whole_s, 4),
        computing_alone=round((compute_s + alone_s) / whole_s, 4),
        arithmetic_s=round(part * arithmetic_s, 3),
        arithmetic_cpu_s=round(part * alone_s, 3),
        facts=seen.facts | ({"sync_s": round(sync_s, 2)} if sync_s else {}),
        slowed=trial.slowed,
    )


def at_the_speed_of_life(seen: Seen, slowed: int) -> Seen:
    """Observations of slow motion, on a clock slower by that factor; core times are unchanged."""

    def on_that_clock(note: StepNote) -> StepNote:
        times = {
            name: getattr(note, name) / slowed for name in ("began_s", "compute_s", "arithmetic_s")
        }
        return replace(note, **times)

    return replace(
        seen,
        notes=tuple([on_that_clock(note) for note in notes] for notes in seen.notes),
        crossed=lambda node, from_s, until_s: seen.crossed(node, from_s * slowed, until_s * slowed),
    )


def in_rounds(seen: Seen, steps: int) -> Seen:
    """Observations with a note for each whole round of this many steps, whose times are theirs
    together.
    """
    return replace(seen, notes=tuple(_whole_rounds(own, steps) for own in seen.notes))


def _whole_rounds(notes: Sequence[StepNote], steps: int) -> list[StepNote]:
    firsts = range(0, len(notes) - steps, steps)
    found = []
    for first in firsts:
        own = notes[first : first + steps]
        sums = {
            name: sum(getattr(note, name) for note in own)
            for name in ("compute_s", "arithmetic_s", "arithmetic_cpu_s")
        }
        found.append(replace(own[0], **sums))
    return [*found, *notes[len(firsts) * steps :][:1]]


def _spans(notes: Sequence[StepNote]) -> list[Span]:
    return [(note, following.began_s) for note, following in pairwise(notes)]


def _length(span: Span) -> float:
    return span[1] - span[0].began_s


def _bytes(
    seen: Seen, node: int, steps: Sequence[Span], syncs: Sequence[Span]
) -> tuple[float, float]:
    """Bytes up and down of a mean step of one node; for DiLoCo a step's part of the outer step,
    since it sends nothing else.
    """
    counted = syncs or steps
    up, down = seen.crossed(node, counted[0][0].began_s, counted[-1][1])
    over = INNER_STEPS * len(syncs) if syncs else len(steps)
    return up / over, down / over


# ---- on disk


def path_of(directory: Path, trial: Trial) -> Path:
    """Path of a trial's measurement."""
    return directory / f"{trial.name}.json"


def save(directory: Path, trial: Trial, measurement: Measurement) -> None:
    """Write a measurement, whole or not at all."""
    with replacing_file(path_of(directory, trial)) as temporary:
        temporary.write_text(json.dumps(asdict(measurement), indent=1) + "\n")


def load_all(archive: Archive, names: Iterable[str] = METHODS) -> list[Measurement]:
    """All measurements, by profile in the order of their names and by method; `DataError` names an
    invalid one.
    """
    order = {name: number for number, name in enumerate(names)}
    found = []
    for name, document in archive.documents().items():
        if "step_s" in document:
            try:
                found.append(Measurement(**document | {"step_s": tuple(document["step_s"])}))
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{name}: expected a measurement, got {error!r}; remove it to measure again"
                ) from error
    return sorted(
        found, key=lambda one: (one.profile, -one.compute_s, order[one.method], one.slowed)
    )
