"""Foreign bytes for every reader: `python -m tests.fuzz --executions 1000000 --keep`.

Exit status 0 only if every reader kept its promise. Findings are printed with their inputs. With
`--keep` the inputs that showed something new are kept in corpus.jsonl.xz, from which the next run
and `make test` go on.
"""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import torch

from tests.fuzz import applying, histories, ports, summing
from tests.fuzz.runner import CORPUS, Fuzzer, read_corpus, write_corpus
from tests.fuzz.targets import targets


def main(arguments: list[str] | None = None) -> int:
    """Run and report; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--keep", action="store_true", help="write the corpus")
    wanted = parser.parse_args(arguments)
    torch.set_num_threads(1)  # small steps are 20 times as fast where nobody waits for threads
    logging.disable(logging.WARNING)  # a replica says of each payload why it does not count
    readers = targets() | histories.targets() | ports.targets() | summing.targets()
    fuzzer = Fuzzer(readers | applying.targets(), wanted.seed)
    fuzzer.replay(read_corpus(wanted.corpus))
    began_s = time.monotonic()
    fuzzer.run(wanted.executions)
    seconds, report = time.monotonic() - began_s, fuzzer.report
    if wanted.keep:
        write_corpus(fuzzer.corpus(), wanted.corpus)
    for name, blob, wrong in report.findings:
        print(f"{name}: {blob.hex()}\n{wrong}")
    document = {
        "executions": report.total,
        "per_second": round(report.total / max(seconds, 1e-9)),
        "findings": len(report.findings),
        "by_target": dict(report.executions),
        "taken": dict(report.taken),
        "corpus": {name: len(pool) for name, pool in fuzzer.pools.items()},
    }
    print(json.dumps(document, indent=1))
    return int(bool(report.findings))


if __name__ == "__main__":
    sys.exit(main())
