"""How well sign agreement tells honest work: `python -m tests.benchmarks.work_audit`.

The parity study's network and text, R authors and doubles of the first that cheat: of DeMo (`demo`)
or, with `--local-steps H`, of rounds of H local steps (`local_steps`). Every `--every` rounds an
auditor computes the work of each author anew and compares. Printed as JSON (`--json PATH`: kept
too): for each kind of payload the shares that agree, by round, their least, median and most, and
the places that the copied payload and two honest ones share. Ctrl-C ends the study after the round
in hand, with what was measured until then.
"""

import json
import signal
import sys
import tempfile
import threading
from pathlib import Path

import torch

from tests.benchmarks.work_audit.demo import Study
from tests.benchmarks.work_audit.local_steps import DOUBLES, LocalStudy
from tests.benchmarks.work_audit.options import asked, study_of
from tests.benchmarks.work_audit.results import summed_up


def main() -> None:
    """Measure and print."""
    parser = asked("python -m tests.benchmarks.work_audit", __doc__, 320)
    parser.add_argument("--every", type=int, default=20, help="rounds from one audit to the next")
    parser.add_argument("--late", action="store_true", help="gradients are a round late")
    parser.add_argument("--bfloat16", type=int, default=0, help="authors that compute in it")
    parser.add_argument("--without", nargs="*", default=[], choices=DOUBLES, metavar="DOUBLE")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        study = study_of(
            wanted,
            Path(scratch),
            late=wanted.late,
            bfloat16=wanted.bfloat16,
            without=wanted.without,
        )
        made = _made(study, wanted.steps, wanted.every)
    settings = {name: value for name, value in vars(wanted).items() if name != "json"}
    settings["made"] = made
    text = json.dumps({"settings": settings, **summed_up(study)}, separators=(",", ":"))
    if wanted.json:
        wanted.json.write_text(text + "\n")
    print(text)


def _made(study: Study | LocalStudy, steps: int, every: int) -> int:
    """The rounds that were made until the end, or until somebody pressed Ctrl-C."""
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    for number in range(steps):
        if stopped.is_set():
            return number
        study.step(number, audited=(number + 1) % every == 0)
        if (number + 1) % 20 == 0:
            print(f"round {number + 1} of {steps}", file=sys.stderr)
    return steps


if __name__ == "__main__":
    main()
