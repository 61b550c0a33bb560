"""How fast links are: `python -m tests.benchmarks.links --json PATH`.

Every kind of `tests.benchmarks.links.carriers` in one run, each node in a process of its own, on
loopback and behind a relay that delays (`tests.benchmarks.links.delay`, which says what that does
not show). Per kind and round trip:

    small_call_ms     a small question and its answer
    stream_mb_per_s   1 and 8 MB over a link that is open and warm, until the sender knows that
                      all has arrived
    cpu_ms_per_mb     of both processes and their daemons while 8 MB are carried repeatedly
    all_gather_ms     8 nodes, each gets 1 MB of each other one: from the order to start to the
                      last one's report

Medians with the least and most of the repeats. The kinds take turns on one machine, so ratios to
`hivemind`, its own protobuf streams, mean more than numbers, and `load_before` tells of other work.
A relay shares the processors with the nodes: at a distance, read the times rather than the rates.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from tests.benchmarks.links.carriers import KINDS
from tests.benchmarks.links.measure import GATHER_NODES, machine, measure, ratios


def main() -> None:
    """Run the measurements that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.links",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file of the results (default: standard output)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--round-trips", nargs="+", type=float, default=[0, 50, 150], help="milliseconds"
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--nodes", type=int, default=GATHER_NODES, help="of the all-gather")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for round_trip_ms in arguments.round_trips:
        for kind in arguments.kinds:
            row = {"kind": kind, "round_trip_ms": round_trip_ms, "load_before": os.getloadavg()[0]}
            try:
                results.append(
                    row | measure(kind, round_trip_ms, arguments.repeats, arguments.nodes)
                )
            except (
                RuntimeError,
                TimeoutError,
            ) as error:  # one that cannot do it here says so; the others go on
                results.append(row | {"error": str(error)})
            print(_line(results[-1]), flush=True)
    measured = [row for row in results if "error" not in row]
    document = {
        "machine": machine(),
        "nodes": arguments.nodes,
        "results": results,
        "ratios": ratios(measured),
    }
    text = json.dumps(document, indent=1)
    if arguments.json:
        arguments.json.write_text(text)
    else:
        print(text)


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['kind']} at {row['round_trip_ms']:g} ms: {row['error']}"
    streams = ", ".join(
        f"{size} MB {rate['median']:.0f} ({rate['least']:.0f}-{rate['most']:.0f})"
        for size, rate in row["stream_mb_per_s"].items()
    )
    call, gather = row["small_call_ms"], row["all_gather_ms"]
    return (
        f"{row['kind']} at {row['round_trip_ms']:g} ms: call {call['median']:.2f} ms, "
        f"{streams} MB/s, CPU {row['cpu_ms_per_mb']:.2f} ms/MB, "
        f"all-gather {gather['median']:.0f} ms ({gather['least']:.0f}-{gather['most']:.0f})"
    )


if __name__ == "__main__":
    main()
