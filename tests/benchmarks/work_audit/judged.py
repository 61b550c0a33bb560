"""What the product's judge says of measured runs: `python -m tests.benchmarks.work_audit.judged`.

Rounds of a run are drawn again and again, with four of its authors each, and the product's own book
takes them in. Printed for each run: the ratios of each kind (what it agrees in above chance, as a
part of the median of three others), how many of `--draws` audits of honest authors, and of those on
unlike machines, ended in evidence, and after how many audits there is evidence against the others.

The last line has all runs as they were, round after round, with no draws: how many audits of honest
authors left the sum of the sequential test at these heights. A height is reached e times more
rarely than the one below it where ratios spread as the test assumes, so the line tells how rarely
the limit would be.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from lockstep.audit.work.judge import Book, PayloadAudit, tested
from protocol.audit import rule
from protocol.audit.rule import CROSS_ODDS, EARLY_ROUNDS, LESS_AUDITS, PANEL
from tests.benchmarks.work_audit.measured import Measured, author_of, runs
from tests.lockstep.audit.work.panels import DRAW, RUN, round_of

UNLIKE = ("precision", "pieces")
"""Doubles that do all their work, on other machines."""

CHEATS = ("half", "thin", "other", "noise", "stale", "copied")

TRIALS = 500
"""Times that a cheat is looked for."""

LOWERED = (0.03, 0.06, 0.1, 0.15)
"""Parts by which an honest author agrees in less than the others, again and again."""

LIFE_AUDITS = 400
"""Panels that one book takes in while honest authors are judged."""


def found_after(run: Measured, kind: str, trials: int = TRIALS) -> list[int | None]:
    """The panels until there is evidence against a double, for each trial; None for more than
    `LESS_AUDITS`.
    """
    random = np.random.default_rng(2)
    return [_until(run.taught(), run.drawn(kind, random)) for _ in range(trials)]


def accused(
    run: Measured, draws: int, kind: str = "honest", lowered: float = 0.0
) -> tuple[int, int]:
    """Evidence against honest authors, or doubles of a kind in the place of the first, and the
    number of audits of them. With `lowered` the first honest author always agrees in this part
    less, above chance.
    """
    random, found, audits = np.random.default_rng(3), 0, 0
    while audits < draws:
        panels, book = _panels(run, kind, random, lowered), run.taught()
        for number, panel in enumerate(panels):
            judged = [look.author for look in panel]
            if lowered or kind != "honest":
                del judged[1:]
            evidence = book.take(round_of(number), panel, RUN, DRAW)
            found += sum(each.author in judged for each in evidence)
            audits += len(judged)
    return found, audits


def sums_in_order(run: Measured) -> list[float]:
    """The sum of the sequential test after each audit of an honest author from the round on in
    which the spread is known. A round has one panel, of authors a fourth of all apart; each of them
    is the first in one life of a book.
    """
    found = list[float]()
    apart = run.authors // PANEL
    for first in range(apart * PANEL if apart > 1 else 1):
        book = Book("local_steps")
        places = [(first + apart * number) % run.authors for number in range(PANEL)]
        for number, panel in enumerate(run.panels):
            shares = [panel["honest"][place] for place in places]
            assert not book.take(round_of(number), run.looks(shares, places=places), RUN, DRAW)
            if (spread := book.spread) is not None:
                rows = [book.rows[author_of(place)] for place in places]
                found += [rule.less_sum(tested(each), spread) for each in rows]
    return found


def ratios(run: Measured, kind: str) -> list[list[float]]:
    """Each audit of a kind beside the median of all other authors of its round, by author."""
    found: list[list[float]] = []
    for panel in run.panels:
        honest = panel["honest"]
        for place, share in enumerate(panel[kind]):
            expected = statistics.median(honest[:place] + honest[place + 1 :])
            if place == len(found):
                found.append([])
            found[place].append((share - 0.5) / (expected - 0.5))
    return found


def _panels(
    run: Measured, kind: str, random: np.random.Generator, lowered: float
) -> Iterator[list[PayloadAudit]]:
    if kind == "honest" and not lowered:
        yield from run.honest_panels(random, LIFE_AUDITS)
        return
    for first, *others in run.drawn(kind, random, LIFE_AUDITS):
        agreement = 0.5 + (first.agreement - 0.5) * (1 - lowered)
        yield [replace(first, agreement=agreement), *others]


def _until(book: Book, panels: Iterator[list[PayloadAudit]]) -> int | None:
    for number, panel in enumerate(panels, 1):
        found = book.take(round_of(number), panel, RUN, DRAW)
        if any(each.author == author_of(0) for each in found):
            return number
    return None


def _words(numbers: Sequence[int | None]) -> str:
    found = [number for number in numbers if number is not None]
    if not found:
        return f"never within {LESS_AUDITS}"
    at_most = sum(number <= 3 for number in found) / len(numbers)
    return (
        f"median {statistics.median(found):g}, within 3 {at_most:.3f}, "
        f"within {LESS_AUDITS} {len(found) / len(numbers):.3f}"
    )


def _print(run: Measured, draws: int) -> None:
    names = ("authors", "top_k", "local_samples", "steps", "every", "bfloat16")
    settings = {name: run.settings[name] for name in names if name in run.settings}
    print(settings, f"{len(run.panels)} audited rounds, spread {run.taught().spread}")
    for kind in run.kinds:
        line = _ratios_words([*chain.from_iterable(ratios(run, kind))])
        shares = [share for panel in run.panels for share in panel[kind]]
        line = f"  {kind:10} shares {min(shares):.3f} to {max(shares):.3f}, {line}"
        if kind in (*UNLIKE, "honest"):
            line += ", accused {} in {}".format(*accused(run, draws, kind))
        if kind in CHEATS:
            line += f", found: {_words(found_after(run, kind))}"
        print(line, flush=True)
    for lowered in LOWERED:
        found, audits = accused(run, draws // 4, lowered=lowered)
        print(f"  one that agrees in {lowered:g} less: accused {found} in {audits}", flush=True)
    by_author = ratios(run, "honest")
    for name, those in (
        ("float32", by_author[: run.float32]),
        ("bfloat16", by_author[run.float32 :]),
    ):
        if those:
            print(f"  honest in {name}: {_ratios_words([*chain.from_iterable(those)])}")
    for kind, rows in run.crossed.items():
        pairs = [
            pair
            for round_, *found in rows
            for pair in zip(found[::2], found[1::2], strict=True)
            if round_ >= EARLY_ROUNDS
        ]
        if not pairs:
            continue
        parts = [own / differ for own, differ in pairs]
        proven = sum(differ > 2 * own and _is_sure(own, differ) for own, differ in pairs)
        print(
            f"  {kind} follows its author's movement in {min(parts):.3f} to {max(parts):.3f} of "
            f"{min(differ for _, differ in pairs)} signs or more, proven {proven} of {len(pairs)}"
        )


def _ratios_words(found: Sequence[float]) -> str:
    low, middle, high = np.quantile(found, (0, 0.5, 1)).tolist()
    deviation = statistics.pstdev(found)
    return (
        f"ratio of {len(found)} {low:.2f} to {high:.2f}, median {middle:.3f}, "
        f"deviation {deviation:.3f}"
    )


def _is_sure(own: int, differ: int) -> bool:
    return (differ - 2 * own) ** 2 >= CROSS_ODDS * differ


def main() -> None:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000, help="audits of honest authors")
    wanted = parser.parse_args()
    measured = [run for run in runs() if run.panels]
    for run in measured:
        _print(run, wanted.draws)
    sums = [*chain.from_iterable(map(sums_in_order, measured))]
    heights = {
        height: sum(each >= height for each in sums) for height in range(1, int(max(sums)) + 2)
    }
    print(
        f"{len(sums)} audits in their order, sums by height: {heights}, the limit is {rule.LIMIT:g}"
    )


if __name__ == "__main__":
    main()
