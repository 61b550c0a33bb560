"""Many seeds from the command line: `python -m tests.simulation --seeds 500 --first-seed 0 --jobs
2`.

Exit status 0 only if every promise held in every seed. One seed alone (`--seeds 1`) can show its
whole history with `--history`. The last line sums up; with one seed its `history` is a hash that
depends on nothing but the seed. With `--strangers` the seeds are public runs with hostile members
of random kinds and number (`casts`), with `--summers` those of which a third add wrongly
(`summers`).
"""

import argparse
import sys
from functools import partial

from tests.simulation import casts, summers
from tests.simulation.scenario import Scenario
from tests.simulation.strangers import Strangers
from tests.simulation.verdicts import judge, judge_all, summed_up


def main(arguments: list[str] | None = None) -> int:
    """Run and report; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--history", action="store_true", help="print the whole history of each seed"
    )
    parser.add_argument("--local-steps", action="store_true", help="runs with local steps")
    parser.add_argument("--sums", action="store_true", help="runs with local steps and summers")
    parser.add_argument("--strangers", action="store_true", help="runs with hostile members")
    parser.add_argument("--summers", action="store_true", help="runs with hostile summers")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.history:
        for seed in seeds:
            played = _played(seed, options)
            try:
                played.run()
            finally:
                print("\n".join(played.world.history()))
        return 0
    plain = partial(judge, local_steps=options.local_steps, sums=options.sums)
    one = casts.judge if options.strangers else summers.judge if options.summers else plain
    verdicts = []
    for verdict in judge_all(seeds, options.jobs, one):
        verdicts.append(verdict)
        if verdict.violation:
            print(verdict.violation, end="\n\n", flush=True)
    print(summed_up(verdicts))
    return int(any(verdict.violation for verdict in verdicts))


def _played(seed: int, options: argparse.Namespace) -> Scenario | Strangers:
    if options.strangers:
        return Strangers(casts.cast_of(seed))
    if options.summers:
        return summers.AmongSummers(summers.cast_of(seed))
    return Scenario(seed, local_steps=options.local_steps, sums=options.sums)


if __name__ == "__main__":
    sys.exit(main())
