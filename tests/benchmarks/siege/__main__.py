"""What hosts without a key cost a public run: `python -m tests.benchmarks.siege --json PATH`.

Every attack of `tests.processes.siege`, one after the other on one run of real processes: quiet,
the attack, quiet again, and the attack anew where it seems to cost more than a tenth of the commits
(other work on the machine may be the reason; all times of an attack are weighed together).

The aims: at least 0.9 of the commits; no session of an honest process cut, no process ended; at
most 64 MB more in any process, given back within 30 s; newcomers with a token let in within 10 s.
"""

import argparse
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.console import messages, write_json
from tests.processes.siege.catalogue import AT_THE_DAEMON, ATTACKS
from tests.processes.siege.run import (
    BesiegedRun,
    LinkedRun,
    Newcomers,
    Sizes,
    attackers_route,
)
from tests.processes.siege.trial import Lengths, Outcome, Siege
from tests.processes.strangers.run import Watch


def row_of(outcome: Outcome) -> dict[str, Any]:
    """An outcome for the kept file."""
    return {
        "attack": outcome.attack,
        "kept": round(outcome.kept, 3),
        "quiet_rate": round(outcome.quiet_commits / outcome.quiet_s, 3),
        "attacked_s": round(outcome.attacked_s, 1),
        "memory_bytes": outcome.memory,
        "back_s": round(outcome.back_s, 1),
        "newcomers": outcome.newcomers,
        "newcomer_s": round(outcome.newcomer_s, 2),
        "sessions_lost": outcome.sessions_lost,
        "faults": outcome.faults,
        "log_bytes": outcome.log_bytes,
        "did": dict(outcome.did),
    }


def main() -> None:
    """Measure, and write the result after each attack."""
    usual = Lengths()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.siege")
    parser.add_argument("--json", default="-", help="file for the result")
    parser.add_argument("--quiet", type=float, default=usual.quiet_s, help="seconds")
    parser.add_argument("--attack", type=float, default=usual.attack_s, help="seconds")
    parser.add_argument("--libp2p", action="store_true", help="attack libp2p's daemons")
    parser.add_argument("names", nargs="*", help="attacks; all unless given")
    wanted = parser.parse_args()
    attacks = AT_THE_DAEMON if wanted.libp2p else ATTACKS
    lengths, rows = Lengths(wanted.quiet, wanted.attack), list[dict[str, Any]]()
    document = {"seconds": asdict(lengths), "cores": os.cpu_count(), "attacks": rows}
    loads = document["load_averages"] = list[float]()
    with (
        tempfile.TemporaryDirectory() as scratch,
        attackers_route() as no_route,
        (LinkedRun if wanted.libp2p else BesiegedRun)(Path(scratch)) as run,
        Watch(run) as watch,
        Newcomers(run.cluster.coordinator, run.cluster.address) as newcomers,
        Sizes(run.processes()) as sizes,
    ):
        siege = Siege(run, watch, newcomers, sizes)
        for name in wanted.names or list(attacks):
            if no_route and attacks[name].needs_route:
                messages.print(f"{name}: left out: {no_route}")
                continue
            loads.append(round(os.getloadavg()[0], 1))
            rows.append(row := row_of(siege.play(name, lengths)))
            messages.print(
                f"{name}: {row['kept']:.2f} of the commits, "
                f"{max(row['memory_bytes'].values()) / 1e6:.0f} MB, newcomers within "
                f"{row['newcomer_s']:.1f} s, {row['sessions_lost']} sessions lost"
            )
            write_json(wanted.json, document)


if __name__ == "__main__":
    main()
