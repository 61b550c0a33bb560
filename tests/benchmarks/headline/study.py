"""The cells of the headline: four methods and a larger batch, tuned equally hard on two texts.

Every method has the same network, genesis, data order and schedule, and the same tokens in all. Of
each, one seed is trained at every rate of a sweep; the sweeps have equally many rates, a factor of
two apart, and go on beyond an end that is best. Those of the second text begin with the first one's
best rate and the two beside it; those of a longer training with the best rate of the next shorter
one and half of it. The headline itself is the longest training, with eight authors; on the second
text it begins with the first one's best rate of that length and half of it. The rate that is best
on the validation split is trained with the other seeds too. So what is trained next follows from
what is there: `waiting` says it, in order of importance, and a study that ends early is whole as
far as it came.

"default" is DeMo, orthogonalised: the default of a run file until local steps took its place. Its
cells are records (`Cell.is_record`): they stay in the comparison, and none of them waits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tests.benchmarks.headline.texts import SUBWORDS, TextName
from tests.benchmarks.parity.cells import FORMER, Cell, Task
from tests.benchmarks.parity.results import Result

Method = Literal["adamw", "muon", "default", "local_steps", "default_large_batch"]
"""Records name DeMo, orthogonalised, by what it was when they were made."""

STEPS = 150
LONG_STEPS = 450
FULL_STEPS = 2000
AUTHORS = 4
FULL_AUTHORS = 8
SEEDS = (0, 1, 2)
LOCAL_STEPS = 5

TEST_SAMPLES = 2048
"""Windows of the test split on which a cell is judged, evenly spaced over all of it."""

TASKS: dict[TextName, Task] = {
    "library": Task(layers=2, hidden=64, validation_samples=512, point_steps=75),
    "manual": Task(
        layers=2, hidden=64, validation_samples=512, point_steps=75, vocabulary=SUBWORDS
    ),
}
"""The smallest networks in which every method still has whole chunks to work on."""

RATES: dict[Method, tuple[float, ...]] = {
    "adamw": (0.003, 0.006, 0.012, 0.024),
    "muon": (0.006, 0.012, 0.024, 0.048),
    "default": (0.002, 0.004, 0.008, 0.016),
    "local_steps": (0.006, 0.012, 0.024, 0.048),
    "default_large_batch": (0.004, 0.008, 0.016, 0.032),
}
"""Rates of the first text's sweeps, equally many for every method."""


class Ground(NamedTuple):
    """What methods are compared on: a text, a length in steps of 16 samples, and the authors among
    whom the samples of a step are cut.
    """

    text: TextName
    steps: int
    authors: int = AUTHORS


FIRST, SECOND, LONG, FULL, FULL_SECOND = (
    Ground("library", STEPS),
    Ground("manual", STEPS),
    Ground("library", LONG_STEPS),
    Ground("library", FULL_STEPS, FULL_AUTHORS),
    Ground("manual", FULL_STEPS, FULL_AUTHORS),
)

SHORTER = (FIRST, SECOND, LONG)
"""The grounds of the shorter trainings."""

HEADLINE = (FULL, FULL_SECOND)
"""The grounds on which the headline is told."""

GROUNDS = (*SHORTER, *HEADLINE)

POINT_STEPS = {LONG_STEPS: 150, FULL_STEPS: 250}
"""Steps from one point of a longer curve to the next."""

BEFORE: dict[Ground, tuple[Ground, ...]] = {
    SECOND: (FIRST,),
    LONG: (FIRST,),
    FULL: (LONG, FIRST),
    FULL_SECOND: (FULL,),
}
"""Grounds with whose best rates the sweeps of another begin: of each method those of the first one
that has a best rate."""

_COMPARED: tuple[Method, ...] = ("default", "local_steps", "muon", "adamw")

ORDER: tuple[tuple[Ground, tuple[Method, ...]], ...] = (
    (FIRST, tuple(RATES)),
    (LONG, ("local_steps", "default")),
    *((ground, (method,)) for ground in HEADLINE for method in _COMPARED),
    (SECOND, _COMPARED),
)
"""What is trained in turn. Equal rounds, the larger batch, are on the first ground alone."""

BEYOND_MAX = 3
"""Rates by which a sweep may grow at each end."""

PAIRS: dict[tuple[Method, Method], str] = {
    ("muon", "adamw"): "ahead by 0.05 to 0.20",
    ("default", "adamw"): "within 0.10, to either side",
    ("default", "muon"): "behind by 0.05 to 0.20",
    ("local_steps", "muon"): "behind by 0.05 to 0.25",
    ("local_steps", "default"): "within 0.06, to either side",
    ("local_steps", "default_large_batch"): "ahead by more than 0.4",
}
"""What is compared, and the expectation, written before any cell was trained: the first is ahead or
behind by that many bits per byte. The fifth is at equal tokens and about equal bytes, the last at
equal rounds, bytes and tokens. Grounds: the pilot had Muon 0.12 to 0.2 ahead of the default and
AdamW behind both; untuned, local steps ended 0.04 behind the default from the same bytes and 1.2
ahead of it from the same rounds."""

LONG_PAIRS: dict[tuple[Method, Method], str] = {
    ("muon", "adamw"): "ahead by 0.20 to 0.60",
    ("default", "adamw"): "ahead by 0.10 to 0.35",
    ("default", "muon"): "behind by 0.15 to 0.35",
    ("local_steps", "muon"): "behind by 0.15 to 0.40",
    ("local_steps", "default"): "behind by 0.00 to 0.08",
}
"""The same for the longer training, written when the 150 steps were known and none of its cells
was trained; 600 steps were planned then, of which time allowed 450. Grounds: at 150 steps local
steps were 0.13 behind the default at step 75 and 0.09 at the end, untuned 0.04 at 300; the pilot in
float had them 0.04 ahead at 600. The dense methods were not trained at this length."""

FULL_PAIRS: dict[tuple[Method, Method], str] = {
    ("muon", "adamw"): "ahead by 0.10 to 0.30",
    ("default", "adamw"): "ahead by 0.00 to 0.20",
    ("default", "muon"): "behind by 0.08 to 0.20",
    ("local_steps", "muon"): "behind by 0.06 to 0.18",
    ("local_steps", "default"): "ahead by 0.00 to 0.06",
}
"""The same for the longest training with eight authors, on both texts, written when 150 and 450
steps were known and before any of its cells was trained. Grounds: local steps were 0.099 behind the
default at 150 steps and 0.029 +- 0.05 at 450, and within that training 0.089, 0.057 and 0.024
behind at steps 150, 300 and 450; the pilot in float had them 0.04 ahead at 600 and 0.05 at 1200
with four authors, but only 0.006 ahead at 600 with eight. The default was 0.31 behind Muon at 150
steps, in the pilot 0.12 to 0.2 at 600, and its step grows with the number of authors. AdamW was 0.6
behind Muon at 150 steps and 0.23 in the pilot at 600: short runs favour the other rules."""

EXPECTED: dict[Ground, dict[tuple[Method, Method], str]] = {
    FIRST: PAIRS,
    SECOND: PAIRS,
    LONG: LONG_PAIRS,
    FULL: FULL_PAIRS,
    FULL_SECOND: FULL_PAIRS,
}
"""What is compared on each ground, with the expectation."""


@dataclass(frozen=True, slots=True)
class Job:
    """One cell to train."""

    text: TextName
    method: Method
    cell: Cell

    @property
    def ground(self) -> Ground:
        """Where the cell is compared: a larger batch counts as the steps whose samples it has."""
        larger = LOCAL_STEPS if self.method == "default_large_batch" else 1
        return Ground(self.text, self.cell.steps * larger, self.cell.authors)

    @property
    def task(self) -> Task:
        """The text's task, with the batch of the method and the points of a longer curve."""
        task = TASKS[self.text]
        if self.ground.steps in POINT_STEPS:
            return replace(task, point_steps=POINT_STEPS[self.ground.steps])
        if self.method != "default_large_batch":
            return task
        return replace(
            task,
            batch_samples=task.batch_samples * LOCAL_STEPS,
            point_steps=task.point_steps // LOCAL_STEPS,
        )

    @property
    def name(self) -> str:
        """Unique in the study."""
        return f"{self.text}/{self.cell.name}"


@dataclass(frozen=True, slots=True)
class Finished:
    """A cell that was trained, on the validation split."""

    job: Job
    result: Result

    @property
    def choosing(self) -> float:
        """Validation bits per byte at the end; infinite if the cell did not get there."""
        return float("inf") if self.result.failure else self.result.last.bits_per_byte


def cell(
    method: Method, rate: float, seed: int, steps: int = STEPS, authors: int = AUTHORS
) -> Cell:
    """The cell of a method: its settings are those of a run file, but for rate, k and length."""
    warmup = steps * 2 // 15
    base = {"steps": steps, "warmup_steps": warmup, "seed": seed, "authors": authors}
    match method:
        case "adamw":
            made = Cell("adamw", rate, steps, adam_decays=(0.9, 0.99))
        case "muon":
            made = Cell("muon", rate, steps)
        case "default":
            made = FORMER
        case "local_steps":
            made = Cell("local_steps", rate, steps, top_k=192, local_steps=LOCAL_STEPS)
        case "default_large_batch":
            made = replace(FORMER, top_k=192)
            base |= {"steps": steps // LOCAL_STEPS, "warmup_steps": warmup // LOCAL_STEPS}
    return replace(made, learning_rate=rate, **base)


def begun_with(found: Sequence[Finished], ground: Ground) -> dict[Method, tuple[float, ...]]:
    """The rates with which the sweeps of a ground begin, the most likely ones first; none for a
    method whose sweep on the grounds before it is not whole.
    """
    begun = {method: _begun_with(found, ground, method) for method in RATES}
    return {method: rates for method, rates in begun.items() if rates}


def _begun_with(found: Sequence[Finished], ground: Ground, method: Method) -> tuple[float, ...]:
    if not any(method in methods for each, methods in ORDER if each == ground):
        return ()
    if ground == FIRST:
        return tuple(RATES[method][place] for place in (1, 2, 0, 3))
    best = (_best_rate(found, before, method) for before in BEFORE[ground])
    rate = next((each for each in best if each is not None), None)
    if rate is None:
        return ()
    return (rate / 2, rate) if ground.steps > STEPS else (rate, rate / 2, rate * 2)


def sweep(found: Sequence[Finished], ground: Ground) -> list[Job]:
    """The rates with which the sweeps of all methods begin, one seed."""
    rates = begun_with(found, ground)
    places = range(max(map(len, rates.values()), default=0))
    order = [(method, rates[method][place]) for place in places for method in rates]
    return [_job(ground, method, rate, SEEDS[0]) for method, rate in order]


def possible() -> Iterator[Job]:
    """Every cell that the study may come to."""
    for ground, methods in ORDER:
        for method in methods:
            for rate in _long(method):
                yield from (_job(ground, method, rate, seed) for seed in SEEDS)


def _job(ground: Ground, method: Method, rate: float, seed: int) -> Job:
    return Job(ground.text, method, cell(method, rate, seed, ground.steps, ground.authors))


def best_rates(found: Sequence[Finished], ground: Ground) -> dict[Method, float]:
    """The rate of each method that is best on the validation split, once its sweep is whole and has
    a worse rate on both sides of it.
    """
    best = {method: _best_rate(found, ground, method) for method in RATES}
    return {method: rate for method, rate in best.items() if rate is not None}


def _best_rate(found: Sequence[Finished], ground: Ground, method: Method) -> float | None:
    rate = _best(found, ground, method)
    return None if rate is None or _missing(found, ground, method, rate) else rate


def beyond(found: Sequence[Finished], ground: Ground) -> list[Job]:
    """The next rates of sweeps whose best one is at an end."""
    jobs = []
    for method in RATES:
        rate = _best(found, ground, method)
        if rate is not None:
            missing = _missing(found, ground, method, rate)
            jobs += [_job(ground, method, each, SEEDS[0]) for each in missing]
    return jobs


def _long(method: Method) -> list[float]:
    """All rates that a sweep may come to, ascending."""
    lowest, highest = RATES[method][0], RATES[method][-1]
    before = [lowest / 2**step for step in range(BEYOND_MAX, 0, -1)]
    return [*before, *RATES[method], *(highest * 2**step for step in range(1, BEYOND_MAX + 1))]


def _tried(found: Sequence[Finished], ground: Ground, method: Method) -> dict[float, float]:
    """Validation bits per byte by rate, one seed."""
    return {
        each.job.cell.learning_rate: each.choosing
        for each in found
        if (each.job.ground, each.job.method, each.job.cell.seed) == (ground, method, SEEDS[0])
    }


def _best(found: Sequence[Finished], ground: Ground, method: Method) -> float | None:
    """The best rate so far of a sweep that was made."""
    tried = _tried(found, ground, method)
    begun = _begun_with(found, ground, method)
    whole = bool(begun) and tried.keys() >= set(begun)
    return min(tried, key=tried.__getitem__) if whole else None


def _missing(found: Sequence[Finished], ground: Ground, method: Method, rate: float) -> list[float]:
    """The rates beside the best one that were not tried yet, and may be."""
    rates, tried = _long(method), _tried(found, ground, method)
    place = rates.index(rate)
    return [each for each in rates[max(place - 1, 0) : place + 2] if each not in tried]


def finals(found: Sequence[Finished], ground: Ground) -> list[Job]:
    """The cells that are judged on the test split: the best rate of each method, all seeds."""
    best = best_rates(found, ground)
    return [_job(ground, method, rate, seed) for seed in SEEDS for method, rate in best.items()]


def waiting(found: Iterable[Finished], text: TextName | None = None) -> list[Job]:
    """What is trained next, of one text or of both, the most important first; later ones may follow
    from their results. Cells that the engine no longer trains are left out.
    """
    found = list(found)
    done = {each.job for each in found}
    for ground, methods in ORDER:
        if text not in (None, ground.text):
            continue
        for part in (sweep, beyond, finals):
            jobs = (job for job in part(found, ground) if job.method in methods)
            if left := [job for job in jobs if job not in done and not job.cell.is_record]:
                return left
    return []
