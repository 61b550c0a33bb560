"""Runs many seeds in several processes: a verdict on each, and a summary."""

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.checkers import Violation
from tests.simulation.scenario import Scenario

COLLECTED_AFTER = 100_000
"""New objects after which Python's collector runs, instead of 700: it takes a tenth of the time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one seed."""

    seed: int
    violation: str
    nodes: int = 0
    rounds: int = 0
    commits: int = 0
    node_rounds: int = 0
    restarts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    history: str = ""


def judge(seed: int, local_steps: bool = False, sums: bool = False) -> Verdict:
    """Run one seed."""
    try:
        outcome = Scenario(seed, local_steps=local_steps, sums=sums).run()
    except Violation as violation:
        return Verdict(seed, str(violation))
    return Verdict(
        seed,
        "",
        outcome.nodes,
        outcome.rounds,
        outcome.commits,
        outcome.nodes * outcome.rounds,
        outcome.restarts,
        outcome.faults,
        outcome.fingerprint,
    )


def processes(jobs: int) -> ProcessPoolExecutor:
    """Processes that judge seeds. A world is one large web of objects; Python's collector would
    walk it often.
    """
    return ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=gc.set_threshold, initargs=(COLLECTED_AFTER,)
    )


def judge_all(seeds: range, jobs: int, one: Callable[[int], Verdict]) -> Iterable[Verdict]:
    """Run the seeds in `jobs` processes, each by `one`; verdicts in the order of the seeds."""
    if jobs <= 1:
        yield from map(one, seeds)
        return
    with processes(jobs) as pool:
        yield from pool.map(one, seeds, chunksize=5)


def summed_up(verdicts: list[Verdict]) -> str:
    """The summary of all seeds, as one line."""
    faults: Counter[str] = sum((verdict.faults for verdict in verdicts), Counter())
    violations = sum(bool(verdict.violation) for verdict in verdicts)
    combined = hashlib.sha256(
        " ".join(verdict.history for verdict in verdicts).encode()
    ).hexdigest()[:16]
    return (
        f"seeds={len(verdicts)} rounds={sum(verdict.rounds for verdict in verdicts)} "
        f"commits={sum(verdict.commits for verdict in verdicts)} "
        f"node_rounds={sum(verdict.node_rounds for verdict in verdicts)} "
        f"faults={sum(faults.values())} "
        f"({' '.join(f'{kind}={count}' for kind, count in sorted(faults.items()))}) "
        f"violations={violations} history={combined}"
    )
