"""Many seeds from the command line: `python -m tests.simulation --seeds 500 --first-seed 0 --jobs
2`.

Exit status 0 only if every promise held in every seed. One seed alone (`--seeds 1`) can show its
whole history with `--history`. The last line sums up; with one seed its `history` is a hash that
depends on nothing but the seed.
"""

import argparse
import sys

from tests.simulation.scenario import Scenario
from tests.simulation.verdicts import judge_all, summed_up


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
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.history:
        for seed in seeds:
            scenario = Scenario(seed, local_steps=options.local_steps)
            try:
                scenario.run()
            finally:
                print("\n".join(scenario.world.history()))
        return 0
    verdicts = []
    for verdict in judge_all(seeds, options.jobs, local_steps=options.local_steps):
        verdicts.append(verdict)
        if verdict.violation:
            print(verdict.violation, end="\n\n", flush=True)
    print(summed_up(verdicts))
    return int(any(verdict.violation for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
