"""Memory of each rank and time of a round, by the number of ranks: `python -m
tests.benchmarks.ranks --json FILE`.

A node of 1, 2 and 4 ranks on this machine's CPUs, with the classes of a node, computes the same
rounds of local steps over random tokens: begin, passes, residual, payload. Each number of ranks is
measured in processes of its own, which share the cores. A round's time is the median of the later
ones.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.ranks.measure import NETWORKS, measured


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.ranks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--model", choices=NETWORKS, default="1M", help="parameters (default: 1M)")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks (default: 1,2,4)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each (default: 4)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.one, arguments.rounds, arguments.model)))
        return
    found = {
        "cores": os.cpu_count(),
        "nodes": [
            in_a_process(int(count), arguments.rounds, arguments.model)
            for count in arguments.ranks.split(",")
        ],
    }
    text = json.dumps(found, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def in_a_process(ranks: int, rounds: int, model: str) -> dict[str, Any]:
    """The figures of a node of this many ranks, rank 0 in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.ranks", "--one", str(ranks)]
    command += ["--rounds", str(rounds), "--model", model]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}  # as in a node, which is nice
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


if __name__ == "__main__":
    main()
